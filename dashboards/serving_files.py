"""Reading what `servetwin validate serving --out` wrote. Whatever is missing or garbled is one ConfigError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dashboards.document_files import read_document
from dashboards.documents import Part
from workloads.errors import ConfigError

SCORES: Final = "scores.json"
PREDICTIONS: Final = "predictions.parquet"
NUMBERS: Final = ("measured", "predicted", "error", "low", "high")
NAMES: Final = ("run", "metric", "apart")

Value = str | int | float | None
Entry = TypeVar("Entry")


class WorstDocument(Part):
    """Who was furthest off."""

    run: str
    error: float


class ScoreDocument(Part):
    """Errors of a metric over a group of pairs; shares."""

    count: int
    mape: float
    bias: float
    p50_abs_pct_err: float
    p90_abs_pct_err: float
    p99_abs_pct_err: float
    worst: WorstDocument
    covered: float | None = None
    half_width: float | None = None


class GroupDocument(ScoreDocument):
    """The same of those that share some labels."""

    labels: dict[str, Value]


class MetricDocument(ScoreDocument):
    """All pairs of a metric, and by group."""

    groups: list[GroupDocument]


class ApartDocument(ScoreDocument):
    """What was scored apart for one reason."""

    reason: str
    metric: str


class PairDocument(Part):
    """One of the worst cases."""

    metric: str
    run: str
    labels: dict[str, Value]
    measured: float
    predicted: float
    error: float


class LeftOutDocument(Part):
    """What entered no score."""

    run: str
    metric: str | None
    why: str


class ToleranceDocument(Part):
    """A limit, and what came of it."""

    metric: str
    statistic: str
    limit: float
    value: float | None
    met: bool


class ScoresDocument(Part):
    """What the page needs of scores.json."""

    data: list[str]
    profile: str | None
    profile_hashes: list[str]
    runs: int
    labels: list[str]
    by: list[list[str]]
    scores: dict[str, MetricDocument]
    apart: list[ApartDocument]
    worst: list[PairDocument]
    refused: dict[str, int]
    left_out: list[LeftOutDocument]
    blind: list[str]
    caveats: dict[str, list[str]]
    tolerances: list[ToleranceDocument]
    rules: dict[str, str]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of predictions.parquet that have an error: numbers, names and labels, one entry a row."""

    numbers: Mapping[str, NDArray[np.float64]]
    names: Mapping[str, Sequence[str | None]]
    labels: Mapping[str, Sequence[Value]]

    def __len__(self) -> int:
        return len(self.names["run"])

    def where(self, mask: NDArray[np.bool_]) -> Pairs:
        """The rows of a mask."""
        rows = np.flatnonzero(mask)
        return Pairs(
            {name: column[rows] for name, column in self.numbers.items()},
            {name: _pick(column, rows) for name, column in self.names.items()},
            {name: _pick(column, rows) for name, column in self.labels.items()},
        )

    def of_metric(self, metric: str, *, apart: bool) -> Pairs:
        """Rows of one metric that are scored with the rest, or those that are scored apart."""
        mask = [
            name == metric and (reason is not None) is apart
            for name, reason in zip(self.names["metric"], self.names["apart"], strict=True)
        ]
        return self.where(np.array(mask, dtype=np.bool_))

    def label(self, name: str) -> Sequence[Value]:
        """A label's values; None where a row lacks it."""
        return self.labels.get(name) or [None] * len(self)

    def number(self, name: str) -> NDArray[np.float64] | None:
        """A label's values where they are numbers; None where they are words. NaN where a row lacks it."""
        values = self.label(name)
        if any(isinstance(value, str) for value in values):
            return None
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def read_scores(directory: Path) -> ScoresDocument:
    """Read scores.json."""
    return read_document(directory / SCORES, ScoresDocument, "servetwin validate serving --out")


def read_pairs(directory: Path, labels: Sequence[str]) -> Pairs:
    """Read the rows of predictions.parquet that have an error."""
    import pyarrow as pa  # noqa: PLC0415  only where a page is written
    import pyarrow.parquet as pq  # noqa: PLC0415

    path = directory / PREDICTIONS
    wanted = [*NAMES, *NUMBERS, *labels]
    try:
        table = pq.read_table(path)
        missing = [name for name in wanted if name not in table.column_names]
        if missing:
            raise ConfigError(f"{path}: has no column {', '.join(missing)}")
        columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in wanted}
        numbers = {name: np.array(columns[name], dtype=np.float64) for name in NUMBERS}
    except (OSError, pa.lib.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    every = Pairs(numbers, {name: columns[name] for name in NAMES}, {name: columns[name] for name in labels})
    return every.where(~np.isnan(numbers["error"]))


def _pick(column: Sequence[Entry], rows: NDArray[np.intp]) -> list[Entry]:
    return [column[row] for row in rows]
