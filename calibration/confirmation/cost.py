"""The cost of a step of an engine, fitted to its own step log: what a server's log says without any kernel.

    step = base + per_seq n + sum over knots k of slope_k max(tokens - k, 0) + per_context C
         + per_chunk p + per_pair sum new (computed + (new + 1) / 2) + per_read sum (computed + new)

with n sequences (decodes and chunks), `tokens` that the GEMMs run over, C tokens that the decodes attend to, p prompt
chunks. All parameters are at least 0: slopes between knots then only rise, which is what tiles and caches make of a
GEMM from a memory-bound to a compute-bound size. The fit has Huber weights on relative errors, so that a step that
another process held up does not bend it; then all is scaled so that the fitted steps take as long together as the
measured ones, since such steps will be in the next run too. How much that is, is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hwbackend.engine.step_records import StepRecord
from sim.cost.step_cost import StepParts, Traffic
from workloads.errors import ConfigError

Float = NDArray[np.float64]

KNOTS: Final = (0, 4, 16, 64, 256, 1024)
"""Token counts at which a step may come to cost more for each further token."""
NAMES: Final = (
    "base",
    "per_seq",
    *(f"per_token_above_{knot}" for knot in KNOTS),
    "per_context",
    "per_chunk",
    "per_pair",
    "per_read",
)
_HUBER: Final = 0.1  # relative error beyond which a step counts less
_ROUNDS: Final = 20
_LEAST_STEPS: Final = 60
_NS: Final = 1e9
_BEYOND: Final = 1.1  # times the most that was calibrated: from there on a price is an extrapolation


@dataclass(frozen=True, eq=False, slots=True)
class StepTable:
    """Steps as rows: features in the order of NAMES, seconds, and the group (arm) that each belongs to."""

    features: Float
    seconds: Float
    group: NDArray[np.int64]

    @classmethod
    def of(cls, logs: Sequence[tuple[int, Sequence[StepRecord]]]) -> StepTable:
        """From logs of (group, records); waits for transfers are not the step's own time."""
        rows, seconds, groups = [], [], []
        for group, records in logs:
            for record in records:
                if record.computes:
                    chunks = [(new, before) for _, before, new in record.chunks]
                    rows.append(_features(len(record.decoding), record.read_tokens, chunks))
                    seconds.append((record.end_ns - record.start_ns - record.waited_ns) / _NS)
                    groups.append(group)
        shape = (len(rows), len(NAMES))
        return cls(np.array(rows).reshape(shape), np.array(seconds), np.array(groups, dtype=np.int64))


@dataclass(frozen=True)
class StepFit:
    """A fit. `bases` are the groups' own; residuals are of single steps, |predicted / measured - 1|.

    hold_up   how much longer the steps were together than the fit of undisturbed ones; part of the prices
    ranges    (least, most) of decodes, tokens and contexts that were seen
    """

    seconds: Mapping[str, float]
    bases: tuple[float, ...]
    hold_up: float
    steps: int
    median_error: float
    p90_error: float
    ranges: Mapping[str, tuple[int, int]]

    def as_json(self) -> dict[str, object]:
        return {
            **vars(self),
            "seconds": dict(self.seconds),
            "ranges": {k: list(v) for k, v in self.ranges.items()},
        }

    def cost(self, group: int, pace: float = 1.0) -> FittedCost:
        """Prices of the steps of a group, all of them times `pace`."""
        return FittedCost(self, self.bases[group], pace)

    def predict(self, table: StepTable) -> Float:
        """Seconds of each step of a table."""
        bases = np.array(self.bases)[table.group]
        return bases + table.features[:, 1:] @ np.array([*self.seconds.values()])


def fit_steps(table: StepTable, groups: int) -> StepFit:
    """Fit; every group has a base of its own, and shares the rest."""
    count = len(table.seconds)
    if count < _LEAST_STEPS:
        raise ConfigError(
            f"calibration: {count} steps ran, and a fit takes {_LEAST_STEPS}; give a larger --budget"
        )
    design = np.concatenate(
        [(table.group[:, None] == np.arange(groups)).astype(float), table.features[:, 1:]], axis=1
    )
    weights = np.ones(count)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    found = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        by = (weights / table.seconds)[:, None]
        found = nnls(by * design / scale, weights.copy())[0] / scale
        error = np.abs(design @ found / table.seconds - 1)
        weights = np.sqrt(np.minimum(1.0, _HUBER / np.maximum(error, 1e-12)))
    predicted = design @ found
    hold_up = float(table.seconds.sum() / predicted.sum())
    relative = np.abs(predicted * hold_up / table.seconds - 1)
    found = found * hold_up
    return StepFit(
        dict(zip(NAMES[1:], found[groups:].tolist(), strict=True)),
        tuple(found[:groups].tolist()),
        hold_up,
        count,
        float(np.median(relative)),
        float(np.percentile(relative, 90)),
        _ranges(table),
    )


class FittedCost:
    """A `ServiceCost` of the fitted steps."""

    sliding_window = None

    def __init__(self, fit: StepFit, base_s: float, pace: float = 1.0) -> None:
        self._fit = fit
        self._vector = pace * _NS * np.array([base_s, *fit.seconds.values()])
        self._most = dict.fromkeys(("decodes", "tokens", "context_tokens"), 0)

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:  # noqa: ARG002
        return self._price(num_seqs, context_tokens, ())

    def decode_window_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,  # noqa: ARG002
        growing: int,  # noqa: ARG002
        steps: int,
    ) -> NDArray[np.int64]:
        last = context_tokens + num_seqs * (steps - 1)
        self._note(num_seqs, last, ())
        rest = float(self._vector @ _features(num_seqs, 0, ()))
        contexts = context_tokens + num_seqs * np.arange(steps, dtype=np.float64)
        return np.maximum(np.rint(rest + self._per_context * contexts), 1).astype(np.int64)

    def mixed_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,  # noqa: ARG002
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        return self._price(num_seqs, context_tokens, chunks)

    def parts(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,  # noqa: ARG002
        chunks: Sequence[tuple[int, int]],
    ) -> StepParts:
        seconds = self._vector * _features(num_seqs, context_tokens, chunks) / _NS
        named = {name: float(value) for name, value in zip(NAMES, seconds, strict=True) if value}
        overhead = named.get("base", 0.0)
        return StepParts(
            overhead_s=overhead,
            compute_s=sum(named.values()) - overhead,
            hbm_bytes=0.0,
            link_bytes=0.0,
            seconds=named,
        )

    @property
    def hbm_bytes_per_s(self) -> float:
        """Nothing here is known of memory traffic; no step is slowed by what moves beside it."""
        return 1e12

    def traffic(
        self,
        num_seqs: int,  # noqa: ARG002
        context_tokens: int,  # noqa: ARG002
        window_context_tokens: int,  # noqa: ARG002
        *,
        chunks: Sequence[tuple[int, int]] = (),  # noqa: ARG002
        growing: int = 0,  # noqa: ARG002
        steps: int = 1,
    ) -> Traffic:
        return Traffic(((0.0, 0.0),), np.zeros(steps, dtype=np.int64))

    @property
    def extrapolated(self) -> Mapping[str, str]:
        found = {}
        for name, most in self._most.items():
            seen = self._fit.ranges.get(name, (0, most))[1]
            if most > _BEYOND * seen:
                found[name] = f"steps: {name} = {most}, calibrated up to {seen}"
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    @property
    def _per_context(self) -> float:
        return float(self._vector[NAMES.index("per_context")])

    def _price(self, num_seqs: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> int:
        self._note(num_seqs, context_tokens, chunks)
        rest = float(self._vector @ _features(num_seqs, 0, chunks))
        return max(round(rest + self._per_context * float(context_tokens)), 1)

    def _note(self, num_seqs: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> None:
        most = self._most
        most["decodes"] = max(most["decodes"], num_seqs)
        most["context_tokens"] = max(most["context_tokens"], context_tokens)
        most["tokens"] = max(most["tokens"], num_seqs + sum(new for new, _ in chunks))


def free() -> FittedCost:
    """Prices before anything is fitted: a step takes the shortest time there is. For policies that ask no prices."""
    return StepFit(dict.fromkeys(NAMES[1:], 0.0), (0.0,), 1.0, 0, 0.0, 0.0, {}).cost(0)


def _features(decodes: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> Float:
    tokens = decodes + sum(new for new, _ in chunks)
    return np.array(
        [
            1.0,
            decodes + len(chunks),
            *(max(tokens - knot, 0) for knot in KNOTS),
            context_tokens,
            len(chunks),
            sum(new * (computed + (new + 1) / 2) for new, computed in chunks),
            sum(new + computed for new, computed in chunks),
        ]
    )


def _ranges(table: StepTable) -> dict[str, tuple[int, int]]:
    chunks = table.features[:, NAMES.index("per_chunk")]
    columns = {
        "decodes": table.features[:, 1] - chunks,
        "tokens": table.features[:, NAMES.index("per_token_above_0")],
        "context_tokens": table.features[:, NAMES.index("per_context")],
    }
    return {name: (int(column.min()), int(column.max())) for name, column in columns.items()}
