"""What a confirmation found, and the verdict: pure, of numbers alone.

Per metric: the simulated value, at the pace that the machine had beside each run, the mean of the measured ones with
Student's interval over the repetitions, and the relative error. Gains are an arm's against another's, positive where
the second arm is better: measured ones paired by repetition, simulated ones at one pace for all arms, so that no drift
of the machine is taken for a gain. The noise of a gain is half the width of the interval of the measured one.

An ordering holds where simulated and measured gain have the same sign; it is judged only where the simulated gain
exceeds the noise, and so never from one repetition. Where nothing is judged, nothing is said to hold. A gain holds
where the simulated one lies in the measured interval, or the measured one is at least half and at most twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sim.errors import ConfigError
from sim.studies.observations import higher_is_better
from sim.studies.statistics import CONFIDENCE, t_half_width

Metrics = Mapping[str, float]
"""A value of each of METRICS."""

METRICS: Final = (
    "mean_ttft_ms",
    "p90_ttft_ms",
    "mean_tpot_ms",
    "p90_tpot_ms",
    "mean_e2el_ms",
    "p90_e2el_ms",
    "mean_itl_ms",
    "output_throughput",
)
TOLERANCE: Final[Mapping[str, float]] = {
    "mean_tpot_ms": 0.15,
    "mean_e2el_ms": 0.15,
    "p90_tpot_ms": 0.25,
    "p90_e2el_ms": 0.25,
}
"""Relative errors up to which a simulated metric counts as right."""
_HALF, _TWICE = 0.5, 2.0


@dataclass(frozen=True)
class ArmOutcome:
    """One arm. `interval` is of the measured mean, None with one repetition; `within` says what keeps its tolerance.

    at_one_pace   simulated metrics at the pace that all arms share
    others_share  of the machine's cores, busy with other work, in each repetition
    """

    name: str
    directory: str
    simulated: Metrics
    measured: Metrics
    interval: Mapping[str, tuple[float, float] | None]
    error: Metrics
    within: Mapping[str, bool]
    repetitions: Sequence[Metrics]
    simulations: Sequence[Metrics]
    at_one_pace: Metrics
    others_share: Sequence[float]
    steps: int
    replayed_steps: int


@dataclass(frozen=True)
class Comparison:
    """One arm against another by the deciding metric; a gain is positive where `arm` is better than `base`."""

    arm: str
    base: str
    gain_simulated: float
    gain_measured: float
    interval: tuple[float, float] | None
    noise: float | None
    judged: bool
    ordering_held: bool
    gain_held: bool


@dataclass(frozen=True)
class Outcome:
    """What a confirmation found; `calibration` is what prices the steps, `notes` what a reader should know."""

    device: Mapping[str, Any]
    metric: str
    arms: Sequence[ArmOutcome]
    comparisons: Sequence[Comparison]
    calibration: Mapping[str, Any]
    seconds: float
    notes: Sequence[str]

    @property
    def judged(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.judged]

    @property
    def ordering_held(self) -> bool | None:
        """Whether every judged ordering held; None where none was judged."""
        return all(one.ordering_held for one in self.judged) if self.judged else None

    @property
    def gain_held(self) -> bool | None:
        """Whether every judged gain held; None where none was judged."""
        return all(one.gain_held for one in self.judged) if self.judged else None

    @property
    def refuted(self) -> bool:
        """Whether the device said no to something that was judged."""
        return self.ordering_held is False or self.gain_held is False

    @property
    def accurate(self) -> bool:
        """Whether every metric that has a tolerance is within it, in every arm."""
        return all(verdict for arm in self.arms for verdict in arm.within.values())

    def repetition_held(self, number: int) -> bool:
        """The same verdict of one repetition alone: tolerances kept, and the judged orderings as simulated."""
        for arm in self.arms:
            simulated, measured = arm.simulations[number], arm.repetitions[number]
            if any(abs(simulated[name] / measured[name] - 1) > limit for name, limit in TOLERANCE.items()):
                return False
        by_name = {arm.name: arm.repetitions[number] for arm in self.arms}
        gains = [
            (one.gain_simulated, _gain(by_name[one.arm], by_name[one.base], self.metric))
            for one in self.judged
        ]
        return all((simulated > 0) == (measured > 0) for simulated, measured in gains)

    @property
    def leading(self) -> Comparison:
        """The comparison with the first arm that differs most in simulation."""
        against_first = [one for one in self.comparisons if one.base == self.arms[0].name]
        return max(against_first, key=lambda one: abs(one.gain_simulated))

    def as_json(self) -> dict[str, Any]:
        leading = self.leading
        return {
            "device": dict(self.device),
            "metric": self.metric,
            "arms": [_plain(vars(arm)) for arm in self.arms],
            "comparisons": [_plain(vars(one)) for one in self.comparisons],
            "confidence": CONFIDENCE,
            "ordering_held": self.ordering_held,
            "gain_held": self.gain_held,
            "gain_simulated": leading.gain_simulated,
            "gain_measured": leading.gain_measured,
            "gain_interval": None if leading.interval is None else list(leading.interval),
            "gain_noise": leading.noise,
            "gain_judged": leading.judged,
            "accurate": self.accurate,
            "repetitions_held": [
                self.repetition_held(number) for number in range(len(self.arms[0].repetitions))
            ],
            "tolerance": dict(TOLERANCE),
            "calibration": dict(self.calibration),
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def compared_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """METRICS of a run's summary; each has to have a value above 0, since errors are relative."""
    values = {name: summary[name] for name in METRICS}
    lacking = [name for name, value in values.items() if value is None or value <= 0]
    if lacking:
        raise ConfigError(
            f"workload: gives no {lacking[0]}, and a confirmation compares it; let requests have answers"
        )
    return values


def arm_outcome(
    name: str,
    directory: str,
    *,
    repetitions: Sequence[Metrics],
    simulations: Sequence[Metrics],
    at_one_pace: Metrics,
    others_share: Sequence[float],
    steps: int,
    replayed_steps: int,
) -> ArmOutcome:
    """Means, intervals and errors of an arm; one simulation for each repetition, at the pace of that time."""
    expected, measured, interval = {}, {}, {}
    for metric in METRICS:
        values = [repetition[metric] for repetition in repetitions]
        expected[metric] = float(np.mean([simulation[metric] for simulation in simulations]))
        measured[metric] = float(np.mean(values))
        half = t_half_width(values)
        interval[metric] = None if math.isinf(half) else (measured[metric] - half, measured[metric] + half)
    error = {metric: expected[metric] / measured[metric] - 1 for metric in METRICS}
    return ArmOutcome(
        name=name,
        directory=directory,
        simulated=expected,
        measured=measured,
        interval=interval,
        error=error,
        within={metric: abs(error[metric]) <= limit for metric, limit in TOLERANCE.items()},
        repetitions=repetitions,
        simulations=simulations,
        at_one_pace=at_one_pace,
        others_share=others_share,
        steps=steps,
        replayed_steps=replayed_steps,
    )


def compare_arms(arm: ArmOutcome, base: ArmOutcome, metric: str) -> Comparison:
    """Weigh an arm against another by one metric."""
    simulated = _gain(arm.at_one_pace, base.at_one_pace, metric)
    gains = [_gain(a, b, metric) for a, b in zip(arm.repetitions, base.repetitions, strict=True)]
    measured, half = float(np.mean(gains)), t_half_width(gains)
    noise = None if math.isinf(half) else half
    judged = noise is not None and abs(simulated) > noise
    held = (simulated > 0) == (measured > 0)
    inside = noise is not None and abs(simulated - measured) <= noise
    alike = held and _HALF <= measured / simulated <= _TWICE if simulated else False
    return Comparison(
        arm=arm.name,
        base=base.name,
        gain_simulated=simulated,
        gain_measured=measured,
        interval=None if noise is None else (measured - noise, measured + noise),
        noise=noise,
        judged=judged,
        ordering_held=held,
        gain_held=inside or alike,
    )


def _gain(arm: Metrics, base: Metrics, metric: str) -> float:
    ratio = arm[metric] / base[metric]
    return ratio - 1 if higher_is_better(metric) else 1 - ratio


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with mappings and pairs that JSON knows."""

    def plain(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return {key: plain(value) for key, value in values.items()}
