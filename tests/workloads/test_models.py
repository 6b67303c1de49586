"""Shipped models against their own files, and against the traces where those are at hand."""

from collections import OrderedDict

import numpy as np
import pytest

from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.model import SHIPPED, load_model
from workloads.model_fit import fit_model
from workloads.prefixes import infinite_cache_hit_rate
from workloads.readers import read_trace
from workloads.streams import Streams
from workloads.trace import Trace

FILES = {
    "azure-conv": "azure_2023_conv.csv",
    "azure-code": "azure_2023_code.csv",
    "mooncake-conv": "mooncake_fast25_conversation.jsonl",
    "arxiv-summarization": "vidur_arxiv_summarization.csv",
}


def draw(name, count, seed=5):
    inputs, outputs, hashes, _ = load_model(name).draw_requests(Streams(np.random.SeedSequence(seed)), count)
    return inputs, outputs, hashes


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_small_and_name_source_and_licence(name):
    model = load_model(name)
    assert len(model.text) < 8000
    assert model.name == name
    assert model.licence
    assert "@" in model.source


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_what_the_fit_gives(data, name):
    model = load_model(name)
    labels = {"name": name, "source": model.source, "licence": model.licence, "note": model.note}
    assert fit_model(read_trace(data / "traces" / FILES[name]), **labels).text == model.text


@pytest.mark.parametrize("name", SHIPPED)
def test_lengths_are_those_of_the_trace(data, name):
    trace = read_trace(data / "traces" / FILES[name])
    inputs, outputs, _ = draw(name, 200_000)
    for real, drawn in ((trace.input_tokens, inputs), (trace.output_tokens, outputs)):
        assert drawn.mean() == pytest.approx(real.mean(), rel=0.02)
        assert drawn.std() == pytest.approx(real.std(), rel=0.05)
        for q in (50, 90, 99):
            assert np.percentile(drawn, q) == pytest.approx(np.percentile(real, q), rel=0.04), q
        assert real.min() <= drawn.min()
        assert drawn.max() <= real.max()
    correlation = np.corrcoef(trace.input_tokens, trace.output_tokens)[0, 1]
    assert np.corrcoef(inputs, outputs)[0, 1] == pytest.approx(correlation, abs=0.04)


def figures(times):
    """Gap quantiles and CV, dispersion of the counts in 1 s, 10 s and 60 s, duration."""
    gaps = np.diff(times) / 1e9
    counts = [np.bincount(times // (seconds * 10**9)) for seconds in (1, 10, 60)]
    return np.array(
        [
            *np.quantile(gaps, (0.5, 0.9, 0.99)),
            gaps.std() / gaps.mean(),
            *(count.var() / count.mean() for count in counts),
            times[-1] / 1e9,
        ]
    )


@pytest.mark.parametrize("name", ["azure-conv", "azure-code", "mooncake-conv"])
def test_arrivals_are_those_of_the_trace(data, name):
    """Means of ten draws; counts in 60 s vary by a fifth from draw to draw."""
    trace = read_trace(data / "traces" / FILES[name])
    draws = [
        build_workload(parse_workload({"trace": name}), np.random.SeedSequence(s)).trace for s in range(10)
    ]
    assert all(len(drawn) == len(trace) for drawn in draws)
    p50, p90, p99, cv, *dispersion, duration = np.mean([figures(drawn.arrival_ns) for drawn in draws], axis=0)
    real = figures(trace.arrival_ns)
    assert [p50, p90, p99] == pytest.approx(real[:3], rel=0.15)
    assert cv == pytest.approx(real[3], rel=0.1)
    assert dispersion[:2] == pytest.approx(real[4:6], rel=0.15)
    assert dispersion[2] == pytest.approx(real[6], rel=0.4 if name == "mooncake-conv" else 0.15)
    assert duration == pytest.approx(real[7], rel=0.03)


def waits(times, service_ns):
    """Waiting times at one server, first come first served (Lindley)."""
    lags = np.concatenate([[0], np.cumsum(service_ns - np.diff(times))])
    return lags - np.minimum.accumulate(lags)


def test_azure_code_queues_as_its_trace(data):
    """At one server with 95 ms a request; gamma gaps of the same CV make the median wait more than twice as long."""
    trace = read_trace(data / "traces" / FILES["azure-code"])
    arrivals = load_model("azure-code").arrivals
    gamma = arrivals.model_copy(update={"gaps": None})

    def median(model):
        draws = [model.process().first(np.random.default_rng(s), len(trace)) for s in range(10)]
        return np.mean([np.median(waits(drawn, 95_000_000)) for drawn in draws])

    real = np.median(waits(trace.arrival_ns, 95_000_000))
    assert median(arrivals) == pytest.approx(real, rel=0.25)
    assert median(gamma) > 2 * real


def lru_hit_rate(hashes, capacity):
    cache = OrderedDict()
    hits = 0
    for block in hashes.ids.tolist():
        if block in cache:
            hits += 1
            cache.move_to_end(block)
        else:
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits / hashes.ids.size


def test_mooncake_prefixes_hit_as_in_the_trace(data):
    trace = read_trace(data / "traces" / FILES["mooncake-conv"])
    _, _, hashes = draw("mooncake-conv", len(trace))
    assert hashes.is_chained()
    assert infinite_cache_hit_rate(trace.hashes) == pytest.approx(0.3664, abs=0.0001)
    assert infinite_cache_hit_rate(hashes) == pytest.approx(0.3664, abs=0.03)
    for capacity in (2000, 8000, 20_000, 50_000):
        real, drawn = (lru_hit_rate(which, capacity) for which in (trace.hashes, hashes))
        assert drawn == pytest.approx(real, abs=0.03), capacity


def test_a_rate_is_the_rate_of_the_requests_asked_for():
    """The trace begins with quiet minutes; a run of its first 2,000 requests at 8/s must still offer 8/s."""
    section = {"trace": "azure-conv", "request_rate": 8.0, "num_requests": 2000}
    spans = [
        build_workload(parse_workload(section), np.random.SeedSequence(seed)).trace.duration_ns / 1e9
        for seed in range(20)
    ]
    assert np.mean(spans) == pytest.approx(250, rel=0.02)


def test_the_fit_recovers_what_it_drew(rng):
    """A model of a draw of a model gives the same figures again."""
    first = load_model("mooncake-conv")
    count = 20_000
    streams = Streams(np.random.SeedSequence(8))
    inputs, outputs, hashes, _ = first.draw_requests(streams, count)
    arrival = first.arrivals.process().first(rng, count)
    trace = Trace.build(arrival, inputs, outputs, hashes=hashes)
    again = fit_model(trace, name="again", source="x", licence="y")
    assert again.arrivals.tick_s == first.arrivals.tick_s
    assert again.arrivals.rate == pytest.approx(first.arrivals.rate, rel=0.05)
    assert again.arrivals.burstiness == pytest.approx(first.arrivals.burstiness, rel=0.2)
    assert again.prefixes.root_blocks == first.prefixes.root_blocks
    assert np.mean(again.prefixes.share) == pytest.approx(np.mean(first.prefixes.share), rel=0.05)
    assert again.prefixes.age[16] == pytest.approx(first.prefixes.age[16], rel=0.2)


def test_too_short_for_a_model():
    with pytest.raises(Exception, match="x: 3 requests are too few for a model; at least 100 are needed"):
        fit_model(Trace.build([0, 1, 2], [1] * 3, [1] * 3), name="n", source="x", licence="y")
