"""Measured runs, predicted and scored: everything that `servetwin validate serving` says, prints and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from calibration.serving.measured_run import METRICS, Label, MeasuredRun
from calibration.serving.predict import Prediction, predict_all
from calibration.serving.scores import RULES, Pair, Score, by_metric, grouped, pairs_of, score
from calibration.serving.tolerances import Tolerance, Verdict, judge
from sim.profile import Profile
from sim.service import build_service
from workloads.errors import ConfigError, InputError

DEFAULT_BY: Final = (("system", "model"),)
WORST: Final = 5
"""So many worst cases are named for each metric."""
NOTHING_SERVED: Final = "nothing was served, so there is no prediction"
NOTHING_MEASURED: Final = "what was measured is not above zero"


@dataclass(frozen=True)
class LeftOut:
    """What enters no score, and why; `metric` is None where the whole run is meant."""

    run: str
    metric: str | None
    why: str


@dataclass(frozen=True)
class Grouping:
    """Scores of one metric by the values of some labels; with no labels, of all its pairs."""

    by: tuple[str, ...]
    scores: tuple[tuple[Mapping[str, Label | None], Score], ...]


@dataclass(frozen=True, eq=False)
class Validation:
    """What the twin said of measured runs, and how right it was.

    by          each entry is one way to group: labels that go together
    pairs       every metric of every part, those without an error too
    refused     run -> requests that the twin could not serve
    blind       runs without results: predicted, not scored
    caveats     what is not known -> the runs of which it is not known
    """

    data: tuple[str, ...]
    profile: str | None
    runs: int
    by: tuple[tuple[str, ...], ...]
    pairs: tuple[Pair, ...]
    refused: Mapping[str, int]
    left_out: tuple[LeftOut, ...]
    blind: tuple[str, ...]
    caveats: Mapping[str, tuple[str, ...]]
    verdicts: tuple[Verdict, ...]

    @property
    def met(self) -> bool:
        """Whether every tolerance that was given is kept."""
        return all(one.met for one in self.verdicts)

    @property
    def scored(self) -> dict[str, list[Pair]]:
        """Pairs with an error that are scored with the rest, by metric in the order of `METRICS`."""
        return _in_order(by_metric(p for p in self.pairs if p.error is not None and p.apart is None))

    @property
    def apart(self) -> dict[str, dict[str, list[Pair]]]:
        """Pairs with an error that are scored apart: reason -> metric -> pairs."""
        reasons = sorted({pair.apart for pair in self.pairs if pair.apart is not None})
        found = {
            reason: _in_order(by_metric(p for p in self.pairs if p.error is not None and p.apart == reason))
            for reason in reasons
        }
        return {reason: metrics for reason, metrics in found.items() if metrics}

    def groupings(self, pairs: Sequence[Pair]) -> list[Grouping]:
        """Scores of one metric: of all, then by each way to group."""
        return [
            Grouping(
                by,
                tuple(
                    (dict(zip(by, group, strict=True)), found)
                    for group, members in grouped(pairs, by).items()
                    if (found := score(members)) is not None
                ),
            )
            for by in ((), *self.by)
        ]

    def as_json(self) -> dict[str, Any]:
        """The document that --json prints and scores.json holds."""
        return {
            "data": list(self.data),
            "profile": self.profile,
            "runs": self.runs,
            "profile_hashes": sorted({pair.profile_hash for pair in self.pairs}),
            "labels": sorted({name for pair in self.pairs for name in pair.labels}),
            "by": [list(by) for by in self.by],
            "scores": {metric: self._scores(pairs) for metric, pairs in self.scored.items()},
            "apart": [
                {"reason": reason, "metric": metric, **found.as_json()}
                for reason, metrics in self.apart.items()
                for metric, pairs in metrics.items()
                if (found := score(pairs)) is not None
            ],
            "worst": [pair_document(pair) for pairs in self.scored.values() for pair in worst(pairs)],
            "refused": dict(self.refused),
            "left_out": [vars(one) for one in self.left_out],
            "blind": list(self.blind),
            "caveats": {caveat: list(runs) for caveat, runs in self.caveats.items()},
            "tolerances": [one.as_json() for one in self.verdicts],
            "met": self.met if self.verdicts else None,
            "rules": dict(RULES),
        }

    def _scores(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        whole, *groupings = self.groupings(pairs)
        return {
            **whole.scores[0][1].as_json(),
            "groups": [
                {"labels": dict(labels), **found.as_json()}
                for grouping in groupings
                for labels, found in grouping.scores
            ],
        }


def worst(pairs: Sequence[Pair], most: int = WORST) -> list[Pair]:
    """Pairs with the greatest |error|, the worst first."""
    return sorted(
        (pair for pair in pairs if pair.error is not None),
        key=lambda pair: (-abs(pair.error or 0.0), pair.run),
    )[:most]


def pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "metric": pair.metric,
        "run": pair.name,
        "labels": dict(pair.labels),
        "measured": pair.measured,
        "predicted": pair.predicted,
        "error": pair.error,
    }


def check_request(
    runs: Sequence[MeasuredRun],
    by: Sequence[tuple[str, ...]],
    metrics: Sequence[str],
    tolerances: Sequence[Tolerance],
) -> None:
    """Refuse before the work what could not be answered after it."""
    labels = {
        name
        for run in runs
        for part in ({}, *(p.labels for p in run.parts))
        for name in {**run.labels, **part}
    }
    for name in (name for group in by for name in group):
        if name not in labels:
            raise ConfigError(f"--by {name}: no run has this label; there are {', '.join(sorted(labels))}")
    measured = {metric for run in runs for part in run.parts for metric in part.measured}
    shown = ", ".join(metric for metric in METRICS if metric in measured) or "none"
    for metric in metrics:
        if metric not in METRICS:
            raise ConfigError(f"--metric {metric}: no such metric; one of {', '.join(METRICS)}")
        if metric not in measured and any(run.parts for run in runs):
            raise ConfigError(f"--metric {metric}: no run has it measured; measured are {shown}")
    for one in tolerances:
        if one.metric not in measured:
            raise ConfigError(f"--tolerance {one.metric}: no run has it measured; measured are {shown}")
        if metrics and one.metric not in metrics:
            raise ConfigError(f"--tolerance {one.metric}: is not among the metrics of --metric")


def validate(
    data: Sequence[str],
    runs: Sequence[MeasuredRun],
    *,
    unread: Sequence[str] = (),
    profile: Profile | None = None,
    by: Sequence[tuple[str, ...]] = (),
    metrics: Sequence[str] = (),
    tolerances: Sequence[Tolerance] = (),
    on_run_done: Callable[[], object] = lambda: None,
) -> Validation:
    """Predict all runs that can be, and score them.

    A `profile` stands in for those of the runs; where the runs name its device, for those runs alone. `unread` says of
    results that could not be read as runs where they are and why, one line each.
    """
    able, unable = _able(runs, profile)
    done = []
    for prediction in predict_all(able, [profile] * len(able)):
        done.append(prediction)
        on_run_done()
    pairs = tuple(pairs_of(done, metrics))
    known = {name for run in runs for name in run.labels}
    default = [group for group in DEFAULT_BY if set(group) <= known]
    return Validation(
        data=tuple(data),
        profile=None if profile is None else f"{profile.name} {profile.content_hash}",
        runs=len(runs),
        by=tuple(by or default),
        pairs=pairs,
        refused={one.run.name: one.refused for one in done if one.refused},
        left_out=(*map(_unread, unread), *unable, *_without_error(pairs)),
        blind=tuple(run.name for run in able if not run.parts),
        caveats=_caveats(able) | _fitted(done),
        verdicts=tuple(judge(tolerances, pairs)),
    )


def _able(runs: Sequence[MeasuredRun], profile: Profile | None) -> tuple[list[MeasuredRun], list[LeftOut]]:
    """Runs whose service can be built; the others with what stands in the way."""
    named = profile is not None and any(run.scenario.hardware.gpu == profile.name for run in runs)
    able, unable = [], []
    for run in runs:
        if named and profile is not None and run.scenario.hardware.gpu != profile.name:
            unable.append(LeftOut(run.name, None, f"not of {profile.name}, whose profile was given"))
            continue
        try:
            build_service(run.scenario, profile)
        except InputError as error:
            unable.append(LeftOut(run.name, None, " ".join(str(error).split())))
        else:
            able.append(run)
    return able, unable


def _unread(line: str) -> LeftOut:
    where, _, why = line.partition(": ")
    return LeftOut("/".join(Path(where).parts[-2:]), None, why)


def _without_error(pairs: Sequence[Pair]) -> list[LeftOut]:
    return [
        LeftOut(pair.name, pair.metric, NOTHING_SERVED if pair.predicted is None else NOTHING_MEASURED)
        for pair in pairs
        if pair.measured is not None and pair.error is None
    ]


def _fitted(predictions: Sequence[Prediction]) -> dict[str, tuple[str, ...]]:
    """Say of which measured runs the profile may have seen: one with known errors was fitted to runs like them."""
    seen = tuple(one.run.name for one in predictions if one.errors and one.run.parts)
    said = (
        "the profile was fitted to served runs, which may be among these; "
        "how far off it is on others its intervals and docs/fidelity.md say"
    )
    return {said: seen} if seen else {}


def _caveats(runs: Sequence[MeasuredRun]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for run in runs:
        for caveat in run.caveats:
            found.setdefault(caveat, []).append(run.name)
    return {caveat: tuple(names) for caveat, names in found.items()}


def _in_order(found: Mapping[str, list[Pair]]) -> dict[str, list[Pair]]:
    return {metric: found[metric] for metric in METRICS if metric in found}
