"""A decision made in simulation, repeated on a device: how far the metrics were off, and whether the winner held.

Every arm runs several times on the device, in turns with the others and with calibration, and once in simulation, on
the same requests at the same times. Per metric: the simulated value, at the pace that the machine had beside each run,
the mean of the measured ones with Student's interval over the repetitions, and the relative error. Gains are an arm's
against another's, positive where the second arm is better: measured ones paired by repetition, simulated ones at one
pace for all arms, so that no drift of the machine is taken for a gain. The noise of a gain is half the width of the
interval of the measured one.

An ordering holds where simulated and measured gain have the same sign; it is judged only where the simulated gain
exceeds the noise, and so never from one repetition. Where nothing is judged, nothing is said to hold. A gain holds
where the simulated one lies in the measured interval, or the measured one is at least half and at most twice as much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from calibration.confirmation.runs import ArmRuns, Confirmation
from calibration.confirmation.service import device_profile
from hwbackend.device import Device
from hwbackend.harness import DISTURBED
from sim.errors import ConfigError
from sim.profile import Profile
from sim.simulation import Result
from sim.studies.arms import ArmScenario, build_arms
from sim.studies.observations import higher_is_better
from sim.studies.statistics import CONFIDENCE, t_half_width
from workloads.build import Workload

REPETITIONS: Final = 3
CALIBRATION_SHARE: Final = 0.35
"""Of the budget goes into calibration: half of that before the first run, half into the probes between runs."""
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
_BUSY: Final = 1.05  # all steps together, over what the undisturbed of them say
_CALIBRATED_S: Final = 20.0  # before the first run; more tells no more, and the probes add to it
_CLOSED_LOOP_S: Final = 6.0  # expected of a load whose arrivals do not say how long it is


@dataclass(frozen=True)
class ArmOutcome:
    """One arm. `interval` is of the measured mean, None with one repetition; `within` says what keeps its tolerance.

    at_one_pace   simulated metrics at the pace that all arms share
    others_share  of the machine's cores, busy with other work, in each repetition
    """

    name: str
    directory: str
    simulated: Mapping[str, float]
    measured: Mapping[str, float]
    interval: Mapping[str, tuple[float, float] | None]
    error: Mapping[str, float]
    within: Mapping[str, bool]
    repetitions: Sequence[Mapping[str, float]]
    simulations: Sequence[Mapping[str, float]]
    at_one_pace: Mapping[str, float]
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


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a confirmation found; `runs` and `simulated` hold the runs themselves."""

    device: Mapping[str, Any]
    metric: str
    arms: Sequence[ArmOutcome]
    comparisons: Sequence[Comparison]
    calibration: Mapping[str, Any]
    seconds: float
    notes: Sequence[str]
    profile: Profile
    load: Workload
    runs: Sequence[ArmRuns]
    simulated: Sequence[Sequence[Result]]

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


def confirm(
    source: str | Path | Mapping[str, Any],
    vary: Sequence[str],
    device: Device,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    metric: str = "mean_e2el_ms",
    repetitions: int = REPETITIONS,
    budget_s: float | None = None,
    listed: Profile | None = None,
    say: Callable[[str], None] = lambda _message: None,
) -> Outcome:
    """Calibrate, run every arm `repetitions` times (fewer where the budget ends), simulate, and compare.

    With a profile (`listed`) its prices stand for the calibration.
    """
    if metric not in METRICS:
        raise ConfigError(f"--metric {metric}: no such metric; one of {', '.join(METRICS)}")
    if repetitions < 1:
        raise ConfigError(f"--repetitions {repetitions}: give at least 1")
    began = perf_counter()
    scenarios = build_arms(source, vary, overrides, seed)
    _check_arms(scenarios)
    profile = device_profile(device)
    runs = Confirmation(scenarios, device, profile, say, listed)
    aside_s = CALIBRATION_SHARE * (budget_s or _expected_s(runs, repetitions))
    first_s = 0.0 if listed else min(aside_s / 2, _CALIBRATED_S)
    say(
        f"{device.identity.name}: {len(scenarios)} arms, {repetitions} times, after {first_s:.0f} s of calibration"
    )
    runs.calibrate(first_s)
    if listed is None:
        say(f"calibrated: median error of a step {runs.fit.median_error:.1%}, P90 {runs.fit.p90_error:.1%}")
    _rounds(runs, repetitions, aside_s / 2, math.inf if budget_s is None else began + budget_s)
    simulated = [runs.simulate(one) for one in runs.arms]
    arms = [
        _arm(one, results, runs.simulate_at_one_pace(one))
        for one, results in zip(runs.arms, simulated, strict=True)
    ]
    comparisons = [_compare(arm, base, metric) for base, arm in itertools.combinations(arms, 2)]
    return Outcome(
        device=_device_facts(device),
        metric=metric,
        arms=arms,
        comparisons=comparisons,
        calibration=_calibration(runs),
        seconds=perf_counter() - began,
        notes=_notes(runs, arms, comparisons, simulated),
        profile=runs.profile,
        load=runs.load,
        runs=runs.arms,
        simulated=simulated,
    )


def _calibration(runs: Confirmation) -> dict[str, Any]:
    """What prices the steps."""
    if runs.listed is not None:
        return {"profile": runs.listed.name, "engine": runs.listed.engine, "hash": runs.listed.content_hash}
    return {
        "seconds": runs.calibrated_s,
        "paces": {one.arm.name: [runs.pace(probe) for probe in one.probes] for one in runs.arms},
        **runs.fit.as_json(),
    }


def _expected_s(runs: Confirmation, repetitions: int) -> float:
    """How long all repetitions will take, if a run takes as long as its arrivals, and calibration beside them."""
    length = max(runs.load.trace.duration_ns / 1e9, _CLOSED_LOOP_S)
    return repetitions * len(runs.arms) * length / (1 - CALIBRATION_SHARE)


def _rounds(runs: Confirmation, repetitions: int, probes_s: float, end: float) -> None:
    """Rounds until there are enough, or another would not end before `end`; probes between all runs."""
    longest = 0.0
    probe_s = probes_s / (repetitions * len(runs.arms) + 1)
    for number in range(repetitions):
        start = perf_counter()
        if number and start + longest > end:
            break
        runs.round(probe_s)
        longest = max(longest, perf_counter() - start)
    runs.probe(probe_s)


def _check_arms(scenarios: Sequence[ArmScenario]) -> None:
    """Refuse what makes no difference to one engine, which is all that a device runs."""
    for path in scenarios[0].set:
        if path.startswith(("policies.router", "cluster.")):
            raise ConfigError(
                f"--vary {path}: acts among replicas, and a device runs one engine; use `compare`"
            )


def _arm(one: ArmRuns, simulated: Sequence[Result], at_one_pace: Result) -> ArmOutcome:
    repetitions = [_metrics(result) for result in one.results]
    simulations = [_metrics(result) for result in simulated]
    expected, measured, interval = {}, {}, {}
    for name in METRICS:
        values = [repetition[name] for repetition in repetitions]
        expected[name] = float(np.mean([simulation[name] for simulation in simulations]))
        measured[name] = float(np.mean(values))
        half = t_half_width(values)
        interval[name] = None if math.isinf(half) else (measured[name] - half, measured[name] + half)
    error = {name: expected[name] / measured[name] - 1 for name in METRICS}
    return ArmOutcome(
        name=one.arm.name,
        directory=one.arm.directory,
        simulated=expected,
        measured=measured,
        interval=interval,
        error=error,
        within={name: abs(error[name]) <= limit for name, limit in TOLERANCE.items()},
        repetitions=repetitions,
        simulations=simulations,
        at_one_pace=_metrics(at_one_pace),
        others_share=one.others_share,
        steps=sum(result.summary["sim"]["steps"] for result in one.results),
        replayed_steps=one.replayed_steps,
    )


def _metrics(result: Result) -> dict[str, float]:
    values = {name: result.summary[name] for name in METRICS}
    lacking = [name for name, value in values.items() if value is None or value <= 0]
    if lacking:
        raise ConfigError(
            f"workload: gives no {lacking[0]}, and a confirmation compares it; let requests have answers"
        )
    return values


def _compare(arm: ArmOutcome, base: ArmOutcome, metric: str) -> Comparison:
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


def _gain(arm: Mapping[str, float], base: Mapping[str, float], metric: str) -> float:
    ratio = arm[metric] / base[metric]
    return ratio - 1 if higher_is_better(metric) else 1 - ratio


def _notes(
    runs: Confirmation,
    arms: Sequence[ArmOutcome],
    comparisons: Sequence[Comparison],
    simulated: Sequence[Sequence[Result]],
) -> list[str]:
    """What a reader of the numbers should know."""
    found = []
    if len(arms[0].repetitions) == 1:
        found.append("one repetition: nothing is known of the noise, and no ordering is judged")
    found += [
        f"{one.arm} against {one.base}: a simulated gain of {one.gain_simulated:+.1%} is within the noise of "
        f"{one.noise:.1%}, so its ordering is not judged"
        for one in comparisons
        if not one.judged and one.noise is not None
    ]
    for arm, results in zip(arms, simulated, strict=True):
        extrapolated = results[0].summary["sim"]["extrapolated"].values()
        found += [f"{arm.name}: extrapolated {text}" for text in extrapolated]
    others = max(share for arm in arms for share in arm.others_share)
    if others > DISTURBED:
        found.append(f"others had up to {others:.0%} of the machine's cores during a run")
    if runs.listed is None and runs.fit.hold_up > _BUSY:
        found.append(
            f"the machine was not the engine's alone: steps took {runs.fit.hold_up - 1:.0%} longer together than "
            "the undisturbed of them say"
        )
    link = runs.arms[0].server.link.bytes_per_s
    if link is not None and runs.arms[0].arm.scenario.kv_access.pattern is not None:
        found.append(
            f"pages of KV come over a link that is paced to {link / 1e9:g} GB/s, on a device without one"
        )
    return found


def _device_facts(device: Device) -> dict[str, Any]:
    identity = device.identity
    return {
        "kind": identity.kind,
        "name": identity.name,
        "compute_units": identity.compute_units,
        "dtype": device.ops.dtype,
        "facts": dict(identity.facts),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with mappings and pairs that JSON knows."""

    def plain(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return {key: plain(value) for key, value in values.items()}
