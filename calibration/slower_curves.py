"""Curves with all times multiplied: the same shape, on a device or engine that is slower throughout."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from sim.curves.decode import DecodeCurve
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import GemmCurve
from sim.curves.prefill import PrefillCurve

Terms = TypeVar("Terms", bound=BaseModel)


def slower_gemm(curve: GemmCurve, factor: float) -> GemmCurve:
    tiles = tuple(_slower(tile, factor, ("start_s",), ("flops_per_s",)) for tile in curve.tiles)
    return _slower(curve, factor, ("launch_s",), ("bytes_per_s",)).model_copy(update={"tiles": tiles})


def slower_decode(curve: DecodeCurve, factor: float) -> DecodeCurve:
    times, rates = ("launch_s", "query_s_per_value"), ("bytes_per_s", "hbm_bytes_per_s")
    regimes = tuple(_slower(regime, factor, times, rates) for regime in curve.regimes)
    return curve.model_copy(update={"regimes": regimes})


def slower_prefill(curve: PrefillCurve, factor: float) -> PrefillCurve:
    times = ("launch_s", "sequence_s", "write_s_per_value")
    rates = ("flops_per_s", "block_flops_per_s", "kv_bytes_per_s", "io_bytes_per_s")
    regimes = tuple(_slower(regime, factor, times, rates) for regime in curve.regimes)
    return curve.model_copy(update={"regimes": regimes})


def slower_elementwise(curve: ElementwiseCurve, factor: float) -> ElementwiseCurve:
    return _slower(curve, factor, ("launch_s",), ("bytes_per_s",))


def _slower(terms: Terms, factor: float, times: tuple[str, ...], rates: tuple[str, ...]) -> Terms:
    """The terms with these times (or tuples of them) multiplied and these rates divided."""
    values = {name: getattr(terms, name) for name in (*times, *rates)}
    longer = {
        name: tuple(time * factor for time in values[name])
        if isinstance(values[name], tuple)
        else values[name] * factor
        for name in times
    }
    return terms.model_copy(update=longer | {name: values[name] / factor for name in rates})
