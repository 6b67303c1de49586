"""A profile from the step log of a real engine: how a server is calibrated without running a single kernel.

    step = gemm(tokens) + head(sequences) + attention of decodes and of chunks      the terms of the price list
           + base + per_seq x sequences + per_token x prompt tokens                  the engine around them

With a base profile (the shipped one of the same GPU, say) its curves keep their shape, and each kind of term gets a
factor on its times. Without one the curves are plain rooflines: rates and bandwidths of products, of decode attention
and of prefill attention, and what attention takes for each prompt beside its rate, as the log shows them. Products run
over whole blocks of rows where the log names a CPU that does (`engine_log.py`). vLLM's CPU engine also takes prompts
one by one, 2 ms each: steps with 8 to 32 short prompts take 5 to 7% longer than by rates alone, those with 4 long ones
do not. All parameters are positive and fitted together to the logarithms of step times, with soft absolute errors, so
that steps which something else held up do not decide.

Not told apart: what tokens of a prompt cost the host, from the rate of products (so per_token is fitted with a base
profile only); what a sequence costs the host, from its share of the head and of attention's queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from calibration.engine_log import EngineLog, Steps
from calibration.engine_log_errors import RunError, run_error, step_seconds
from calibration.regression import fit_positive
from calibration.slower_curves import slower_decode, slower_elementwise, slower_gemm, slower_prefill
from sim.curves.decode import DecodeCurve, DecodeRegime
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import WEIGHT_BYTES, GemmCurve, Tile
from sim.curves.heads import KV_BYTES
from sim.curves.prefill import WRITE_HEADS, PrefillCurve, PrefillRegime
from sim.curves.term import Float
from sim.profile import Device, HostOverhead, Profile
from workloads.errors import ConfigError

_TINY_S: Final = 1e-9
_TINY_PER_VALUE: Final = 1e-15
_FAST: Final = 1e15
_FACTORS: Final = (1e-2, 1e2)  # within which a base profile may be off
_PARTS: Final = 5  # of a single run, each left out in turn


def fit_engine_log(log: EngineLog, name: str, base: Profile | None = None) -> Profile:
    """Fit to all runs of the log."""
    return _fit(log, log.runs, name, base)


def cross_validate(log: EngineLog, name: str, base: Profile | None = None) -> list[RunError]:
    """Fit without each run in turn and ask about it; of a single run, without each fifth of its steps."""
    if len(log.runs) > 1:
        folds = [([other for other in log.runs if other is not run], run) for run in log.runs]
    else:
        run, fifth = log.runs[0], np.arange(len(log.runs[0])) * _PARTS // len(log.runs[0])
        folds = [([run.where(fifth != part)], run.where(fifth == part)) for part in range(_PARTS)]
    return [run_error(_fit(log, rest, name, base), log.model, held) for rest, held in folds]


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
                "elementwise": slower_elementwise(base.elementwise, p[0]),
                "decode_attention": {d: slower_decode(c, p[1]) for d, c in base.decode_attention.items()},
                "prefill_attention": {d: slower_prefill(c, p[2]) for d, c in base.prefill_attention.items()},
                "host": _host(log, float(p[3]), float(p[4]), float(p[5])).model_copy(
                    update={"notes": f"times of {base.name} by the same log: {said}; launches are in base_s"}
                ),
                "residuals": (),
                "errors": (),  # those of the base are of other servers
            }
        )

    low, high = _FACTORS
    return build, (
        np.array([low, low, low, 1e-7, 1e-9, 1e-10]),
        np.array([1.0, 1.0, 1.0, 1e-3, 1e-5, 1e-7]),
        np.array([high, high, high, longest, 0.1 * longest, 1e-3]),
    )


def _roofline(log: EngineLog, name: str, longest: float) -> tuple[Build, Bounds]:
    """Products [FLOP/s, byte/s], decode attention [byte/s], prefill attention [FLOP/s, s]; then the host's parts."""
    model, dtype = log.model, log.model.plain_dtype("auto")
    source = f"roofline fitted to the step log of {log.engine}"
    kinds = {"head_dim": model.head_dim, "window": 0}

    def build(p: Float) -> Profile:
        flops, width, decode_width, attention_flops, sequence_s, base_s, per_seq_s = map(float, p)
        gemm = GemmCurve(
            source=source,
            launch_s=_TINY_S,
            bytes_per_s=width,
            sharpness=4.0,
            quantised=0.0,
            sms=1,
            tiles=(Tile(m=log.row_block, n=1, flops_per_s=flops, start_s=0.0),),
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
            sequence_s=sequence_s,
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
        np.array([1e9, 1e8, 1e7, 1e9, 1e-9, 1e-7, 1e-9]),
        np.array([1e12, 1e11, 1e11, 1e12, 1e-3 * longest / model.num_layers, 0.05 * longest, 1e-3 * longest]),
        np.array([1e16, 1e14, 1e14, 1e16, longest / model.num_layers, longest, 0.5 * longest]),
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
