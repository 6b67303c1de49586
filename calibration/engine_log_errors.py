"""The steps of an engine's log as a profile prices them, and by how much it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.engine_log import EngineLog, Steps
from sim.cost.terms import StepTerms, total
from sim.curves.term import Float
from sim.model import ModelSpec
from sim.profile import HostOverhead, Profile, Residual
from workloads.errors import ConfigError

_SPIKE: Final = 0.2


@dataclass(frozen=True, slots=True)
class RunError:
    """|predicted / measured - 1| of the steps of a run, and of its time in all."""

    run: str
    steps: int
    median: float
    p90: float
    spike_share: float
    total: float


def step_seconds(profile: Profile, model: ModelSpec, steps: Steps) -> Float:
    """Price all steps at once, as the simulator's price list does one by one."""
    terms = StepTerms.of(model, profile, 1, "auto", "auto")
    host = profile.host or HostOverhead(base_s=0.0, source="none")
    tokens, where = np.unique(np.maximum(steps.computed_tokens, 1), return_inverse=True)
    seconds = total(terms.layers(tokens))[where] + total(terms.head(np.maximum(steps.sequences, 1)))
    seconds = seconds + _decode_seconds(terms, steps)
    chunks = terms.prefill_attention(steps.chunk_new, steps.chunk_context)
    seconds += np.bincount(steps.chunk_step, weights=chunks, minlength=len(steps))
    alone = (steps.decodes == 0) & (steps.prompt_tokens > 0)
    seconds += np.where(alone, terms.prefill_launches(), 0.0)
    overhead = host.base_s + host.per_layer_s * model.num_layers + host.per_seq_s * steps.sequences
    return np.asarray(seconds + overhead + host.per_token_s * steps.prompt_tokens)


def _decode_seconds(terms: StepTerms, steps: Steps) -> Float:
    if terms.model.num_window_layers:
        raise ConfigError(
            f"model: {terms.model.name} has sliding windows, of whose contexts a step log says nothing"
        )
    out = np.zeros(len(steps))
    some = steps.decodes > 0
    counts, contexts = steps.decodes[some], steps.context_tokens[some]
    for count in np.unique(counts):
        here = counts == count
        place = np.flatnonzero(some)[here]
        out[place] = terms.decode_attention(int(count), contexts[here], window=False)
    return out


def run_error(profile: Profile, model: ModelSpec, steps: Steps) -> RunError:
    """Judge a profile on the steps of one run."""
    predicted = step_seconds(profile, model, steps)
    error = np.abs(predicted / steps.duration_s - 1)
    return RunError(
        run=steps.run,
        steps=len(steps),
        median=float(np.median(error)),
        p90=float(np.quantile(error, 0.9)),
        spike_share=float((error > _SPIKE).mean()),
        total=float(predicted.sum() / steps.duration_s.sum()) - 1,
    )


def errors_on(profile: Profile, log: EngineLog) -> list[RunError]:
    """Judge a profile on the runs of a log."""
    return [run_error(profile, log.model, run) for run in log.runs]


def residual(errors: Sequence[RunError], held_out: str) -> Residual:
    """Sum up the errors of runs as a profile states them: means over runs, weighted by their steps."""
    steps = np.array([error.steps for error in errors], dtype=np.float64)

    def mean(values: list[float]) -> float:
        return round(float(np.average(values, weights=steps)), 4)

    return Residual(
        term="engine steps",
        held_out=held_out,
        rows=int(steps.sum()),
        median=mean([error.median for error in errors]),
        p90=mean([error.p90 for error in errors]),
        spike_share=mean([error.spike_share for error in errors]),
    )
