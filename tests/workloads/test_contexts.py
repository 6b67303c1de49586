"""Context policies against sessions spelled out token by token: lengths, prefix blocks, answers found again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.session_reference import divisors, prefixes, requests_of
from workloads.answers import sequence_hashes
from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.context.full import Full
from workloads.context.sliding_window import SlidingWindow
from workloads.context.summary import Summary
from workloads.errors import ConfigError
from workloads.streams import Streams

optional = st.one_of(st.none(), st.integers(1, 5))
summaries = st.builds(
    lambda tokens, every, keep, ratio, request: Summary(
        context_tokens=tokens,
        summarise_every=every if every or tokens else 2,
        keep_turns=keep,
        summary_ratio=ratio,
        summary_request=request,
    ),
    st.one_of(st.none(), st.integers(1, 120)),
    optional,
    st.integers(0, 3),
    st.sampled_from([0.01, 0.31, 0.5, 1.0]),
    st.booleans(),
)
windows = st.builds(
    lambda turns, tokens: SlidingWindow(window_turns=turns if turns or tokens else 0, window_tokens=tokens),
    optional,
    st.one_of(st.none(), st.integers(1, 90)),
)
policies = st.one_of(st.just(Full()), summaries, windows)
shapes = st.fixed_dictionaries(
    {
        "system_prompt_tokens": st.integers(0, 40),
        "system_prompts": st.integers(1, 2),
        "block_tokens": st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
        "turns": st.sampled_from([1, 5, {"uniform": [1, 9]}]),
    }
)


def build(seed, policy=None, closed=False, **sessions):
    if policy is not None:
        sessions["context_policy"] = policy.model_dump()
    section = {
        "input_tokens": {"uniform": [1, 30]},
        "output_tokens": {"uniform": [1, 20]},
        "num_requests": 40,
        **({"max_concurrency": 3} if closed else {"request_rate": 5.0}),
        "sessions": {"turn_gap_s": 2.0, **sessions},
    }
    return build_workload(parse_workload(section), np.random.SeedSequence(seed)).trace


def spelled_out(seed, policy, shape, **more):
    """The trace under a policy, and prompt and answer of each of its requests, token by token.

    What is said is read off the same sessions under `full`, where each prompt is longer than what was said by its new
    tokens.
    """
    trace, plain = build(seed, policy, **shape, **more), build(seed, **shape, **more)
    size = int(plain.session.max()) + 1
    system = Streams(np.random.SeedSequence(seed)).of("prefixes").integers(shape["system_prompts"], size=size)
    texts: list = [None] * len(trace)
    for code in np.unique(plain.session).tolist():
        head = [("system", int(system[code]), at) for at in range(shape["system_prompt_tokens"])]
        talk, said = [], len(head)
        for row in np.flatnonzero(plain.session == code).tolist():
            prompt, output = int(plain.input_tokens[row]), int(plain.output_tokens[row])
            talk.append((prompt - said, output))
            said = prompt + output
        rows = np.flatnonzero(trace.session == code).tolist()
        for row, text in zip(rows, requests_of(code, head, talk, policy), strict=True):
            texts[row] = text
    assert None not in texts
    return trace, texts


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), policy=policies, shape=shapes, waits=st.booleans(), closed=st.booleans())
def test_blocks_are_shared_if_and_only_if_all_tokens_so_far_are_the_same(seed, policy, shape, waits, closed):
    closed = closed and waits
    trace, texts = spelled_out(seed, policy, shape, waits_for_answer=waits, closed=closed)
    size = shape["block_tokens"]
    assert trace.input_tokens.tolist() == [len(prompt) for prompt, _ in texts]
    assert trace.output_tokens.tolist() == [len(answer) for _, answer in texts]
    stands_for: dict[int, tuple] = {}
    for row, (prompt, _) in enumerate(texts):
        ids, blocks = trace.hashes.of(row).tolist(), prefixes(prompt, size)
        assert len(ids) == -(-len(prompt) // size)
        if len(ids) > len(blocks):
            blocks.append(("partial", row))
        for block, text in zip(ids, blocks, strict=True):
            assert stands_for.setdefault(block, text) == text
    assert len(set(stands_for.values())) == len(stands_for)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), policy=policies, shape=shapes, waits=st.booleans(), data=st.data())
def test_an_answer_is_found_by_exactly_the_prompts_that_repeat_it(seed, policy, shape, waits, data):
    trace, texts = spelled_out(seed, policy, shape, waits_for_answer=waits)
    own = shape["block_tokens"]
    size = data.draw(st.sampled_from([*divisors(own), 2 * own, 3 * own]), label="engine block size")
    hashes = sequence_hashes(trace, size)
    exact = (
        size % own == 0
    )  # in smaller blocks what follows the last full one is shared by what continues it only
    holders: dict[tuple, set[int]] = {}  # which sequences hold a block with this content
    by_id: dict[int, set[int]] = {}
    for row, (prompt, answer) in enumerate(texts):
        text = prompt + answer[:-1]  # the last token needs no KV
        known = hashes.of(row).tolist()
        assert len(prompt) // size <= len(known) <= len(text) // size
        for content in prefixes(text, size):
            holders.setdefault(content, set()).add(row)
        for block in known:
            by_id.setdefault(block, set()).add(row)
    for row, (prompt, _) in enumerate(texts):
        for block, content in zip(hashes.of(row).tolist(), prefixes(prompt, size), strict=False):
            if exact:
                assert by_id[block] == holders[content]
            else:
                assert by_id[block] <= holders[content]
            if isinstance(policy, Full):  # every prompt but the last of a session is continued by the next
                session = set(np.flatnonzero(trace.session == trace.session[row]).tolist())
                assert by_id[block] & session == holders[content] & session


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), policy=policies, limit=st.integers(90, 200))
def test_a_session_ends_before_the_first_prompt_that_is_too_long(seed, policy, limit):
    shape = {"system_prompt_tokens": 20, "system_prompts": 1, "block_tokens": 4, "turns": 9}
    trace, texts = spelled_out(seed, policy, shape, closed=True)
    cut = build(seed, policy, closed=True, max_input_tokens=limit, **shape)
    for code in range(3):
        lengths, number = [], 0
        for row in np.flatnonzero(trace.session == code).tolist():
            prompt, answer = texts[row]
            is_turn = answer[0][0] == "answered"
            if is_turn and len(prompt) > limit:
                break
            lengths.append((len(prompt), is_turn))
        while lengths and not lengths[-1][1]:  # a summary is made for a turn
            lengths.pop()
        number = int(np.count_nonzero(cut.session == code))
        assert cut.input_tokens[cut.session == code].tolist() == [length for length, _ in lengths][:number]
        assert number == len(lengths) or code == cut.session.max()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), policy=policies, waits=st.booleans(), closed=st.booleans())
def test_turns_follow_each_other_and_wait_for_summaries(seed, policy, waits, closed):
    closed = closed and waits
    shape = {"system_prompt_tokens": 8, "system_prompts": 1, "block_tokens": 4, "turns": {"uniform": [1, 9]}}
    trace, texts = spelled_out(seed, policy, shape, waits_for_answer=waits, closed=closed)
    turns = trace.turns
    summary = [answer[0][0] == "summary" for _, answer in texts]
    for code in np.unique(trace.session).tolist():
        rows = np.flatnonzero(trace.session == code).tolist()
        assert not summary[rows[-1]]
        assert turns.predecessor[rows[0]] == -1
        for before, after in itertools.pairwise(rows):
            if summary[before] or waits:
                assert turns.predecessor[after] == before
            else:
                assert turns.predecessor[after] == -1
            if summary[before]:
                assert turns.think_ns[after] == 0
            if turns.predecessor[after] == before and not closed:
                earliest = trace.arrival_ns[before] + turns.think_ns[after]
                assert trace.arrival_ns[after] == earliest
    for row, before in enumerate(turns.continues.tolist()):
        prompt = texts[row][0]
        if before >= 0:
            said = texts[before][0] + texts[before][1]
            assert prompt[: len(said)] == said
    assert not closed or not trace.arrival_ns.any()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), policy=policies, waits=st.booleans())
def test_a_policy_changes_neither_what_is_said_nor_when_sessions_start(seed, policy, waits):
    """Policies are compared on the same turns: summaries come on top of num_requests."""
    plain, other = build(seed), build(seed, policy, waits_for_answer=waits)
    own_turns = np.ones(len(other), dtype=bool)
    waited = other.turns.predecessor[(other.turns.predecessor >= 0) & (other.turns.think_ns == 0)]
    if isinstance(policy, Summary) and policy.summary_request:
        own_turns[waited] = False
    assert own_turns.sum() == len(plain) == 40
    for column in ("arrival_ns", "output_tokens", "session"):
        assert np.array_equal(getattr(other, column)[own_turns], getattr(plain, column))


def test_the_window_and_the_summary_by_hand():
    """Turns of 10 new and 6 answered tokens behind a system prompt of 8."""

    def lengths(policy):
        section = {
            "input_tokens": 10,
            "output_tokens": 6,
            "num_requests": 5,
            "max_concurrency": 1,
            "sessions": {"turns": 5, "system_prompt_tokens": 8, "context_policy": policy},
        }
        trace = build_workload(parse_workload(section), np.random.SeedSequence(1)).trace
        return trace.input_tokens.tolist(), trace.output_tokens.tolist()

    assert lengths("full") == ([18, 34, 50, 66, 82], [6] * 5)
    assert lengths({"name": "sliding_window", "window_turns": 2}) == ([18, 34, 50, 50, 50], [6] * 5)
    assert lengths({"name": "sliding_window", "window_tokens": 31}) == ([18, 34, 34, 34, 34], [6] * 5)
    # Before turn 4 the prompt would be 66: the first two turns (32 tokens) become 8, the third stays.
    summary = {"name": "summary", "context_tokens": 60, "summary_ratio": 0.25}
    assert lengths(summary) == ([18, 34, 50, 8 + 32, 8 + 8 + 16 + 10, 58], [6, 6, 6, 8, 6, 6])
    assert lengths({**summary, "summary_request": False}) == ([18, 34, 50, 42, 58], [6] * 5)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "rolling",
            "workload.sessions.context_policy: Input tag 'rolling' found using 'name' does not match",
        ),
        (
            "summary",
            "workload.sessions.context_policy.summary: give context_tokens or summarise_every; with neither",
        ),
        (
            "sliding_window",
            "workload.sessions.context_policy.sliding_window: give window_turns or window_tokens; with",
        ),
        ({"name": "full", "window_turns": 3}, "workload.sessions.context_policy.full.window_turns: unknown"),
        (
            {"name": "summary", "summarise_every": 2, "summary_ratio": 1.5},
            "workload.sessions.context_policy.summary.summary_ratio: Input should be less than or equal to 1",
        ),
    ],
)
def test_bad_policies_are_one_line(policy, message):
    section = {"input_tokens": 5, "output_tokens": 5, "request_rate": 1.0, "num_requests": 9}
    with pytest.raises(ConfigError) as caught:
        parse_workload({**section, "sessions": {"context_policy": policy}})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_every_option_acts():
    base = {
        "summary": {"context_tokens": 90},
        "sliding_window": {"window_turns": 3},
    }
    others = {
        "summary": {
            "context_tokens": 60,
            "summarise_every": 2,
            "keep_turns": 2,
            "summary_ratio": 0.7,
            "summary_request": False,
        },
        "sliding_window": {"window_turns": 1, "window_tokens": 40},
    }
    for cls in (Summary, SlidingWindow):
        name = cls.model_fields["name"].default
        assert set(others[name]) == set(cls.model_fields) - {"name"}
        before = build(1, cls(**base[name]), turns=6).input_tokens.tolist()
        for option, value in others[name].items():
            assert build(1, cls(**{**base[name], option: value}), turns=6).input_tokens.tolist() != before
