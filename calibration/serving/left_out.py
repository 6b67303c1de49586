"""What is known of a profile's error: how far off it is on whole curves that its fit did not see.

An interval of a prediction is the prediction times two quantiles of measured / predicted on such curves. Kernel
residuals cannot say this: what an engine adds to its kernels has an error of its own, the same for a whole curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.predict import Prediction
from sim.model import load_model
from sim.profile import PredictionError

COVERAGE: Final = 0.9
_FEWEST_CURVES: Final = 4
_ROUNDING: Final = 1e-9  # so that a rank that is whole stays so

Ratio = tuple[str, float]
"""Curve, and measured / predicted of one part of a run on it."""


def ratios(predictions: Iterable[Prediction]) -> dict[tuple[str, str], list[Ratio]]:
    """By (metric, kind of model): measured / predicted of everything that is not scored apart."""
    found: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for said in predictions:
        kind = "moe" if load_model(str(said.run.labels["model"])).moe is not None else "dense"
        for part, predicted in zip(said.run.parts, said.parts, strict=True):
            if part.apart is not None:
                continue
            for metric, measured in part.measured.items():
                if metric in predicted:
                    found[metric, kind].append((said.run.curve, measured / predicted[metric]))
    return dict(found)


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Quantiles of ratios between which one more of their kind lies with probability `COVERAGE`.

    Order statistics of rank (n + 1) p, as in split conformal prediction (Lei et al., JASA 2018); the outermost ones
    where there are too few.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n, tail = ordered.size, (1.0 - COVERAGE) / 2
    low = int(np.floor((n + 1) * tail + _ROUNDING)) - 1
    high = int(np.ceil((n + 1) * (1 - tail) - _ROUNDING)) - 1
    return float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])


def prediction_errors(predictions: Iterable[Prediction]) -> tuple[PredictionError, ...]:
    """What a profile says of its own error; of what was measured on too few curves it says nothing."""
    return tuple(
        _error(metric, kind, found)
        for (metric, kind), found in sorted(ratios(predictions).items())
        if len({curve for curve, _ in found}) >= _FEWEST_CURVES
    )


def coverage(found: Sequence[Ratio]) -> tuple[float, float]:
    """Share of ratios within bounds that the other curves give, and the median of their half-widths."""
    if len({curve for curve, _ in found}) < 2:
        raise ValueError("coverage needs the errors on other curves: at least two curves")
    inside, widths = [], []
    for curve in dict.fromkeys(curve for curve, _ in found):
        low, high = bounds([ratio for other, ratio in found if other != curve])
        own = [ratio for one, ratio in found if one == curve]
        inside += [low <= ratio <= high for ratio in own]
        widths += [(high - low) / 2] * len(own)
    return float(np.mean(inside)), float(np.median(widths))


def _error(metric: str, kind: str, found: Sequence[Ratio]) -> PredictionError:
    values = [ratio for _, ratio in found]
    off: NDArray[np.float64] = np.abs(1 / np.asarray(values) - 1)
    low, high = bounds(values)
    return PredictionError(
        metric=metric,
        kind=kind,
        rows=len(found),
        curves=len({curve for curve, _ in found}),
        median=float(np.median(off)),
        p90=float(np.quantile(off, 0.9)),
        low=low,
        high=high,
    )
