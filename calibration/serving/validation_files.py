"""A validation as files.

scores.json           as `servetwin validate serving --json` prints it
predictions.parquet   a row a metric of a part of a run, what has no error included:
                      run, curve, part, apart, metric, measured, predicted, error, low, high, profile_hash; then the
                      labels, a column each. Latencies [ms], rates [1/s]; null where something is not known
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from calibration.serving.scores import Pair
from calibration.serving.validation import Validation
from sim.run_directory import json_text

SCORES: Final = "scores.json"
PREDICTIONS: Final = "predictions.parquet"


def write_validation(validation: Validation, directory: Path) -> None:
    """Write into an existing folder."""
    import pyarrow as pa  # noqa: PLC0415  only where files are written
    import pyarrow.parquet as pq  # noqa: PLC0415

    (directory / SCORES).write_text(json_text(validation.as_json()), encoding="utf-8")
    pq.write_table(
        pa.table(prediction_columns(validation.pairs)), directory / PREDICTIONS, compression="zstd"
    )


def prediction_columns(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Arrow arrays, one entry a pair."""
    import pyarrow as pa  # noqa: PLC0415

    def reals(values: Sequence[float | None]) -> Any:  # noqa: ANN401  Arrow has no types
        return pa.array(values, pa.float64())

    intervals = [pair.interval or (None, None) for pair in pairs]
    columns = {
        "run": pa.array([pair.run for pair in pairs], pa.string()),
        "curve": pa.array([pair.curve for pair in pairs], pa.string()),
        "part": pa.array([pair.part for pair in pairs], pa.int64()),
        "apart": pa.array([pair.apart for pair in pairs], pa.string()),
        "metric": pa.array([pair.metric for pair in pairs], pa.string()),
        "measured": reals([pair.measured for pair in pairs]),
        "predicted": reals([pair.predicted for pair in pairs]),
        "error": reals([pair.error for pair in pairs]),
        "low": reals([low for low, _ in intervals]),
        "high": reals([high for _, high in intervals]),
        "profile_hash": pa.array([pair.profile_hash for pair in pairs], pa.string()),
    }
    for name in sorted({name for pair in pairs for name in pair.labels}):
        if name in columns:
            raise ValueError(f"the label {name!r} is a column of its own")
        columns[name] = _label_column([pair.labels.get(name) for pair in pairs])
    return columns


def _label_column(values: Sequence[Any]) -> Any:  # noqa: ANN401  labels in, an Arrow array out
    import pyarrow as pa  # noqa: PLC0415

    if any(isinstance(value, str) for value in values):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if any(isinstance(value, float) for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array(values, pa.int64())
