"""Workloads at random: few requests near each other, drawn, in sessions, or from a trace file."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

from hypothesis import strategies as st

from tests.sim.random_scenarios.policies import Draw, Raw, of, options, policy

CONTEXTS = [
    policy("full"),
    policy("summary", keep_turns=st.integers(0, 2), summary_request=st.booleans()).flatmap(
        lambda raw: of([{**raw, "summarise_every": 2}, {**raw, "context_tokens": 60}])
    ),
    of([1, 2]).map(lambda turns: {"name": "sliding_window", "window_turns": turns}),
    of([10, 50]).map(lambda tokens: {"name": "sliding_window", "window_tokens": tokens}),
]
LENGTHS = {
    "input_tokens": of([16, 33, {"uniform": [1, 30]}, {"uniform": [1, 90]}]),
    "output_tokens": of([20, 40, {"uniform": [1, 12]}, {"uniform": [1, 50]}, {"uniform": [20, 60]}, 1]),
}
TURNS = {  # shorter, since prompts grow
    "input_tokens": of([9, 16, {"uniform": [1, 20]}, {"uniform": [1, 60]}]),
    "output_tokens": of([20, 12, {"uniform": [1, 12]}, {"uniform": [8, 30]}, 1]),
}
TENANTS = {"small": {"weight": 1, "priority": -1}, "large": {"weight": 2}}


@st.composite
def workloads(draw: Draw, traces: Path, *, tiered: bool) -> Raw:
    """Few requests, near each other: a step takes a millisecond or so."""
    kinds = ["lengths", "sessions", "sessions", "trace"]
    kind = draw(of(kinds + ["sessions"] * 4 * tiered))
    section: Raw = {}
    if kind == "trace":
        section["trace"] = draw(trace_files(traces))
    else:
        laws = TURNS if kind == "sessions" else LENGTHS
        section |= {name: draw(law) for name, law in laws.items()}
        section["num_requests"] = draw(of([24, 32, 16, 24, 32, 9, 3]))
    timing = draw(of(["constant", "poisson", "closed"]))
    if kind == "trace" and timing != "closed":
        timing = draw(of(["own", "own", timing]))
    if timing == "closed":
        section["max_concurrency"] = draw(of([8, 16, 12, 4, 1]))
    elif timing != "own":
        section["request_rate"] = draw(of([1000.0, 1000.0, 500.0, 200.0, 50.0]))
        if timing == "constant":
            section["burstiness"] = "inf"
    if kind == "sessions":
        section["sessions"] = draw(sessions(closed=timing == "closed"))
    if draw(of([False, False, True])):
        section["tenants"] = TENANTS
    return section


@st.composite
def sessions(draw: Draw, *, closed: bool) -> Raw:
    section = draw(
        options(
            turns=of([3, 5, {"uniform": [1, 5]}, 1]),
            turn_gap_burstiness=of([1.0, 1e9]),
            context_policy=st.one_of(CONTEXTS),
            system_prompt_tokens=of([0, 16, 40]),
            system_prompts=st.integers(1, 3),
            max_input_tokens=of([100, 140]),
            block_tokens=of([4, 8, 16, 32]),
        )
    )
    section["turn_gap_s"] = draw(of([0.005, 0.001, 0.03, 0.03]))
    if not closed and draw(st.booleans()):
        section["waits_for_answer"] = False
    return section


@st.composite
def trace_files(draw: Draw, traces: Path) -> str:
    """Chats as Bailian records them, in blocks of 16 tokens that start with one of a few prefixes."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 40),  # ms
                st.integers(1, 100),
                st.integers(1, 40),
                st.lists(st.integers(0, 2), max_size=3),  # the way through a tree of shared blocks
                st.booleans(),  # whether it follows the row before
            ),
            min_size=1,
            max_size=16,
        ).map(lambda drawn: sorted(drawn, key=lambda row: row[0]))
    )
    lines = []
    for number, (at, inputs, outputs, way, follows) in enumerate(rows):
        blocks = -(-inputs // 16)
        shared = [
            int("1" + "".join(map(str, way[: depth + 1]))) for depth in range(min(len(way), inputs // 16))
        ]
        own = [10_000 + 100 * number + depth for depth in range(len(shared), blocks)]
        parent = number - 1 if follows and number else -1
        row = {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": at / 1000,
            "input_length": inputs,
            "output_length": outputs,
            "hash_ids": shared + own,
        }
        lines.append(json.dumps(row))
    text = "\n".join(lines) + "\n"
    path = traces / f"{crc32(text.encode())}.jsonl"
    path.write_text(text)
    return str(path)
