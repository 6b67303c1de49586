"""The formats of clients, each with its reader and a writer, and the metrics of a known run by definition."""

import numpy as np
import pytest

from calibration.serving.readers import aiperf, guidellm, inference_perf, vllm_bench
from tests.calibration.serving.client_files import (
    SCENARIO,
    Known,
    write_aiperf,
    write_guidellm,
    write_inference_perf,
    write_vllm,
)

FORMATS = {
    "vllm": (vllm_bench, write_vllm),
    "guidellm": (guidellm, write_guidellm),
    "aiperf": (aiperf, write_aiperf),
    "inference-perf": (inference_perf, write_inference_perf),
}


each_format = pytest.mark.parametrize(("reader", "write"), FORMATS.values(), ids=FORMATS)


with_gaps = pytest.mark.parametrize(
    ("reader", "write"), [pair for name, pair in FORMATS.items() if name != "guidellm"]
)


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
