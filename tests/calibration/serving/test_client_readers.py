"""What clients measured, read by definition: one run in four formats, and what cannot be trusted."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.serving.readers import aiperf, guidellm, inference_perf, vllm_bench
from calibration.serving.readers.client_judgement import LATE, STARVED, SURVIVORS, UNKNOWN_PREFIXES
from calibration.serving.readers.client_run import constant_in_flight
from calibration.serving.readers.prompts import BLOCK_TOKENS, prefix_blocks
from sim.simulation import simulate
from tests.calibration.serving.client_files import (
    SCENARIO,
    Known,
    closed_run,
    known_run,
    write_aiperf,
    write_guidellm,
    write_inference_perf,
    write_scrapes,
    write_vllm,
)
from tests.data import shared_data
from workloads.errors import InputError
from workloads.trace import NS_PER_S

FORMATS = {
    "vllm": (vllm_bench, write_vllm),
    "guidellm": (guidellm, write_guidellm),
    "aiperf": (aiperf, write_aiperf),
    "inference-perf": (inference_perf, write_inference_perf),
}
each_format = pytest.mark.parametrize(("reader", "write"), FORMATS.values(), ids=FORMATS)


def read_one(reader, path, scenario=SCENARIO):
    (run,) = reader.read(path, scenario)
    return run


def by_definition(run: Known):
    """Metrics, from the definitions alone."""
    good = [i for i in range(len(run)) if not run.failed[i]]
    ttft = np.array([run.ttft[i] for i in good])
    e2el = np.array([run.latency[i] for i in good])
    tokens = np.array([run.outputs[i] for i in good])
    several = tokens > 1
    latencies = {"ttft": ttft, "e2el": e2el, "tpot": (e2el - ttft)[several] / (tokens[several] - 1)}
    found = {}
    for name, values in latencies.items():
        if not values.size:
            continue
        found[f"mean_{name}_ms"] = 1e3 * values.mean()
        found |= {f"p{q}_{name}_ms": 1e3 * np.percentile(values, q) for q in (90, 95, 99)}
        found[f"median_{name}_ms"] = 1e3 * np.median(values)
    if not any(run.failed):
        sent = np.array(run.sent)
        seconds = (sent + e2el).max() - sent.min()
        found |= {"request_throughput": len(good) / seconds, "output_throughput": tokens.sum() / seconds}
    return found


@each_format
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_every_format_gives_the_metrics_of_the_definitions(tmp_path_factory, reader, write, seed, count):
    known = known_run(seed, count)
    run = read_one(reader, write(tmp_path_factory.mktemp("run"), known))
    (part,) = run.parts
    assert dict(part.measured) == pytest.approx(by_definition(known), rel=1e-4, nan_ok=True)
    assert part.apart is None
    trace = run.workload.trace
    assert trace.input_tokens.tolist() == known.inputs
    assert trace.output_tokens.tolist() == known.outputs
    arrival = np.array(known.sent) - known.sent[0]
    np.testing.assert_allclose(trace.arrival_ns / NS_PER_S, arrival, atol=1e-6)


@each_format
def test_some_failed(tmp_path, reader, write):
    known = known_run(failed=(3, 7, 20))
    run = read_one(reader, write(tmp_path, known))
    (part,) = run.parts
    assert dict(part.measured) == pytest.approx(by_definition(known), rel=1e-4)  # without rates
    assert part.apart == SURVIVORS
    assert any("3 of 40 requests (7.5%) failed" in caveat for caveat in run.caveats)
    assert len(run.workload.trace) == 37


@each_format
def test_one_failed_of_many_leaves_out_rates_only(tmp_path, reader, write):
    (part,) = read_one(reader, write(tmp_path, known_run(failed=(3,)))).parts
    assert part.apart is None
    assert not {"request_throughput", "output_throughput"} & set(part.measured)


@each_format
def test_all_failed_is_refused_by_name(tmp_path, reader, write):
    known = known_run(count=5, failed=range(5))
    path = write(tmp_path, known)
    with pytest.raises(InputError, match="all 5 requests failed") as refused:
        reader.read(path, SCENARIO)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@each_format
def test_recognised_by_content_and_by_no_other_reader(tmp_path, reader, write):
    path = write(tmp_path, known_run(count=3)).rename(tmp_path / "anything.json")
    assert [other for other, _ in FORMATS.values() if other.recognises(path)] == [reader]
    assert not reader.recognises(tmp_path)
    assert not reader.recognises(tmp_path / "nothing.json")


@each_format
def test_the_scenario_runs_on_its_own(tmp_path, reader, write):
    """What a run's scenario says is what its workload holds: the file can be replayed by anyone."""
    run = read_one(reader, write(tmp_path, known_run(count=6)))
    np.testing.assert_array_equal(
        simulate(run.scenario).requests.e2el_ns,
        simulate(run.scenario, workload=run.workload).requests.e2el_ns,
    )


def glued(known: Known):
    """The same run through a client that gets its chunks in bursts."""
    gaps = [[1e-5] * (len(gap) - 1) + [sum(gap)] if gap else [] for gap in known.gaps]
    return Known(known.sent, [20 * ttft for ttft in known.ttft], gaps, known.inputs, known.failed)


with_gaps = pytest.mark.parametrize(
    ("reader", "write"), [pair for name, pair in FORMATS.items() if name != "guidellm"]
)


@with_gaps
def test_a_starved_client_is_refused(tmp_path, reader, write):
    path = write(tmp_path, glued(known_run()))
    with pytest.raises(
        InputError, match=r"starved client: \d+% of its token gaps are below 0.5 ms .*metrics_before.txt"
    ):
        reader.read(path, SCENARIO)


@with_gaps
def test_a_client_that_was_busy_at_times_is_said(tmp_path, reader, write):
    known = known_run()
    for gaps in known.gaps[::8]:
        gaps[:] = [1e-5] * len(gaps)
    run = read_one(reader, write(tmp_path, known))
    assert run.parts[0].apart is None
    assert any("the client was busy at times" in caveat for caveat in run.caveats)


@with_gaps
def test_a_starved_client_beside_scrapes_gives_the_servers_means(tmp_path, reader, write):
    known = glued(known_run())
    path = write(tmp_path, known)
    write_scrapes(tmp_path, known)
    run = read_one(reader, path)
    (part,) = run.parts
    tpot = 20.0 * len(known) / (len(known) - 1)  # the server counts the request of one token as 0
    assert dict(part.measured) == pytest.approx(
        {"mean_ttft_ms": 100.0, "mean_e2el_ms": 2000.0, "mean_tpot_ms": tpot}
    )
    assert part.apart == STARVED
    assert any("starved client" in caveat for caveat in run.caveats)


@each_format
def test_ttft_far_above_the_servers_is_a_starved_client(tmp_path, reader, write):
    """Mean TTFT of these requests is 0.22 s."""
    known = known_run()
    path = write(tmp_path, known)
    write_scrapes(tmp_path, known, ttft=0.2)
    assert read_one(reader, path).parts[0].apart is None
    write_scrapes(tmp_path, known, ttft=0.1)
    run = read_one(reader, path)
    assert run.parts[0].apart == STARVED
    assert any("the server's own 100 ms" in caveat for caveat in run.caveats)


@each_format
def test_scrapes_of_other_requests_are_not_compared(tmp_path, reader, write):
    known = known_run()
    path = write(tmp_path, known)
    write_scrapes(tmp_path, known, ttft=0.01, requests=55)
    run = read_one(reader, path)
    assert run.parts[0].apart is None
    assert any("count 55 first tokens" in caveat for caveat in run.caveats)


def test_a_server_started_anew_between_the_scrapes_is_refused(tmp_path):
    known = known_run()
    path = write_vllm(tmp_path, known)
    write_scrapes(tmp_path, known)
    (tmp_path / "metrics_before.txt").write_text((tmp_path / "metrics_after.txt").read_text())
    write_scrapes(tmp_path / "other", known, start=0)
    (tmp_path / "metrics_after.txt").write_text((tmp_path / "other" / "metrics_after.txt").read_text())
    with pytest.raises(InputError, match="started anew between the two"):
        vllm_bench.read(path, SCENARIO)


def test_prefix_hits_that_the_file_does_not_explain(tmp_path):
    known = known_run()
    path = write_vllm(tmp_path, known)
    write_scrapes(tmp_path, known, ttft=0.2, hits=0.6)
    run = read_one(vllm_bench, path)
    assert run.parts[0].apart == UNKNOWN_PREFIXES
    assert any("60% of the prompt tokens" in caveat for caveat in run.caveats)
    assert any("enable_prefix_caching of the scenario is false" in caveat for caveat in run.caveats)


def test_aggregates_that_are_not_those_of_the_requests_are_said(tmp_path):
    known = known_run()
    true = by_definition(known)
    right = write_vllm(tmp_path, known, **{name: true[name] for name in ("mean_ttft_ms", "p99_tpot_ms")})
    assert read_one(vllm_bench, right).caveats == ()
    wrong = write_vllm(tmp_path, known, mean_ttft_ms=1.1 * true["mean_ttft_ms"])
    run = read_one(vllm_bench, wrong)
    assert "mean_ttft_ms is" in run.caveats[0]
    assert run.parts[0].measured["mean_ttft_ms"] == pytest.approx(true["mean_ttft_ms"])


def test_half_counted_token_times_are_found_and_the_derived_ones_taken(tmp_path):
    known = known_run()
    run = read_one(inference_perf, write_inference_perf(tmp_path, known, counted_twice=True))
    assert any("time_per_output_token" in c and "(tokens were counted twice)" in c for c in run.caveats)
    assert run.parts[0].measured["mean_tpot_ms"] == pytest.approx(by_definition(known)["mean_tpot_ms"])


def test_vllm_in_a_closed_loop(tmp_path):
    run = read_one(
        vllm_bench,
        write_vllm(
            tmp_path, closed_run(4, 40), request_rate="inf", max_concurrency=4, queue_times=[1.0] * 40
        ),
    )
    assert run.workload.max_concurrency == run.labels["concurrency"] == 4
    assert not run.workload.trace.arrival_ns.any()
    assert run.scenario.workload.max_concurrency == 4


def test_vllm_at_a_rate_behind_a_limit(tmp_path):
    """A limit that never held anything back changes nothing; else what was really sent is replayed."""
    known = known_run()
    free = read_one(vllm_bench, write_vllm(tmp_path, known, max_concurrency=64))
    assert free.workload.max_concurrency is None
    assert free.caveats == ()
    held = read_one(
        vllm_bench, write_vllm(tmp_path, known, max_concurrency=4, queue_times=[0.05] * len(known))
    )
    assert held.workload.max_concurrency is None
    np.testing.assert_allclose(
        held.workload.trace.arrival_ns / NS_PER_S, np.array(known.sent) - known.sent[0], atol=1e-6
    )
    assert "times of sending are replayed" in held.caveats[0]


def test_several_vllm_runs_in_a_file(tmp_path):
    texts = [write_vllm(tmp_path, known_run(seed)).read_text() for seed in (0, 1)]
    path = tmp_path / "runs.json"
    path.write_text("\n".join(texts))
    runs = vllm_bench.read(path, SCENARIO)
    assert [run.name for run in runs] == [f"{path} #1", f"{path} #2"]
    for seed, run in enumerate(runs):
        assert dict(run.parts[0].measured) == pytest.approx(by_definition(known_run(seed)), rel=1e-6)


def test_vllm_without_latencies_sums_the_gaps(tmp_path):
    known = known_run()
    run = read_one(vllm_bench, write_vllm(tmp_path, known, latencies=None))
    assert dict(run.parts[0].measured) == pytest.approx(by_definition(known), rel=1e-6)


def test_answers_in_one_piece_have_an_end_alone(tmp_path):
    known = known_run()
    pieces = Known(known.sent, known.latency, [[0.0] * len(gaps) for gaps in known.gaps], known.inputs)
    run = read_one(vllm_bench, write_vllm(tmp_path, pieces, itls=[[] for _ in known.gaps]))
    (part,) = run.parts
    assert not {name for name in part.measured if "ttft" in name or "tpot" in name}
    assert part.measured["mean_e2el_ms"] == pytest.approx(by_definition(known)["mean_e2el_ms"])
    assert any("not streamed" in caveat for caveat in run.caveats)


def test_a_first_token_no_later_than_its_request_is_refused(tmp_path):
    known = known_run(count=5)
    known.ttft[3] = 0.0
    with pytest.raises(InputError, match="request 3 in order of arrival has its first token no later"):
        vllm_bench.read(write_vllm(tmp_path, known), SCENARIO)


@pytest.mark.parametrize(
    ("strategy", "seats"),
    [
        ({"type_": "concurrent", "streams": 4}, 4),
        ({"type_": "synchronous"}, 1),
        ({"type_": "throughput", "max_concurrency": 8}, 8),
        ({"type_": "constant", "rate": 2, "max_concurrency": 512}, None),
    ],
)
def test_guidellm_loops(tmp_path, strategy, seats):
    run = read_one(guidellm, write_guidellm(tmp_path, known_run(), strategy))
    assert run.workload.max_concurrency == seats


def test_guidellm_several_rates_in_a_file(tmp_path):
    found = [
        json.loads(write_guidellm(tmp_path, known_run(seed)).read_text())["benchmarks"][0] for seed in (0, 1)
    ]
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": found}))
    runs = guidellm.read(path, SCENARIO)
    assert [run.parts[0].measured["mean_ttft_ms"] for run in runs] == pytest.approx(
        [by_definition(known_run(seed))["mean_ttft_ms"] for seed in (0, 1)], rel=1e-4
    )


def test_guidellm_requests_cut_off_at_the_end_are_no_failures(tmp_path):
    run = read_one(guidellm, write_guidellm(tmp_path, known_run(), incomplete=(36, 37, 38, 39)))
    assert run.parts[0].apart is None
    assert "request_throughput" not in run.parts[0].measured
    assert any("4 of 40 requests (10.0%) were cut off at the end" in caveat for caveat in run.caveats)


def test_guidellm_sample_of_the_requests_is_refused(tmp_path):
    made = {"scheduler_metrics": {"requests_made": {"successful": 400}}}
    with pytest.raises(InputError, match="40 of 400 successful requests are recorded"):
        guidellm.read(write_guidellm(tmp_path, known_run(), **made), SCENARIO)


def test_guidellm_of_before_names_times_otherwise(tmp_path):
    path = write_guidellm(tmp_path, known_run())
    new = read_one(guidellm, path).parts[0].measured
    path.write_text(path.read_text().replace("_token_iteration", "_iteration"))
    assert read_one(guidellm, path).parts[0].measured == new


def test_guidellm_without_streaming_is_refused(tmp_path):
    path = write_guidellm(tmp_path, known_run(count=3))
    path.write_text(path.read_text().replace("first_token_iteration", "none"))
    with pytest.raises(InputError, match="no first_token_iteration; run guidellm with streaming"):
        guidellm.read(path, SCENARIO)


@pytest.mark.parametrize(
    ("reader", "write", "late"), [(guidellm, write_guidellm, 0.3), (aiperf, write_aiperf, 300_000_000)]
)
def test_a_client_that_sends_late_is_scored_apart(tmp_path, reader, write, late):
    run = read_one(
        reader, write(tmp_path, known_run(), **{"late" if reader is guidellm else "late_ns": late})
    )
    assert run.parts[0].apart == LATE
    assert any("300 ms after their time on average" in caveat for caveat in run.caveats)


def test_aiperf_leaves_the_warm_up_out(tmp_path):
    known = known_run()
    path = write_aiperf(tmp_path, known, warmup=5)
    run = read_one(aiperf, path)
    assert len(run.workload.trace) == len(known)
    assert "5 warm-up requests are left out" in run.caveats


@pytest.mark.parametrize(
    ("phase", "seats"),
    [
        ({"concurrency": 4}, 4),
        ({"concurrency": 4, "rate": 9.0}, None),
        ({"rate": 9.0}, None),
    ],
)
def test_aiperf_loop_stands_in_its_summary(tmp_path, phase, seats):
    phases = [{"kind": "warmup", "concurrency": 2}, {"kind": "profiling"} | phase]
    path = write_aiperf(tmp_path, closed_run(4, 40), summary={"input_config": {"phases": phases}})
    assert read_one(aiperf, path).workload.max_concurrency == seats


@pytest.mark.parametrize(("reader", "write"), [FORMATS["aiperf"], FORMATS["inference-perf"]])
def test_a_closed_loop_shows_where_the_file_does_not_say(tmp_path, reader, write):
    run = read_one(reader, write(tmp_path, closed_run(4, 40)))
    assert run.workload.max_concurrency == 4
    assert any("the file does not say how it sent" in caveat for caveat in run.caveats)


def times_ns(run):
    sent = np.rint(np.array(run.sent) * 1e9).astype(np.int64)
    return sent, sent + np.rint(np.array(run.latency) * 1e9).astype(np.int64)


@given(seats=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_number_in_flight_of_a_closed_loop(seats, seed):
    sent, ended = times_ns(closed_run(seats, 4 * seats + 8, seed))
    shuffled = np.random.default_rng(seed).permutation(sent.size)
    assert constant_in_flight(sent[shuffled], ended[shuffled]) == seats


@given(seed=st.integers(0, 1000), rate=st.sampled_from([0.05, 0.5, 4.0, 40.0]), count=st.integers(1, 100))
def test_a_poisson_stream_is_no_closed_loop(seed, rate, count):
    assert constant_in_flight(*times_ns(known_run(seed, count, rate=rate))) is None


def test_inference_perf_stages_are_parts(tmp_path):
    """Failed requests count for their stage."""
    known = known_run(count=30, failed=(2,))
    run = read_one(inference_perf, write_inference_perf(tmp_path, known, stages=(10, 20)))
    first, second = run.parts
    assert [dict(part.labels) for part in run.parts] == [
        {"stage": 0, "request_rate": 1.0},
        {"stage": 1, "request_rate": 2.0},
    ]
    assert first.counted.sum() == 9
    np.testing.assert_array_equal(first.counted, ~second.counted)
    ttft = [known.ttft[i] for i in range(10) if i != 2]
    assert first.measured["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(ttft), rel=1e-6)


def test_inference_perf_stages_that_do_not_add_up_are_scored_as_one(tmp_path):
    run = read_one(inference_perf, write_inference_perf(tmp_path, known_run(count=30), stages=(10, 10)))
    assert len(run.parts) == 1
    assert "the stages beside the file count [10, 10] requests, the file 30: scored as one" in run.caveats


def text_of(tokens, seed):
    """Words of four characters and a blank: five characters a token."""
    return "".join(f"{word:04x} " for word in np.random.default_rng(seed).integers(0, 65536, tokens))


@pytest.mark.parametrize(("reader", "write"), [pair for name, pair in FORMATS.items() if name != "vllm"])
def test_prompts_that_share_a_prefix_share_blocks(tmp_path, reader, write):
    known = known_run(count=12)
    known.inputs = [160 + 16 * i for i in range(12)]
    known.prompts = [
        text_of(96, i % 2) + text_of(tokens - 96, 100 + i) for i, tokens in enumerate(known.inputs)
    ]
    run = read_one(reader, write(tmp_path, known))
    hashes = run.workload.trace.hashes
    assert hashes.is_chained()
    assert np.diff(hashes.offsets).tolist() == [-(-tokens // BLOCK_TOKENS) for tokens in known.inputs]
    cached = SCENARIO | {"engine": SCENARIO["engine"] | {"enable_prefix_caching": True}}
    (cached_run,) = reader.read(write(tmp_path, known), cached)
    assert simulate(cached_run.scenario, workload=cached_run.workload).summary["sim"]["prefix_hit_rate"] > 0.2
    for i in range(12):
        for j in range(i):
            same = int((hashes.of(i)[:10] == hashes.of(j)[:10]).sum())
            assert same == (96 // BLOCK_TOKENS if (i - j) % 2 == 0 else 0)
    assert any("which prompts share a prefix follows from their text" in caveat for caveat in run.caveats)


@given(texts=st.lists(st.text("ab", min_size=16, max_size=80), min_size=2, max_size=6))
def test_blocks_are_equal_where_texts_are_and_only_there(texts):
    """One character a token: the law of prefix identity, exactly."""
    lengths = np.array([len(text) for text in texts])
    blocks = prefix_blocks(texts, lengths)
    pairs = [(i, j) for i in range(len(texts)) for j in range(i)]
    if blocks is None:
        assert all(texts[i][:16] != texts[j][:16] for i, j in pairs)
        return
    for i, j in pairs:
        for depth in range(min(lengths[i], lengths[j]) // 16):
            same = texts[i][: 16 * depth + 16] == texts[j][: 16 * depth + 16]
            assert (blocks.of(i)[depth] == blocks.of(j)[depth]) == same


@each_format
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_is_an_error_of_one_line_or_still_a_run(tmp_path_factory, reader, write, data):
    """One value of one record replaced by something else; nothing but InputError ever comes out."""
    path = write(tmp_path_factory.mktemp("run"), known_run(count=4))
    lines = path.read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    document = json.loads(lines[at])
    node, key = document, None
    for _ in range(data.draw(st.integers(1, 7))):
        keys = (
            list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        )
        if not keys:
            break
        parent, key = node, data.draw(st.sampled_from(keys))
        node = parent[key]
    parent[key] = data.draw(
        st.sampled_from([None, [], {}, "x", -1, 1e300, True, [1], {"value": 3}, [[]], float("nan"), 0, 3.5])
    )
    lines[at] = json.dumps(document)
    path.write_text("\n".join(lines))
    said = None
    try:
        assert reader.read(path, SCENARIO)
    except InputError as error:
        said = str(error)
    assert said is None or ("\n" not in said and str(path) in said)


# what was measured

README = {  # means [ms] and counts as the description of the data has them
    "random_rate0.6": (60, 255.2, 27.4, 1651.7),
    "random_rate1.5": (80, 321.6, 47.9, 3272.9),
    "prefix_repetition_rate1.5": (60, 160.8, 28.3, 1039.5),
    "timed_trace_failures": (20, 210.9, 27.9, 797.2),
    "random_rate1.5_rep2": (80, 283.0, 40.1, 2768.8),
}


@pytest.mark.parametrize("name", README)
def test_measured_vllm_runs(name):
    run = read_one(vllm_bench, shared_data("bench_clients", "vllm_bench_serve", name, "result.json"))
    count, ttft, tpot, e2el = README[name]
    (part,) = run.parts
    assert len(run.workload.trace) == count
    found = [part.measured[f"mean_{metric}_ms"] for metric in ("ttft", "tpot", "e2el")]
    assert found == pytest.approx([ttft, tpot, e2el], abs=0.06)
    assert not any("in the file" in caveat for caveat in run.caveats)


def test_measured_starved_client():
    path = shared_data("bench_clients", "vllm_bench_serve", "random_rate1.5_starved_client", "result.json")
    run = read_one(vllm_bench, path)
    (part,) = run.parts
    assert part.apart == STARVED
    assert part.measured["mean_ttft_ms"] == pytest.approx(1916, abs=1)  # the client says 7,911
    assert any("79% of its token gaps" in caveat for caveat in run.caveats)


def test_measured_guidellm_aiperf_and_inference_perf():
    """All of their own aggregates are those of their requests, by our definitions."""
    root = shared_data("bench_clients")
    one = read_one(guidellm, root / "guidellm" / "poisson_rate1.2" / "benchmarks.json")
    assert one.parts[0].measured["mean_ttft_ms"] == pytest.approx(250.2, abs=0.05)
    assert one.parts[0].measured["mean_tpot_ms"] == pytest.approx(30.56, abs=0.005)
    assert one.caveats == ()
    two = read_one(aiperf, root / "aiperf" / "poisson_rate1.2" / "artifacts" / "profile_export.jsonl")
    assert two.parts[0].measured["mean_tpot_ms"] == pytest.approx(35.61, abs=0.005)
    assert two.caveats == ("2 warm-up requests are left out",)
    reports = root / "inference-perf" / "shared_prefix_2stages" / "reports"
    three = read_one(inference_perf, reports / "per_request_lifecycle_metrics.json")
    assert [int(part.counted.sum()) for part in three.parts] == [15, 30]
    assert not any("in the file" in caveat for caveat in three.caveats)
    assert three.workload.trace.hashes is not None


@pytest.mark.parametrize(
    ("reader", "path"),
    [
        (aiperf, ("aiperf", "connection_refused", "artifacts", "profile_export.jsonl")),
        (
            inference_perf,
            ("inference-perf", "connection_refused", "reports", "per_request_lifecycle_metrics.json"),
        ),
    ],
)
def test_measured_total_failure_is_refused(reader, path):
    with pytest.raises(InputError, match="requests failed; no workload is left"):
        reader.read(shared_data("bench_clients", *path), SCENARIO)
