"""Measured runs, simulated blind from their inputs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.measured_run import METRICS, MeasuredRun
from sim.metrics import Requests, latency_statistics
from sim.profile import PredictionError, Profile
from sim.service import build_service
from sim.simulation import build_load, simulate_requests

_ENOUGH_REQUESTS: Final = 400
"""Drawn workloads are drawn anew until so many requests are behind a mean; measured runs of few requests stay noisy."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the twin says of one run.

    parts           metric -> value, for each part of the run (of a run without results: for all of its requests)
    profile_hash    of the costs that it stands on
    refused         requests that could never be served
    errors          what is known of the profile's error
    """

    run: MeasuredRun
    parts: tuple[dict[str, float], ...]
    profile_hash: str
    refused: int
    errors: tuple[PredictionError, ...] = ()

    def interval(self, metric: str, predicted: float) -> tuple[float, float] | None:
        """Say between which values a measurement lies with a probability of 90%; None where nothing is known."""
        return next((error.interval(predicted) for error in self.errors if error.metric == metric), None)


def predict(run: MeasuredRun, profile: Profile | None = None) -> Prediction:
    """Simulate the run; with a drawn workload several seeds, averaged, where it has few requests.

    A `profile` stands in for that of the scenario: one fitted without the run's curve, say.
    """
    service = build_service(run.scenario, profile)
    masks = [part.counted for part in run.parts] or [None]
    drawn: list[list[dict[str, float]]] = []
    refused = 0
    for seed in range(seeds_of(run)):
        scenario = run.scenario.model_copy(update={"seed": run.scenario.seed + seed})
        workload = run.workload or build_load(scenario)
        requests = simulate_requests(scenario, service, workload)
        refused += int((~requests.completed).sum())
        drawn.append([metrics_of(requests, mask) for mask in masks])
    parts = tuple(_mean([one[i] for one in drawn]) for i in range(len(masks)))
    return Prediction(run, parts, service.profile.content_hash, refused, service.errors)


def predict_all(
    runs: Sequence[MeasuredRun],
    profiles: Sequence[Profile | None] | None = None,
    *,
    processes: int | None = None,
) -> Iterator[Prediction]:
    """Predict many runs, in their order, on all cores; each with a profile of its own where they are given."""
    tasks = list(zip(runs, profiles or [None] * len(runs), strict=True))
    count = min(processes or os.cpu_count() or 1, len(tasks))
    if count <= 1:
        yield from (predict(run, profile) for run, profile in tasks)
        return
    with Pool(count, initializer=_leave_interrupts) as pool:
        for run, facts in zip(runs, pool.imap(_facts, tasks, chunksize=1), strict=True):
            yield Prediction(run, *facts)  # whatever happens here, the pool ends its processes


def _leave_interrupts() -> None:
    """Let the parent alone act on Ctrl-C, which goes to all processes of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _facts(
    task: tuple[MeasuredRun, Profile | None],
) -> tuple[tuple[dict[str, float], ...], str, int, tuple[PredictionError, ...]]:
    """Predict in another process; the run need not come back."""
    done = predict(*task)
    return done.parts, done.profile_hash, done.refused, done.errors


def metrics_of(requests: Requests, counted: NDArray[np.bool_] | None = None) -> dict[str, float]:
    """Latencies [ms] and rates [1/s] over the completed requests that count, by the definitions of `sim.metrics`.

    The time of a rate runs from the first counted arrival to the last counted token.
    """
    chosen = requests.completed if counted is None else requests.completed & counted
    part = Requests({name: column[chosen] for name, column in requests.columns.items()})
    found = {
        key: value
        for name, values in (
            ("ttft", part.ttft_ns.astype(np.float64)),
            ("tpot", part.tpot_ns[~np.isnan(part.tpot_ns)]),
            ("e2el", part.e2el_ns.astype(np.float64)),
        )
        for key, value in latency_statistics(name, values).items()
        if key in METRICS and value is not None
    }
    if len(part):
        seconds = 1e-9 * float(part.last_token_ns.max() - part.arrival_ns.min())
        found["request_throughput"] = len(part) / seconds
        found["output_throughput"] = float(part.output_tokens.sum()) / seconds
    return found


def seeds_of(run: MeasuredRun) -> int:
    """How many workloads are drawn for the run; one where its requests were recorded."""
    if run.workload is not None:
        return 1
    return math.ceil(_ENOUGH_REQUESTS / (run.scenario.workload.num_requests or _ENOUGH_REQUESTS))


def _mean(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    every = list(parts)
    return {key: float(np.mean([one[key] for one in every if key in one])) for key in every[0]}
