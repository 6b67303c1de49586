"""What of a client's record can be trusted, and what is said of the rest."""

import pytest

from calibration.serving.readers import aiperf, guidellm, inference_perf, vllm_bench
from calibration.serving.readers.client_judgement import LATE, STARVED, SURVIVORS, UNKNOWN_PREFIXES
from tests.calibration.serving.client_files import (
    SCENARIO,
    Known,
    known_run,
    write_aiperf,
    write_guidellm,
    write_inference_perf,
    write_scrapes,
    write_vllm,
)
from tests.calibration.serving.client_formats import by_definition, each_format, read_one, with_gaps
from workloads.errors import InputError


def glued(known: Known):
    """The same run through a client that gets its chunks in bursts."""
    gaps = [[1e-5] * (len(gap) - 1) + [sum(gap)] if gap else [] for gap in known.gaps]
    return Known(known.sent, [20 * ttft for ttft in known.ttft], gaps, known.inputs, known.failed)


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
    ("reader", "write", "late"), [(guidellm, write_guidellm, 0.3), (aiperf, write_aiperf, 300_000_000)]
)
def test_a_client_that_sends_late_is_scored_apart(tmp_path, reader, write, late):
    run = read_one(
        reader, write(tmp_path, known_run(), **{"late" if reader is guidellm else "late_ns": late})
    )
    assert run.parts[0].apart == LATE
    assert any("300 ms after their time on average" in caveat for caveat in run.caveats)
