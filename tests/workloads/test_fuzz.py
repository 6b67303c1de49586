"""Whatever is wrong with a file, reading it gives a trace or one line: never another exception."""

import copy
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.errors import TraceFormatError
from workloads.readers import FORMATS, read_trace

ODD = [
    None,
    True,
    "",
    "x",
    "nan",
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    [],
    [[]],
    {},
    {"a": 1},
    "\u0663",
]

MOONCAKE = [
    {"timestamp": i, "input_length": 600, "output_length": 5, "hash_ids": [0, i], "session_id": "s"}
    for i in range(3)
]
BAILIAN = [
    {
        "chat_id": i,
        "parent_chat_id": i - 1,
        "timestamp": i,
        "input_length": 20,
        "output_length": 5,
        "hash_ids": [0, i],
    }
    for i in range(3)
]
AIPERF = [
    {
        "metadata": {"credit_issued_ns": 10**18 + i, "benchmark_phase": "profiling", "turn_index": i},
        "metrics": {"usage_prompt_tokens": {"value": 3}, "usage_completion_tokens": {"value": 3}},
        "error": None,
    }
    for i in range(3)
]
VLLM = {
    "num_prompts": 2,
    "max_concurrency": 2,
    "input_lens": [1, 2],
    "output_lens": [1, 2],
    "start_times": [1.0, 2.0],
    "queue_times": [0.0, 0.5],
    "itls": [[], [0.1]],
    "errors": ["", ""],
}
GUIDE = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent"}},
            "requests": {
                "successful": [
                    {"info": {"timings": {"targeted_start": 1.0}}, "prompt_tokens": 1, "output_tokens": 1},
                    {
                        "info": {"turn_index": 1},
                        "request_start_time": 2.0,
                        "prompt_tokens": 1,
                        "output_tokens": 1,
                    },
                ],
                "errored": [],
                "incomplete": None,
            },
        }
    ]
}
PERF = [
    {
        "start_time": 1.0 + i,
        "info": {
            "request_metrics": {"text": {"input_tokens": 3}},
            "response_metrics": {
                "output_tokens": 3,
                "server_usage": {"prompt_tokens": 3, "completion_tokens": 3},
            },
        },
        "error": None,
    }
    for i in range(2)
]
JSON = {
    "mooncake": (MOONCAKE, True),
    "bailian": (BAILIAN, True),
    "aiperf": (AIPERF, True),
    "vllm": (VLLM, False),
    "guidellm": (GUIDE, False),
    "inference-perf": (PERF, False),
}
CSV = {
    "azure": [
        ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
        ["2023-11-16 18:15:46.68", "3", "4"],
        ["2023-11-16 18:15:47.68", "3", "4"],
    ],
    "burstgpt": [
        ["Timestamp", "Session ID", "Request tokens", "Response tokens", "Total tokens"],
        ["5", "s", "1", "2", "3"],
        ["6", "", "1", "2", "3"],
    ],
    "vidur": [
        ["arrived_at", "num_prefill_tokens", "num_decode_tokens"],
        ["0.5", "1", "2"],
        ["1.5", "1", "2"],
    ],
}


def places(value, path=()):
    """Every place in a JSON value, the value itself included."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


def spoiled(value, dice, times):
    value = copy.deepcopy(value)
    for _ in range(times):
        spots = [place for place in places(value) if place]
        if not spots:
            break
        *parents, last = dice.choice(spots)
        node = value
        for key in parents:
            node = node[key]
        if isinstance(node, dict) and dice.random() < 0.3:
            del node[last]
        else:
            node[last] = copy.deepcopy(dice.choice(ODD))
    return value


def check(path, name=None):
    for drop_failed in (False, True):
        problem = ""
        try:
            assert len(read_trace(path, format=name, drop_failed=drop_failed)) >= 1
        except TraceFormatError as error:
            problem = str(error)
        assert "\n" not in problem
        assert len(problem) < 400 + len(str(path))


def text_of(value, lines):
    return "\n".join(json.dumps(row) for row in value) if lines else json.dumps(value)


@pytest.mark.parametrize("name", [*JSON, *CSV])
def test_unspoiled(put, name):
    text = text_of(*JSON[name]) if name in JSON else "\n".join(",".join(row) for row in CSV[name])
    assert len(read_trace(put("f", text))) >= 2


@pytest.mark.parametrize("name", JSON)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_spoiled_json(tmp_path_factory, name, seed, times):
    value, lines = JSON[name]
    path = tmp_path_factory.getbasetemp() / f"fuzz-{name}"
    path.write_text(text_of(spoiled(value, random.Random(seed), times), lines))
    check(path)
    check(path, name)


@pytest.mark.parametrize("name", CSV)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_spoiled_csv(tmp_path_factory, name, seed, times):
    dice = random.Random(seed)
    rows = copy.deepcopy(CSV[name])
    for _ in range(times):
        row = dice.choice(rows)
        if row:
            row[dice.randrange(len(row))] = str(dice.choice([*ODD, '"', "a,b", "9" * 5000, "1_0", "\r"]))
    path = tmp_path_factory.getbasetemp() / f"fuzz-{name}"
    path.write_text("\n".join(",".join(row) for row in rows))
    check(path)
    check(path, name)


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz-bytes"
    path.write_bytes(content)
    check(path)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_cut_anywhere(tmp_path_factory, name, data):
    if name == "parquet":
        from workloads.trace import Trace
        from workloads.writers import write_trace

        whole = tmp_path_factory.getbasetemp() / "whole.parquet"
        write_trace(Trace.build([0], [1], [1]), whole, "parquet", force=True)
        content = whole.read_bytes()
    elif name in JSON:
        content = text_of(*JSON[name]).encode()
    else:
        content = "\n".join(",".join(row) for row in CSV[name]).encode()
    path = tmp_path_factory.getbasetemp() / f"cut-{name}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    check(path)
