"""Profiles in words: what the commands print, as plain tables or as documents for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from calibration.compare_profiles import Change
from sim.profile import HostOverhead, PredictionError, Profile, Residual
from sim.served import Served

_NOTHING_S: Final = 1e-9


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary(profile: Profile) -> dict[str, Any]:
    """One profile in a list."""
    return {
        "name": profile.name,
        "engine": profile.engine,
        "created": profile.created,
        "weights": list(profile.gemm),
        "kv_cache": list(profile.decode_attention),
        "experts": list(profile.moe),
        "host_overhead": profile.host is not None,
        "content_hash": profile.content_hash,
    }


def document(profile: Profile) -> dict[str, Any]:
    """One profile without its packed tables."""
    sources = {f"gemm/{d}": c.source for d, c in profile.gemm.items()}
    sources |= {f"prefill_attention/{d}": c.source for d, c in profile.prefill_attention.items()}
    sources |= {f"decode_attention/{d}": c.source for d, c in profile.decode_attention.items()}
    sources |= {f"shared_attention/{d}": c.source for d, c in profile.shared_attention.items()}
    sources |= {f"moe/{d}": c.source for d, c in profile.moe.items()}
    if profile.all_reduce is not None:
        sources["all_reduce"] = profile.all_reduce.source
    sources["elementwise"] = profile.elementwise.source
    return summary(profile) | {
        "device": profile.device.model_dump(),
        "host": None if profile.host is None else profile.host.model_dump(),
        "served": None if profile.served is None else profile.served.model_dump(),
        "errors": [error.model_dump() for error in profile.errors],
        "sources": sources,
        "residuals": [residual.model_dump() for residual in profile.residuals],
    }


def profile_lines(profile: Profile) -> str:
    device = profile.device
    peaks = ", ".join(f"{dtype} {_tera(flops)}" for dtype, flops in device.flops_per_s.items())
    link = (
        "PCIe" if device.nvlink_bytes_per_s is None else f"NVLink {device.nvlink_bytes_per_s / 1e9:,.0f} GB/s"
    )
    host = profile.host
    lines = [
        f"{profile.name}: {profile.engine}, fitted {profile.created}, {profile.content_hash[:12]}",
        f"memory {device.memory_bytes / 2**30:.2f} GiB ({device.memory_source})",
        f"HBM {device.hbm_bytes_per_s / 1e9:,.0f} GB/s, TFLOP/s {peaks}, {device.sm_count} SMs, {link}",
        "host overhead: none fitted" if host is None else _host_line(host),
    ]
    if profile.served is not None:
        lines.append(_served_line(profile.served))
    lines += [_error_line(error) for error in profile.errors if error.metric.startswith("mean_")]
    if profile.residuals:
        lines += ["", "error on what was held out of the fit:", residual_lines(profile.residuals)]
    return "\n".join(lines)


def _tera(flops_per_s: float) -> str:
    """Whole tera-operations, of slow devices three digits."""
    tera = flops_per_s / 1e12
    return f"{tera:,.0f}" if tera >= 10 else f"{tera:.3g}"


def _host_line(host: HostOverhead) -> str:
    """Every overhead that is not zero, by the names of the profile's file."""
    known = {
        name: value
        for name, value in host.model_dump().items()
        if isinstance(value, float) and value > _NOTHING_S
    }
    said = ", ".join(f"{name.removesuffix('_s')} {value * 1e6:.3g} us" for name, value in known.items())
    return f"host overhead: {said or 'nothing'} ({host.source})"


def _served_line(served: Served) -> str:
    """Every factor that is not 1."""
    factors = {name: value for name, value in served.model_dump().items() if isinstance(value, float)}
    said = [f"{name} x {value:.2f}" for name, value in factors.items() if name != "routing_s" and value != 1]
    said += [f"{name} x {one.few:.2f} to {one.many:.2f}" for name, one in served.experts.items()]
    if served.routing_s:
        said.append(f"routing {served.routing_s * 1e6:.3g} us a layer of experts")
    return f"kernels as served: {', '.join(said) or 'as timed'} ({served.source})"


def _error_line(error: PredictionError) -> str:
    return (
        f"{error.metric} of {error.kind} models, on {error.curves} curves left out: median {error.median:.1%}, P90 "
        f"{error.p90:.1%}; nine in ten measurements lie at {error.low:.2f} to {error.high:.2f} of a prediction"
    )


def residual_lines(residuals: Sequence[Residual]) -> str:
    rows = [["term", "median", "P90", "roofline median", "P90", "rows", "spikes"]]
    for r in residuals:
        yardstick = (r.roofline_median, r.roofline_p90)
        rows.append(
            [
                r.term,
                f"{r.median:.1%}",
                f"{r.p90:.1%}",
                *("-" if value is None else f"{value:.1%}" for value in yardstick),
                f"{r.rows}",
                f"{r.spike_share:.1%}",
            ]
        )
    return table(rows)


def change_lines(changes: Sequence[Change]) -> str:
    rows = [
        [
            c.term,
            f"{c.median:+.1%}",
            f"{c.lowest:+.1%}",
            f"{c.highest:+.1%}",
            f"{c.shapes}",
            "drifted" if c.drifted else "",
        ]
        for c in changes
    ]
    return table([["term", "median", "lowest", "highest", "shapes", ""], *rows])
