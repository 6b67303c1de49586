"""Peak memory and time of large runs, each in a process of its own: `python tests/benchmarks/bench_memory.py`"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, resource, sys, time
from sim.scenario.reading import load_scenario
from sim.service import build_service
from sim.simulation import build_load, simulate
raw = json.loads(sys.argv[1])
begun = time.perf_counter()
scenario = load_scenario(raw)
load, service = build_load(scenario), build_service(scenario)
ready = time.perf_counter()
summary = simulate(scenario, service, load).summary
print(json.dumps({
    "requests": summary["num_prompts"], "replicas": summary["sim"]["replicas"], "steps": summary["sim"]["steps"],
    "load_s": round(ready - begun, 2), "simulate_s": round(time.perf_counter() - ready, 2),
    "peak_MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
}))
"""


def measure(replicas: int, requests: int) -> dict[str, float]:
    raw = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200_sxm"},
        "cluster": {"replicas": replicas},
        "workload": {"trace": "azure-conv", "num_requests": requests, "request_rate": 2.75 * replicas},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(raw)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    for replicas, requests in ((2, 19_366), (32, 100_000), (32, 1_000_000)):
        print(json.dumps(measure(replicas, requests)), flush=True)
