"""From config and seed to requests."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.errors import ConfigError, InputError

SEED = np.random.SeedSequence(11)
LENGTHS = {"input_tokens": {"uniform": [1, 99]}, "output_tokens": {"lognormal": {"mean": 50, "sigma": 1.0}}}
COLUMNS = ("arrival_ns", "input_tokens", "output_tokens", "session", "tenant", "priority")
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.0,5,6\n2.0,7,8\n4.0,9,10\n"


def build(seed=SEED, base_dir=None, **section):
    return build_workload(parse_workload(section), seed, base_dir=base_dir)


@given(seed=st.integers(0, 2**64), rate=st.floats(0.1, 100), count=st.integers(1, 200))
def test_same_seed_same_bytes_and_changing_lengths_leaves_arrivals(seed, rate, count):
    fields = {"request_rate": rate, "num_requests": count}
    seeds = [np.random.SeedSequence(seed) for _ in range(3)]
    one, two = (build(s, **LENGTHS, **fields).trace for s in seeds[:2])
    for column in COLUMNS:
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()
    seeds[2].spawn(3)  # what others took from the same sequence does not matter
    other = build(seeds[2], **{**LENGTHS, "input_tokens": 7}, **fields).trace
    assert np.array_equal(one.arrival_ns, other.arrival_ns)
    assert np.array_equal(one.output_tokens, other.output_tokens)


def test_changing_the_rate_leaves_lengths():
    slow, fast = (build(**LENGTHS, request_rate=rate, num_requests=50).trace for rate in (1, 9))
    assert np.array_equal(slow.input_tokens, fast.input_tokens)
    assert np.array_equal(slow.arrival_ns / 9, fast.arrival_ns) or np.allclose(
        slow.arrival_ns / 9, fast.arrival_ns, atol=60
    )


def test_other_seed_other_requests():
    one = build(**LENGTHS, request_rate=1, num_requests=50).trace
    other = build(np.random.SeedSequence(12), **LENGTHS, request_rate=1, num_requests=50).trace
    assert not np.array_equal(one.arrival_ns, other.arrival_ns)
    assert not np.array_equal(one.input_tokens, other.input_tokens)


def test_rescaled_arrivals_end_at_n_over_rate_as_vllm_does():
    trace = build(**LENGTHS, request_rate=4, num_requests=100, rescale_arrivals=True).trace
    plain = build(**LENGTHS, request_rate=4, num_requests=100).trace
    assert trace.arrival_ns[-1] == 25 * 10**9
    assert plain.arrival_ns[-1] != 25 * 10**9
    assert np.allclose(trace.arrival_ns / trace.arrival_ns[-1], plain.arrival_ns / plain.arrival_ns[-1])


def test_duration_is_a_beginning_of_the_same_stream():
    whole = build(**LENGTHS, request_rate=4, num_requests=1000).trace
    part = build(**LENGTHS, request_rate=4, duration_s=30).trace
    both = build(**LENGTHS, request_rate=4, num_requests=1000, duration_s=30).trace
    for column in COLUMNS:
        assert np.array_equal(getattr(part, column), getattr(whole, column)[: len(part)])
        assert np.array_equal(getattr(part, column), getattr(both, column))
    assert part.arrival_ns[-1] < 30 * 10**9 <= whole.arrival_ns[len(part)]


def test_closed_loop_keeps_order_and_has_no_times(put):
    path = put("v.csv", VIDUR)
    work = build(trace=str(path), max_concurrency=2)
    assert work.max_concurrency == 2
    assert work.trace.arrival_ns.tolist() == [0, 0, 0]
    assert work.trace.input_tokens.tolist() == [5, 7, 9]
    assert build(**LENGTHS, max_concurrency=3, num_requests=4, request_rate="inf").max_concurrency == 3


def test_a_file_keeps_its_times_unless_told(put):
    folder = put("v.csv", VIDUR).parent
    times = lambda **fields: build(base_dir=folder, trace="v.csv", **fields).trace.arrival_ns.tolist()  # noqa: E731
    assert times() == [10**9, 2 * 10**9, 4 * 10**9]
    assert times(request_rate=3) == [250_000_000, 500_000_000, 1_000_000_000]
    assert times(request_rate="inf") == [0, 0, 0]
    assert times(num_requests=2) == [10**9, 2 * 10**9]
    assert times(duration_s=2.5) == [10**9, 2 * 10**9]
    assert times(request_rate=2, burstiness="inf") == [500_000_000, 1_000_000_000, 1_500_000_000]
    assert times(burstiness="inf")[2] == pytest.approx(4 * 10**9, abs=3), "redrawn at its own rate"
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2, "burstiness": "inf"}
    assert times(**ramp) == [10**9, 1_666_666_667, 2_166_666_667]


def test_what_a_file_cannot_give(put):
    path = put("v.csv", VIDUR)
    lengths_only = put("w.csv", "num_prefill_tokens,num_decode_tokens\n5,6\n")
    for section, message in [
        ({"trace": str(path), "num_requests": 4}, f"workload.num_requests: 4, but {path} has 3 requests"),
        (
            {"trace": str(path), "duration_s": 9},
            "workload.duration_s: 9, but the last request arrives at 4 s",
        ),
        (
            {"trace": str(path), "duration_s": 0.5},
            "workload.duration_s: no request arrives within 0.5 s; give more",
        ),
        (
            {"trace": str(path), "rescale_arrivals": True, "request_rate": 1},
            f"workload.rescale_arrivals: acts on drawn times, and {path} has its own; add burstiness",
        ),
        (
            {"trace": str(lengths_only)},
            f"workload.request_rate: missing, and {lengths_only} has lengths only; give a rate, a ramp or max_",
        ),
        (
            {"trace": "azure-cov"},
            "workload.trace: 'azure-cov' is neither a file nor a shipped model; did you mean",
        ),
        ({"trace": "no/such.csv"}, "no/such.csv: no such file"),
        (
            {"trace": "azure-conv", "format": "azure"},
            "workload.format: acts on a trace file, and azure-conv is a",
        ),
        (
            {"trace": "arxiv-summarization"},
            "workload.request_rate: missing, and arxiv-summarization has lengths only",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            build(**section)
        assert str(caught.value).startswith(message)


def test_lengths_only_file_at_a_rate(put):
    path = put("w.csv", "num_prefill_tokens,num_decode_tokens\n" + "5,6\n" * 1000)
    trace = build(trace=str(path), request_rate=10).trace
    assert trace.has_arrivals
    assert trace.duration_ns == pytest.approx(100e9, rel=0.1)


def test_failed_requests_of_a_file(put):
    path = put("v.csv", VIDUR + "5.0,9,0\n")
    with pytest.raises(InputError, match=r"v.csv:5: a failed request .*drop_failed: true"):
        build(trace=str(path))
    assert build(trace=str(path), drop_failed=True).trace.failed == 1


def test_a_trace_with_tenants_of_its_own_keeps_them(tmp_path):
    from workloads.writers import write_trace

    drawn = build(**LENGTHS, request_rate=1, num_requests=20, tenants={"a": {}, "b": {}}).trace
    write_trace(drawn, tmp_path / "t.parquet", "parquet")
    again = build(trace=str(tmp_path / "t.parquet")).trace
    assert again.tenant_names == ("a", "b")
    assert np.array_equal(again.tenant, drawn.tenant)
    with pytest.raises(InputError, match=r"workload.tenants: the trace has its own \(a, b\)"):
        build(trace=str(tmp_path / "t.parquet"), tenants={"c": {}})


def test_a_model_file_is_a_trace_too(put):
    from workloads.model import load_model

    model = load_model("azure-code")
    path = put("mine.json", model.text)
    one = build(trace=str(path), num_requests=30).trace
    other = build(trace="azure-code", num_requests=30).trace
    assert np.array_equal(one.input_tokens, other.input_tokens)
    broken = json.loads(model.text)
    broken["lengths"]["input_tokens"][3] = 10**9
    with pytest.raises(InputError, match=r"not a workload model: model\.lengths: quantiles must ascend"):
        build(trace=str(put("broken.json", json.dumps(broken))))


def test_no_seconds_where_there_is_no_time():
    assert math.isinf(build(**LENGTHS, request_rate="inf", num_requests=3).trace.arrival_ns[-1] or math.inf)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"request_rate": 1e6, "duration_s": 1e9},
            "workload.duration_s: 1e+09 s at 1e+06 requests/s are 1e+15 requests, more than 20000000; give less",
        ),
        (
            {"request_rate": 1e6, "duration_s": 1e9, "sessions": {}},
            "workload.duration_s: 1e+09 s at 1e+06 requests/s are 1e+15 requests, more than 20000000; give less",
        ),
        (
            {"request_rate": 1e-9, "num_requests": 10},
            "workload.request_rate: the last of 10 requests would arrive after 2e+09 s (63 years)",
        ),
        (
            {"num_requests": 10, "ramp_up_strategy": "linear"}
            | {"ramp_up_start_rps": 1e-9, "ramp_up_end_rps": 1e-9},
            "workload.request_rate: the last of 10 requests would arrive after 2e+09 s (63 years)",
        ),
        (
            {"request_rate": 1.0, "num_requests": 10, "sessions": {"turns": 10**7}},
            "workload.sessions.turns: 16 sessions have 160000000 turns, more than 40000000; give fewer",
        ),
        (
            {"request_rate": 1.0, "num_requests": 10, "sessions": {"turns": 100, "turn_gap_s": 1e9}},
            "workload.sessions.turn_gap_s: 1e+09 makes a session longer than 2e+09 s (63 years)",
        ),
        (
            {"request_rate": 1.0, "num_requests": 10, "sessions": {"system_prompt_tokens": 10**9}},
            "workload.sessions: 10 prompts have 625000032 prefix blocks, more than 200000000; give fewer",
        ),
    ],
)
def test_too_much_is_refused_before_it_is_drawn(section, message):
    with pytest.raises(ConfigError) as caught:
        build(**LENGTHS, **section)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["azure-code", "azure-conv"])
def test_a_model_at_a_rate_of_almost_nothing(name):
    with pytest.raises(
        ConfigError, match=r"workload\.request_rate: the last of 50 requests would arrive after"
    ):
        build(trace=name, request_rate=1e-9, num_requests=50)
    assert len(build(trace=name, request_rate=1e-6, duration_s=2e8).trace) > 50
    with pytest.raises(ConfigError, match=r"workload.duration_s: 2e\+09 s at .* requests/s are .* more than"):
        build(trace=name, duration_s=2e9)
