"""Curves asked about the rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from calibration.tables import Table
from sim.curves.comm import CommCurve
from sim.curves.decode import DecodeCurve
from sim.curves.gemm import GemmCurve
from sim.curves.prefill import TILE, PrefillCurve
from sim.curves.shared import SharedLaunchCurve
from sim.curves.term import Float


def predict_gemm(curve: GemmCurve, table: Table) -> Float:
    return curve.seconds(table.number("m"), table.number("n"), table.number("k"))


def predict_prefill(curve: PrefillCurve, table: Table) -> Float:
    out = np.empty(len(table))
    for head_dim, window, here in _kinds(table):
        part = table.where(here)
        heads, kv_heads = part.number("heads"), part.number("kv_heads")
        isl, past, batch = part.number("isl"), part.number("past_kv"), part.number("batch")
        out[here] = curve.seconds(heads, kv_heads, head_dim, window, isl, past, batch)
    return out


def predict_decode(curve: DecodeCurve | SharedLaunchCurve, table: Table) -> Float:
    return _decodes(curve.seconds, table)


def predict_between_layers(curve: DecodeCurve, table: Table) -> Float:
    """Decodes whose keys and values come from HBM."""
    return _decodes(partial(curve.seconds, from_hbm=True), table)


def _decodes(seconds: Callable[..., Float], table: Table) -> Float:
    out = np.empty(len(table))
    for head_dim, window, here in _kinds(table):
        part = table.where(here)
        heads, kv_heads, batch = part.number("heads"), part.number("kv_heads"), part.number("batch")
        context = batch * part.number("kv_len")
        out[here] = seconds(heads, kv_heads, head_dim, window, batch, context)
    return out


def predict_shared(curve: SharedLaunchCurve, table: Table) -> Float:
    """Launches of a chunk, whose own time the table has, and of decodes beside it."""
    alone = table.number("chunk_s") - table.number("launch_s")
    return alone + curve.idle_block_s * idle_blocks(table) + predict_decode(curve, table)


def idle_blocks(table: Table) -> Float:
    """Blocks of decodes beside a chunk that find nothing to do."""
    tiles: Float = np.ceil(table.number("chunk") / TILE)
    return table.number("batch") * table.number("heads") * (tiles - 1)


def predict_all_reduce(curve: CommCurve | None, table: Table) -> Float:
    out = np.empty(len(table))
    for gpus in np.unique(table["gpus"]):
        here = table["gpus"] == gpus
        out[here] = np.nan if curve is None else curve.seconds(int(gpus), table.number("message_bytes")[here])
    return out


def _kinds(table: Table) -> list[tuple[int, int, np.ndarray]]:
    kinds = np.unique(np.stack([table["head_dim"], table["window"]], axis=1).astype(np.int64), axis=0)
    return [(int(d), int(w), (table["head_dim"] == d) & (table["window"] == w)) for d, w in kinds]
