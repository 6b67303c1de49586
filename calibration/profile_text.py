"""Profiles in words: what the commands print, as plain tables or as documents for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.compare_profiles import Change
from sim.profile import HostOverhead, Profile, Residual


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
    if profile.residuals:
        lines += ["", "error on what was held out of the fit:", residual_lines(profile.residuals)]
    return "\n".join(lines)


def _tera(flops_per_s: float) -> str:
    """Whole tera-operations, of slow devices three digits."""
    tera = flops_per_s / 1e12
    return f"{tera:,.0f}" if tera >= 10 else f"{tera:.3g}"


def _host_line(host: HostOverhead) -> str:
    return (
        f"host overhead of a step: {host.base_s * 1e6:.0f} us + {host.per_layer_s * 1e6:.1f} us a layer "
        f"+ {host.per_seq_s * 1e6:.1f} us a sequence ({host.source})"
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
