"""A confirmation from start to end: calibrate, run the arms in turns, simulate them, and say what was found.

Every arm runs several times on the device, in turns with the others and with calibration, and is simulated on the same
requests at the same times: once for each repetition, at the pace that the machine had beside it, and once at one pace
for all arms. `outcome` says what follows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from calibration.confirmation.outcome import (
    METRICS,
    ArmOutcome,
    Comparison,
    Outcome,
    arm_outcome,
    compare_arms,
    compared_metrics,
)
from calibration.confirmation.runs import ArmRuns, Confirmation
from calibration.confirmation.service import device_profile
from hwbackend.device import Device
from hwbackend.harness import DISTURBED
from sim.errors import ConfigError
from sim.profile import Profile
from sim.simulation import Result
from sim.studies.arms import ArmScenario, build_arms
from workloads.build import Workload

REPETITIONS: Final = 3
CALIBRATION_SHARE: Final = 0.35
"""Of the budget goes into calibration: half of that before the first run, half into the probes between runs."""
_BUSY: Final = 1.05  # all steps together, over what the undisturbed of them say
_CALIBRATED_S: Final = 20.0  # before the first run; more tells no more, and the probes add to it
_CLOSED_LOOP_S: Final = 6.0  # expected of a load whose arrivals do not say how long it is


@dataclass(frozen=True, eq=False)
class Confirmed:
    """The outcome, and what it stands on: every run of the device, and every simulation beside one, by arm."""

    outcome: Outcome
    profile: Profile
    load: Workload
    runs: Sequence[ArmRuns]
    simulated: Sequence[Sequence[Result]]


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
) -> Confirmed:
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
    comparisons = [compare_arms(arm, base, metric) for base, arm in itertools.combinations(arms, 2)]
    outcome = Outcome(
        device=_device_facts(device),
        metric=metric,
        arms=arms,
        comparisons=comparisons,
        calibration=_calibration(runs),
        seconds=perf_counter() - began,
        notes=_notes(runs, arms, comparisons, simulated),
    )
    return Confirmed(outcome, runs.profile, runs.load, runs.arms, simulated)


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
    return arm_outcome(
        one.arm.name,
        one.arm.directory,
        repetitions=[compared_metrics(result.summary) for result in one.results],
        simulations=[compared_metrics(result.summary) for result in simulated],
        at_one_pace=compared_metrics(at_one_pace.summary),
        others_share=one.others_share,
        steps=sum(result.summary["sim"]["steps"] for result in one.results),
        replayed_steps=one.replayed_steps,
    )


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
