"""Plan a deployment: the greatest request rate within the SLOs, and the fewest replicas for the scenario's rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.service import Service, build_service
from sim.studies.operating_point import (
    MOST_REPLICATIONS,
    STABLE,
    WARMUP,
    OperatingPoints,
    Point,
)
from sim.studies.search import fewest, greatest
from sim.studies.slo import Slo, resolve_slos

MOST_REPLICAS = 1024
RATE_RATIO = 1.01
_LIGHTEST = 0.01  # of the saturation rate: a load at which requests hardly meet
_P99_REQUESTS = 1000
_THIN_MARGIN = 0.05
_WIDE = 1.05  # from here on a range of rates that the runs do not settle is worth a word


@dataclass(frozen=True)
class Plan:
    """The answer. `max_request_rate` is for the scenario's replicas, `replicas` for the scenario's rate.

    stability_margin          how far the greatest rate stays below the rate at which the queue stops draining
    planned_stability_margin  the same of the scenario's rate on the planned replicas
    """

    slo: Mapping[str, float]
    slo_met: bool
    request_rate: float
    scenario_replicas: int
    max_request_rate: float
    saturation_rate: float
    stability_margin: float | None
    replicas: int | None
    gpus: int | None
    cost_per_hour: float | None
    planned_stability_margin: float | None
    binding_constraint: str
    explanation: str
    curve: tuple[Point, ...]
    num_requests: int
    replications: int
    seed: int
    warnings: tuple[str, ...]
    scenario: Scenario
    service: Service

    def as_json(self) -> dict[str, Any]:
        """Everything but the scenario and its service."""
        fields = {name: value for name, value in vars(self).items() if name not in ("scenario", "service")}
        return fields | {
            "slo": dict(self.slo),
            "curve": [point.as_json() for point in self.curve],
            "warnings": list(self.warnings),
        }


def plan(
    source: str | Path | Mapping[str, Any],
    slo: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    replications: int = MOST_REPLICATIONS,
    rate_ratio: float = RATE_RATIO,
    build: Callable[[Scenario], Service] = build_service,
    on_run: Callable[[str], None] | None = None,
) -> Plan:
    """Search both answers. `slo` are limits as `p99_ttft_ms=1000`; by default the scenario's own, for the P99.

    At most `replications` runs near the edge; the greatest rate is found to within `rate_ratio`; `build` makes
    the service; `on_run` is called after each run.
    """
    if replications < 1:
        raise ConfigError(f"--replications {replications}: give at least 1")
    scenario = load_scenario(source, overrides, seed=seed)
    slos = resolve_slos(slo, scenario.slo)
    service = build(scenario)
    points = OperatingPoints(scenario, service, slos, replications=replications, on_run=on_run)
    rate, here = points.stream.rate, scenario.cluster.replicas
    saturation = points.saturation_rate(here)
    most = None
    if points.refusal is None:
        most = greatest(
            lambda value: points.at(value, here).met,
            STABLE * saturation,
            floor=_LIGHTEST * saturation,
            ratio=rate_ratio,
        )
    else:
        points.at(rate, here)  # what the others would see
    replicas = None if most is None else _fewest(points, rate, here, most)
    if most is not None:  # the scenario's own rate may be a better answer, by less than the search resolves
        most = max(p.request_rate for p in points.evaluated.values() if p.replicas == here and p.met)
    gpus = None if replicas is None else replicas * scenario.hardware.tensor_parallel_size
    binding, explanation = _binding(points, slos, here, most, replicas)
    result = Plan(
        slo={each.metric: each.limit_ms for each in slos},
        slo_met=replicas is not None,
        request_rate=rate,
        scenario_replicas=here,
        max_request_rate=most or 0.0,
        saturation_rate=saturation,
        stability_margin=None if most is None else 1 - most / saturation,
        replicas=replicas,
        gpus=gpus,
        cost_per_hour=None if gpus is None else gpus * scenario.cluster.price_per_gpu_hour,
        planned_stability_margin=None if replicas is None else 1 - rate / points.saturation_rate(replicas),
        binding_constraint=binding,
        explanation=explanation,
        curve=tuple(
            sorted(points.evaluated.values(), key=lambda point: (point.replicas, point.request_rate))
        ),
        num_requests=points.stream.num_requests,
        replications=max(point.replications for point in points.evaluated.values()),
        seed=scenario.seed,
        warnings=(),
        scenario=scenario,
        service=service,
    )
    return _with_warnings(result, points)


def _fewest(points: OperatingPoints, rate: float, here: int, most: float) -> int | None:
    """Fewest replicas for the scenario's rate, where `here` of them manage `most`."""
    least = max(1, math.ceil(rate / points.saturation_rate(1) / STABLE * (1 - 1e-12)))
    guess = math.ceil(rate * here / most)
    return fewest(lambda count: points.at(rate, count).met, least=least, most=MOST_REPLICAS, guess=guess)


def _binding(
    points: OperatingPoints, slos: Sequence[Slo], here: int, most: float | None, replicas: int | None
) -> tuple[str, str]:
    """What keeps the rate of the scenario's replicas from being greater: a name, and a sentence."""
    if points.refusal is not None:
        return points.refusal.binding_constraint, points.refusal.explanation
    failing = [point for point in points.evaluated.values() if point.replicas == here and not point.met]
    drains = points.saturation_rate(here)
    if most is not None and (not failing or most >= STABLE * drains):
        short = points.saturation.short_of_kv
        text = f"above {most:.4g} requests/s the queue no longer drains (it drains at {drains:.4g}/s)"
        binding = "stability"
    else:
        edge = min((point for point in failing if point.stable), key=lambda point: point.request_rate)
        metrics = edge.metrics or {}
        worst = max(slos, key=lambda slo: metrics[slo.metric] / slo.limit_ms)
        text = f"{worst.metric} is {metrics[worst.metric]:,.4g} ms at {edge.request_rate:.4g} requests/s on "
        text += f"{count_replicas(here)}, above the limit of {worst.limit_ms:g}"
        if most is None:
            return worst.metric, f"even at a load so light that requests hardly meet, {text}."
        binding, short = worst.metric, edge.short_of_kv
    if short:
        binding, text = f"{binding} through kv_cache", f"{text}; requests wait for KV blocks there"
    if replicas is None:
        text += f"; not even {MOST_REPLICAS} replicas carry {points.stream.rate:.4g} requests/s"
    return binding, f"{text}."


def _close_call(result: Plan, points: OperatingPoints) -> list[str]:
    """Say when the number of replicas hangs on a point whose runs do not settle it."""
    for count in (result.replicas, (result.replicas or 0) - 1):
        point = points.evaluated.get((result.request_rate, count or 0))
        if point is not None and point.stable and not point.sure:
            verb = "just keep" if point.met else "just miss"
            text = (
                f"{count_replicas(point.replicas)} {verb} the limits at {point.request_rate:.4g} requests/s"
            )
            return [f"a close call: {text}, by less than {point.replications} runs can tell"]
    return []


def _unsettled(result: Plan) -> list[str]:
    """Say between which rates the runs do not settle whether the limits are met, where that is a wide range."""
    here = [point for point in result.curve if point.replicas == result.scenario_replicas and point.sure]
    low = max((point.request_rate for point in here if point.met), default=0.0)
    high = min((point.request_rate for point in here if not point.met), default=math.inf)
    unsure = [p for p in result.curve if p.replicas == result.scenario_replicas and not p.sure]
    if not unsure or not result.max_request_rate or high <= low * _WIDE:
        return []
    span = [point.request_rate for point in unsure]
    ends = f"from {min(span):.4g} to {max(span):.4g} requests/s"
    text = f"{ends} {result.replications} runs a rate do not settle whether the limits are met; their mean decided"
    return [f"{text} (more requests or --replications would narrow that)"]


def count_replicas(count: int | None) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{count} replica{'' if count == 1 else 's'}"


def _with_warnings(result: Plan, points: OperatingPoints) -> Plan:
    """Add what a reader of the numbers should know."""
    found: list[str] = []
    ran = [point for point in result.curve if point.stable]
    fewest_requests = min((point.num_requests for point in ran), default=result.num_requests)
    tail = [metric for metric in result.slo if metric.startswith("p9")]
    counted = round(fewest_requests * (1 - WARMUP if points.stream.can_draw else 1))
    if tail and counted < _P99_REQUESTS:
        found.append(
            f"{counted} requests a run are few for {tail[0]}; give workload.num_requests of "
            f"{math.ceil(_P99_REQUESTS / (1 - WARMUP))} or more"
        )
    margin = result.stability_margin
    if margin is not None and margin < _THIN_MARGIN:
        found.append(
            f"the greatest rate is only {margin:.1%} below saturation, where a queue takes long to settle: a "
            "longer run would show higher latencies, and with a few percent more load it never does"
        )
    planned = result.planned_stability_margin
    if planned is not None and planned < _THIN_MARGIN:
        found.append(
            f"{count_replicas(result.replicas)} leave only {planned:.1%} to saturation at the planned rate"
        )
    found += [*_close_call(result, points), *_unsettled(result)]
    if not points.random:
        found.append("the workload has no randomness: every point is one run, and other days may differ")
    if points.refusal is None and (
        refused := max(
            (point.refused / (point.replications * point.num_requests) for point in ran), default=0.0
        )
    ):
        found.append(
            f"{refused:.1%} of the requests are refused by the engine; a percentile counts them as slower than any "
            "other, a mean is that of the others"
        )
    if points.saturation.num_requests < 8 * points.max_num_seqs:
        found.append(
            f"saturation is judged from {points.saturation.num_requests} requests, few for {points.max_num_seqs} "
            "sequences at once; it may be underestimated"
        )
    found += [f"extrapolated {message}" for message in points.extrapolated.values()]
    return Plan(**{**vars(result), "warnings": tuple(found)})
