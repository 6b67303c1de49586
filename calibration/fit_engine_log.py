"""A profile from the step log of a real engine: how a server is calibrated without running a single kernel.

    step = gemm(tokens) + head(sequences) + attention of decodes and of chunks      the terms of the price list
           + base + per_seq x sequences + per_token x prompt tokens                  the engine around them

With a base profile (the shipped one of the same GPU, say) its curves keep their shape, and each kind of term gets a
factor on its times. Without one the curves are plain rooflines: rates and bandwidths of products, of decode attention
and of prefill attention, as the log shows them. All parameters are positive and fitted together to the logarithms of
step times, with soft absolute errors, so that steps which something else held up do not decide.

Not told apart: what tokens of a prompt cost the host, from the rate of products (so per_token is fitted with a base
profile only); what a sequence costs the host, from its share of the head and of attention's queries.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.regression import fit_positive
from calibration.step_log import StepLogRun, read_step_log
from sim.cost.cuda_graphs import capture_sizes, padded_tokens
from sim.cost.terms import StepTerms, total
from sim.curves.decode import DecodeCurve, DecodeRegime
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import WEIGHT_BYTES, GemmCurve, Tile
from sim.curves.heads import KV_BYTES
from sim.curves.prefill import WRITE_HEADS, PrefillCurve, PrefillRegime
from sim.curves.term import Float
from sim.model import ModelSpec, load_model
from sim.profile import Device, HostOverhead, Profile, Residual
from workloads.errors import ConfigError

_TINY_S: Final = 1e-9
_TINY_PER_VALUE: Final = 1e-15
_FAST: Final = 1e15
_FACTORS: Final = (1e-2, 1e2)  # within which a base profile may be off
_SPIKE: Final = 0.2
_PARTS: Final = 5  # of a single run, each left out in turn


@dataclass(frozen=True)
class Steps:
    """Steps of a run as columns; chunks lie flat, `chunk_step` names their step."""

    run: str
    duration_s: Float
    decodes: Float
    context_tokens: Float
    prompt_tokens: Float
    sequences: Float
    computed_tokens: NDArray[np.int64]
    """Tokens that the products run over: padded to captured sizes."""
    chunk_new: Float
    chunk_context: Float
    chunk_step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.duration_s)

    def where(self, mask: NDArray[np.bool_]) -> Steps:
        place = np.cumsum(mask) - 1
        kept = mask[self.chunk_step]
        return Steps(
            run=self.run,
            duration_s=self.duration_s[mask],
            decodes=self.decodes[mask],
            context_tokens=self.context_tokens[mask],
            prompt_tokens=self.prompt_tokens[mask],
            sequences=self.sequences[mask],
            computed_tokens=self.computed_tokens[mask],
            chunk_new=self.chunk_new[kept],
            chunk_context=self.chunk_context[kept],
            chunk_step=place[self.chunk_step[kept]],
        )


@dataclass(frozen=True)
class EngineLog:
    """Runs of one engine serving one model."""

    model: ModelSpec
    engine: str
    runs: tuple[Steps, ...]
    kv_bytes: int
    """Of the engine's KV blocks."""


@dataclass(frozen=True, slots=True)
class RunError:
    """|predicted / measured - 1| of the steps of a run, and of its time in all."""

    run: str
    steps: int
    median: float
    p90: float
    spike_share: float
    total: float


def read_engine_log(directories: Sequence[Path], model: str | None = None) -> EngineLog:
    """Read run directories; the model is that of their meta.json unless one is named."""
    runs = [read_step_log(directory) for directory in directories]
    named = load_model(model) if model else _model_of(directories[0])
    steps = tuple(_columns(run, _engine_args(path)) for run, path in zip(runs, directories, strict=True))
    blocks = max(run.num_gpu_blocks * run.block_size for run in runs)
    return EngineLog(named, runs[0].engine, steps, blocks * named.kv_bytes_per_token())


def fit_engine_log(log: EngineLog, name: str, base: Profile | None = None) -> Profile:
    """Fit to all runs of the log."""
    return _fit(log, log.runs, name, base)


def errors_on(profile: Profile, log: EngineLog) -> list[RunError]:
    """Judge a profile on the runs of a log."""
    return [_error(profile, log.model, run) for run in log.runs]


def cross_validate(log: EngineLog, name: str, base: Profile | None = None) -> list[RunError]:
    """Fit without each run in turn and ask about it; of a single run, without each fifth of its steps."""
    if len(log.runs) > 1:
        folds = [([other for other in log.runs if other is not run], run) for run in log.runs]
    else:
        run, fifth = log.runs[0], np.arange(len(log.runs[0])) * _PARTS // len(log.runs[0])
        folds = [([run.where(fifth != part)], run.where(fifth == part)) for part in range(_PARTS)]
    return [_error(_fit(log, rest, name, base), log.model, held) for rest, held in folds]


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


def _fit(log: EngineLog, runs: Sequence[Steps], name: str, base: Profile | None) -> Profile:
    longest = max(float(run.duration_s.max()) for run in runs)
    build, bounds = _roofline(log, name, longest) if base is None else _scaled(base, log, name, longest)

    def predict(parameters: Float) -> Float:
        profile = build(parameters)
        return np.concatenate([step_seconds(profile, log.model, run) for run in runs])

    measured = np.concatenate([run.duration_s for run in runs])
    found = fit_positive(predict, measured, bounds)
    if base is not None:
        _check_factors(base, found[:3])
    return build(found)


def _check_factors(base: Profile, factors: Float) -> None:
    """Refuse a base whose times would have to be stretched to the limit: it is of another kind of device."""
    low, high = _FACTORS
    if (factors < 1.02 * low).any() or (factors > 0.98 * high).any():
        said = ", ".join(f"{factor:.3g}" for factor in factors)
        raise ConfigError(
            f"--base {base.name}: the log asks for its times x {said} (products, decode and prefill attention), so it "
            "is of another kind of device; leave --base out"
        )


Build = Callable[[Float], Profile]
Bounds = tuple[Float, Float, Float]


def _host(log: EngineLog, base_s: float, per_seq_s: float, per_token_s: float = 0.0) -> HostOverhead:
    names = ", ".join(run.run for run in log.runs)
    return HostOverhead(
        base_s=base_s,
        per_seq_s=per_seq_s,
        per_token_s=per_token_s,
        call_s=0.0,
        source=f"step log of {log.engine} serving {log.model.name}: {names}",
        notes="launches are in base_s: call_s is 0, so engine.enforce_eager must be as in the log",
    )


def _scaled(base: Profile, log: EngineLog, name: str, longest: float) -> tuple[Build, Bounds]:
    """Factors of products (with the small kernels), decode attention, prefill attention; then the host's parts."""

    def build(p: Float) -> Profile:
        factors = {"gemm": float(p[0]), "decode_attention": float(p[1]), "prefill_attention": float(p[2])}
        said = ", ".join(f"{term} x {factor:.3g}" for term, factor in factors.items())
        return base.model_copy(
            update={
                "name": name,
                "engine": log.engine,
                "created": datetime.now(UTC).date().isoformat(),
                "gemm": {dtype: slower_gemm(curve, p[0]) for dtype, curve in base.gemm.items()},
                "elementwise": base.elementwise.model_copy(
                    update={
                        "launch_s": base.elementwise.launch_s * p[0],
                        "bytes_per_s": base.elementwise.bytes_per_s / p[0],
                    }
                ),
                "decode_attention": {d: slower_decode(c, p[1]) for d, c in base.decode_attention.items()},
                "prefill_attention": {d: slower_prefill(c, p[2]) for d, c in base.prefill_attention.items()},
                "host": _host(log, float(p[3]), float(p[4]), float(p[5])).model_copy(
                    update={"notes": f"times of {base.name} by the same log: {said}; launches are in base_s"}
                ),
                "residuals": (),
            }
        )

    low, high = _FACTORS
    return build, (
        np.array([low, low, low, 1e-7, 1e-9, 1e-10]),
        np.array([1.0, 1.0, 1.0, 1e-3, 1e-5, 1e-7]),
        np.array([high, high, high, longest, 0.1 * longest, 1e-3]),
    )


def _roofline(log: EngineLog, name: str, longest: float) -> tuple[Build, Bounds]:
    """Products [FLOP/s, byte/s], decode attention [byte/s], prefill attention [FLOP/s]; then the host's parts."""
    model, dtype = log.model, log.model.plain_dtype("auto")
    source = f"roofline fitted to the step log of {log.engine}"
    kinds = {"head_dim": model.head_dim, "window": 0}

    def build(p: Float) -> Profile:
        flops, width, decode_width, attention_flops, base_s, per_seq_s = map(float, p)
        gemm = GemmCurve(
            source=source,
            launch_s=_TINY_S,
            bytes_per_s=width,
            sharpness=4.0,
            quantised=0.0,
            sms=1,
            tiles=(Tile(m=1, n=1, flops_per_s=flops, start_s=0.0),),
            weight_bytes=WEIGHT_BYTES[model.resolve_weight_dtype("auto")],
        )
        decode = DecodeRegime(
            **kinds,
            launch_s=_TINY_S,
            bytes_per_s=decode_width,
            hbm_bytes_per_s=decode_width,
            query_s_per_value=_TINY_PER_VALUE,
        )
        prefill = PrefillRegime(
            **kinds,
            launch_s=_TINY_S,
            flops_per_s=attention_flops,
            block_flops_per_s=_FAST,
            kv_bytes_per_s=_FAST,
            write_s_per_value=(_TINY_PER_VALUE,) * len(WRITE_HEADS),
            io_bytes_per_s=_FAST,
            sharpness=64.0,
        )
        kv_bytes = KV_BYTES[dtype]
        return Profile(
            schema=1,
            name=name,
            engine=log.engine,
            created=datetime.now(UTC).date().isoformat(),
            device=_unknown_device(log, flops, decode_width),
            gemm={model.resolve_weight_dtype("auto"): gemm, dtype: gemm},
            prefill_attention={dtype: PrefillCurve(source=source, kv_bytes=kv_bytes, regimes=(prefill,))},
            decode_attention={dtype: DecodeCurve(source=source, kv_bytes=kv_bytes, regimes=(decode,))},
            elementwise=ElementwiseCurve(source=source, launch_s=_TINY_S, bytes_per_s=_FAST),
            host=_host(log, base_s, per_seq_s),
        )

    return build, (
        np.array([1e9, 1e8, 1e7, 1e9, 1e-7, 1e-9]),
        np.array([1e12, 1e11, 1e11, 1e12, 0.05 * longest, 1e-3 * longest]),
        np.array([1e16, 1e14, 1e14, 1e16, longest, 0.5 * longest]),
    )


def _unknown_device(log: EngineLog, flops: float, width: float) -> Device:
    """A log tells of no device: what it held is a lower bound of its memory, what it reached one of its rates."""
    held = log.model.weight_bytes() + log.kv_bytes
    return Device(
        memory_bytes=2 * held,
        memory_source="twice what weights and KV blocks of the log took; set engine.num_gpu_blocks_override",
        hbm_bytes_per_s=width,
        flops_per_s={log.model.plain_dtype("auto"): flops},
        sm_count=1,
        l2_bytes=32 << 20,
        pcie_bytes_per_s=width,
        nvlink_bytes_per_s=None,
        gpus_per_node=1,
        compute_capability="unknown",
        source="what products and decode attention of an engine log reach; links and caches are not known",
    )


def slower_gemm(curve: GemmCurve, factor: float) -> GemmCurve:
    """Return the curve with all times multiplied."""
    tiles = tuple(
        tile.model_copy(update={"flops_per_s": tile.flops_per_s / factor, "start_s": tile.start_s * factor})
        for tile in curve.tiles
    )
    return curve.model_copy(
        update={
            "launch_s": curve.launch_s * factor,
            "bytes_per_s": curve.bytes_per_s / factor,
            "tiles": tiles,
        }
    )


def slower_decode(curve: DecodeCurve, factor: float) -> DecodeCurve:
    """Return the curve with all times multiplied."""
    return curve.model_copy(
        update={
            "regimes": tuple(
                fit.model_copy(
                    update={
                        "launch_s": fit.launch_s * factor,
                        "bytes_per_s": fit.bytes_per_s / factor,
                        "hbm_bytes_per_s": fit.hbm_bytes_per_s / factor,
                        "query_s_per_value": fit.query_s_per_value * factor,
                    }
                )
                for fit in curve.regimes
            )
        }
    )


def slower_prefill(curve: PrefillCurve, factor: float) -> PrefillCurve:
    """Return the curve with all times multiplied."""
    return curve.model_copy(
        update={
            "regimes": tuple(
                fit.model_copy(
                    update={
                        "launch_s": fit.launch_s * factor,
                        "flops_per_s": fit.flops_per_s / factor,
                        "block_flops_per_s": fit.block_flops_per_s / factor,
                        "kv_bytes_per_s": fit.kv_bytes_per_s / factor,
                        "io_bytes_per_s": fit.io_bytes_per_s / factor,
                        "write_s_per_value": tuple(cost * factor for cost in fit.write_s_per_value),
                    }
                )
                for fit in curve.regimes
            )
        }
    )


def _error(profile: Profile, model: ModelSpec, steps: Steps) -> RunError:
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


def _columns(run: StepLogRun, args: dict[str, Any]) -> Steps:
    """Steps in which something was computed; contexts count the new token, as the price list has it."""
    busy = [step for step in run.steps if (step.prefill_tokens or step.decode_seqs) and step.duration_s > 0]
    if not busy:
        raise ConfigError(f"{run.name}: no step in which a token was computed")
    chunks = [(i, before, new) for i, step in enumerate(busy) for _, before, new in step.prefill_detail]
    flat = np.array(chunks, dtype=np.int64).reshape(-1, 3)
    decodes = np.array([step.decode_seqs for step in busy], dtype=np.float64)
    prompt = np.array([step.prefill_tokens for step in busy], dtype=np.float64)
    sizes = capture_sizes(
        run.max_num_seqs, run.max_num_batched_tokens, enforce_eager=bool(args.get("enforce_eager", False))
    )
    tokens = (decodes + prompt).astype(np.int64)
    padded = padded_tokens(sizes, int(max(tokens.max(), 1)))
    return Steps(
        run=run.name,
        duration_s=np.array([step.duration_s for step in busy]),
        decodes=decodes,
        context_tokens=np.array([step.decode_context_tokens for step in busy], dtype=np.float64) + decodes,
        prompt_tokens=prompt,
        sequences=decodes + np.bincount(flat[:, 0], minlength=len(busy)),
        computed_tokens=padded[tokens],
        chunk_new=flat[:, 2].astype(np.float64),
        chunk_context=flat[:, 1].astype(np.float64),
        chunk_step=flat[:, 0],
    )


def _engine_args(directory: Path) -> dict[str, Any]:
    args: dict[str, Any] = json.loads((directory / "meta.json").read_text(encoding="utf-8"))["engine_args"]
    return args


def _model_of(directory: Path) -> ModelSpec:
    """Return the model whose config stands in meta.json."""
    path = directory / "meta.json"
    config = json.loads(path.read_text(encoding="utf-8")).get("model")
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: no model config under 'model'; name one with --model")
    with tempfile.TemporaryDirectory(prefix="servetwin-model-") as folder:
        copy = Path(folder) / "logged" / "config.json"
        copy.parent.mkdir()
        copy.write_text(json.dumps(config), encoding="utf-8")
        return load_model(copy)
