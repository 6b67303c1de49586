"""What a page is about: the results in a directory, or of several runs, gathered before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.documents import Comparison, Difference, Lock, Plan
from dashboards.result_files import (
    COMPARISON,
    LOCK,
    PLAN,
    SUMMARY,
    Run,
    numbers,
    read_arm,
    read_comparison,
    read_lock,
    read_plan,
    read_run,
)
from workloads.errors import ConfigError


@dataclass(frozen=True, eq=False)
class ArmResult:
    """One column of the table: metrics always, the run behind the figures if it was kept."""

    name: str
    metrics: dict[str, float]
    run: Run | None

    def metric(self, key: str) -> float | None:
        """A metric by its key in a result file; a median goes by two names."""
        other = {"p50_": "median_", "median_": "p50_"}
        for old, new in other.items():
            if key.startswith(old) and key not in self.metrics:
                return self.metrics.get(new + key.removeprefix(old))
        return self.metrics.get(key)


@dataclass(frozen=True, eq=False)
class Content:
    """Everything on a page."""

    arms: list[ArmResult]
    comparison: Comparison | None = None
    plan: Plan | None = None
    lock: Lock | None = None  # of a plan alone; every run has its own

    @property
    def runs(self) -> dict[str, Run]:
        """The runs that figures can be drawn of, by arm."""
        return {arm.name: arm.run for arm in self.arms if arm.run is not None}

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits that all runs share; those that differ are no limit of the page."""
        each = [run.limits_ms for run in self.runs.values()]
        return (
            {name: value for name, value in each[0].items() if all(o.get(name) == value for o in each)}
            if each
            else {}
        )

    def difference(self, arm: str, key: str) -> Difference | None:
        """How an arm differs from the first one in a metric."""
        keys = {key, key.replace("p50_", "median_", 1) if key.startswith("p50_") else key}
        found = self.comparison.differences if self.comparison is not None else []
        return next((d for d in found if d.arm == arm and d.metric in keys), None)


def read_directory(directory: Path) -> Content:
    """Gather the results in one directory: a comparison or a run, a plan, or one of them and a plan."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; give one that a servetwin command wrote")
    plan = read_plan(directory) if (directory / PLAN).is_file() else None
    if (directory / COMPARISON).is_file():
        comparison = read_comparison(directory)
        arms = [
            ArmResult(arm.name, numbers(arm.metrics), read_arm(directory, arm)) for arm in comparison.arms
        ]
        return Content(arms, comparison, plan)
    if (directory / SUMMARY).is_file():
        # not the name of the folder, which is another one while a command still fills it
        return Content([_of_run(read_run(directory, "run"))], plan=plan)
    if plan is not None:
        lock = read_lock(directory) if (directory / LOCK).is_file() else None  # older ones have none
        return Content([], plan=plan, lock=lock)
    raise ConfigError(f"{directory}: holds no results ({SUMMARY}, {COMPARISON} or {PLAN})")


def read_directories(directories: Sequence[Path]) -> Content:
    """Gather one directory, or several runs as arms of one page, by the names of their folders."""
    if len(directories) == 1:
        return read_directory(directories[0])
    for directory in directories:
        if directory.is_dir() and not (directory / SUMMARY).is_file():
            raise ConfigError(f"{directory}: holds no run ({SUMMARY}); only runs go side by side on one page")
    names = _distinct([directory.resolve() for directory in directories])
    runs = [read_run(directory, name) for directory, name in zip(directories, names, strict=True)]
    return Content([_of_run(run) for run in runs])


def _of_run(run: Run) -> ArmResult:
    return ArmResult(run.name, run.summary.metrics, run)


def _distinct(paths: Sequence[Path]) -> list[str]:
    """Shortest endings of paths that tell them apart."""
    if len(set(paths)) < len(paths):
        raise ConfigError("the same directory is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]
