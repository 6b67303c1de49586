"""Compare policies or machines on the same requests: what differs, and whether that may be chance.

Replication r holds the same requests in every arm (common random numbers): replication 0 those of the scenario's own
seed, the others those of seeds derived from it. Each arm's metrics are computed per replication over the requests
after the warm-up, by the definitions of a run's summary, and averaged over the replications; so a P99 is the mean of
the replications' P99s. A rate divides by the time in which the requests after the warm-up brought the run forward.
Latencies are those of completed requests; a rejected one has none, and is not good. No arm wins by latency where the
refused shares differ by more than 1%.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.scenario.sections import Scenario
from sim.service import Service, build_service
from sim.simulation import Result
from sim.studies.arms import ArmScenario, build_arms
from sim.studies.flags import engine_flags
from sim.studies.observations import METRICS, Observations, split_metric
from sim.studies.paired_runs import OnRun, PairedRuns
from sim.studies.pairs import Difference, Estimates, verdict
from sim.studies.refusal import unequal
from sim.studies.statistics import CONFIDENCE, DRAWS, Float64, count_blocks, means, mser5, paired_draws
from sim.studies.stream import replication_seeds
from workloads.build import Workload

REPLICATIONS = 5
_BOOTSTRAP = 0xB007  # names the stream of the resampling, below the scenario's seed

Build = Callable[[Scenario], Service]


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison. Counts are over all replications, warm-up included; the hit rate is the first one's."""

    name: str
    directory: str
    set: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    gpus: int
    cost_per_hour: float
    requests: int
    completed: int
    preemptions: int
    prefix_hit_rate: float | None


@dataclass(frozen=True)
class Warmup:
    """How many of the first requests were left out of every replication, of how many, and by which rule.

    `by_arm` is what the rule finds in each arm; the longest counts for all.
    """

    rule: str
    removed: int
    requests: int
    by_arm: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answer; `runs` holds the first replication of each arm, `load` its requests."""

    arms: tuple[Arm, ...]
    differences: tuple[Difference, ...]
    metric: str
    winner: str | None
    verdict: str
    seeds: tuple[int, ...]
    warmup: Warmup
    engine_flags: str | None
    engine_notes: tuple[str, ...]
    warnings: tuple[str, ...]
    runs: tuple[Result, ...]
    load: Workload

    def as_json(self) -> dict[str, Any]:
        """Everything but the runs."""
        return {
            "metric": self.metric,
            "arms": [dict(vars(arm)) for arm in self.arms],
            "differences": [difference.as_json() for difference in self.differences],
            "confidence": CONFIDENCE,
            "winner": self.winner,
            "verdict": self.verdict,
            "engine_flags": self.engine_flags,
            "engine_notes": list(self.engine_notes),
            "replications": len(self.seeds),
            "seeds": list(self.seeds),
            "warmup": dict(vars(self.warmup)),
            "warnings": list(self.warnings),
        }


def compare(
    source: str | Path | Mapping[str, Any],
    vary: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    replications: int = REPLICATIONS,
    metric: str | None = None,
    seed: int | None = None,
    build: Build = build_service,
    on_run: OnRun | None = None,
    draws: int = DRAWS,
) -> Comparison:
    """Run every combination of the values in `vary` (`PATH=A,B`) on the same requests.

    `winner` is the best arm by `metric` (default: request_goodput with an slo, else mean_e2el_ms), if it is shown to
    differ from every other one. `build` makes an arm's service, once; `on_run` is called after each run;
    `draws` are the resamples behind the intervals.
    """
    if replications < 1:
        raise ConfigError(f"--replications {replications}: give at least 1")
    scenarios = build_arms(source, vary, overrides, seed)
    base = scenarios[0].scenario
    metric = _metric(metric, base)
    seeds = replication_seeds(base.seed, replications)
    runs = PairedRuns(scenarios, [build(arm.scenario) for arm in scenarios], seeds, on_run)
    names = [arm.name for arm in scenarios]
    warmup = _warmup(names, runs.observations, metric, base)
    samples = [[sample.since(warmup.removed) for sample in arm] for arm in runs.observations]
    rng = np.random.default_rng(np.random.SeedSequence([base.seed, _BOOTSTRAP]))
    estimates = Estimates(
        names,
        np.array([means(arm) for arm in samples]),
        paired_draws(samples, rng, draws),
        count_blocks(samples[0]),
    )
    known = [name for name in METRICS if name != "request_goodput" or base.slo.limits_ms]
    arms = tuple(_arm(scenario, estimates, at, known, runs) for at, scenario in enumerate(scenarios))
    unfair = unequal(names, [1 - arm.completed / arm.requests for arm in arms], metric)
    winner = None if unfair else estimates.winner(metric)
    flags = None if winner is None else engine_flags(scenarios[winner].scenario, scenarios[winner].set)
    return Comparison(
        arms=arms,
        differences=tuple(
            estimates.difference(arm, 0, name) for arm in range(1, len(arms)) for name in known
        ),
        metric=metric,
        winner=None if winner is None else names[winner],
        verdict=unfair or verdict(estimates, metric),
        seeds=seeds[: runs.replications],
        warmup=warmup,
        engine_flags=flags.flags if flags else None,
        engine_notes=flags.notes if flags else (),
        warnings=(*runs.notes, *_cautions(arms, warmup, runs)),
        runs=tuple(runs.first),
        load=runs.load,
    )


def _metric(metric: str | None, scenario: Scenario) -> str:
    if metric is None:
        return "request_goodput" if scenario.slo.limits_ms else "mean_e2el_ms"
    if metric not in METRICS:
        raise ConfigError(f"--metric {metric}: no such metric; one of {', '.join(METRICS)}")
    if metric == "request_goodput" and not scenario.slo.limits_ms:
        raise ConfigError(
            "--metric request_goodput: needs limits; set slo.ttft_ms, slo.tpot_ms or slo.e2el_ms"
        )
    return metric


def _warmup(
    names: Sequence[str], observations: Sequence[Sequence[Observations]], metric: str, scenario: Scenario
) -> Warmup:
    """The longest warm-up that MSER-5 finds in any arm, in the latency's mean over replications (Welch's view).

    All arms and replications lose the same requests, so that the pairs stay. A load without a steady state (the
    bursts and lulls of a trace, a ramp, all at once) is kept whole: it is what the question is about.
    """
    least = min(len(sample) for arm in observations for sample in arm)
    workload = scenario.workload
    own_pattern = workload.trace is not None and workload.burstiness is None
    if workload.max_concurrency is None and (own_pattern or not workload.constant_rate):
        return Warmup("none: the load has no steady state, all of it counts", 0, least, {})
    latency = (split_metric(metric) or ("", "e2el"))[1]
    found = {
        name: mser5(_average([getattr(sample, f"{latency}_ms")[:least] for sample in arm]))
        for name, arm in zip(names, observations, strict=True)
    }
    return Warmup(f"MSER-5 on {latency} in order of arrival", max(found.values()), least, found)


def _average(series: Sequence[Float64]) -> Float64:
    """Mean over replications of each request's value, over those that have one."""
    stacked = np.array(series)
    known = ~np.isnan(stacked)
    counts = known.sum(axis=0)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    return np.divide(total, counts, out=np.full(counts.shape, np.nan), where=counts > 0)


def _arm(scenario: ArmScenario, estimates: Estimates, at: int, known: Sequence[str], runs: PairedRuns) -> Arm:
    cluster, seen = scenario.scenario.cluster, runs.observations[at]
    gpus = cluster.replicas * scenario.scenario.hardware.tensor_parallel_size
    return Arm(
        name=scenario.name,
        directory=f"arms/{scenario.directory}",
        set=scenario.set,
        metrics={name: estimates.value(at, name) for name in known},
        gpus=gpus,
        cost_per_hour=gpus * cluster.price_per_gpu_hour,
        requests=sum(len(sample) for sample in seen),
        completed=sum(int(sample.completed.sum()) for sample in seen),
        preemptions=runs.preemptions[at],
        prefix_hit_rate=runs.first[at].summary["sim"]["prefix_hit_rate"],
    )


def _cautions(arms: Sequence[Arm], warmup: Warmup, runs: PairedRuns) -> list[str]:
    """What a reader of the numbers should know."""
    found: list[str] = []
    restless = [name for name, removed in warmup.by_arm.items() if removed >= 0.45 * warmup.requests]
    if restless:
        found.append(
            f"{', '.join(restless)}: latencies still change half-way through the run; no steady state was reached, "
            "most likely for overload"
        )
    if len({arm.completed for arm in arms}) > 1:
        counts = ", ".join(f"{arm.name} {arm.requests - arm.completed}" for arm in arms)
        found.append(
            f"requests refused by the engine: {counts} of {arms[0].requests}; latencies are those of the others"
        )
    if warmup.requests - warmup.removed < 1000:
        found.append(
            f"{warmup.requests - warmup.removed} requests a replication are few for a P99 (it takes about 1,000)"
        )
    for name, result in zip((arm.name for arm in arms), runs.first, strict=True):
        own = result.summary["sim"]
        found += [f"{name}: extrapolated {message}" for message in own["extrapolated"].values()]
        known = runs.load.trace.warnings
        found += [f"{name}: {message}" for message in own["warnings"] if message not in known]
    return [*found, *runs.load.trace.warnings]
