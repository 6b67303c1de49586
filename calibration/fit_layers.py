"""Layer tables -> curves: few shapes at many sizes, and decodes that share a launch with chunks."""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from calibration.collection import Collection
from calibration.fit_decode import KV_HEADS, decode_curve, streaming_bytes_per_s
from calibration.fit_measured import gemm_roofline
from calibration.fit_prefill import prefill_regime
from calibration.head_rows import GROUPS, fitted, points, smooth_per_length, split
from calibration.predict import idle_blocks
from calibration.regression import smooth
from calibration.tables import Table
from sim.curves.decode import DecodeCurve, DecodeRegime
from sim.curves.gemm import GemmCurve
from sim.curves.heads import KV_BYTES, group_coordinate
from sim.curves.prefill import TILE, PrefillCurve
from sim.curves.shared import SharedLaunchCurve
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device, Profile

SHAPE_BANDWIDTH = np.array([0.35, 0.35])
"""Of the local regression in octaves of n and k: a measured shape takes hardly anything from the others."""
LAYOUT_BANDWIDTH = np.array([0.4, 2.0, 2.0])
"""Of the correction between layers, in octaves of sequences x KV heads, KV heads, and the group coordinate: it hardly
depends on the latter two, and few layouts were measured."""
L2_RATE = 4.0
"""Query heads that read the same keys and values find most of them in L2: so many times the vendor's HBM bandwidth is
where the fit of their rate begins."""
HEADS = np.array([16, 32, 64.0])
"""Query heads at the nodes of a shared launch's table."""
LEAST = 0.2
"""Of a launch: decodes and launch together take this at least, however much a measurement of both is off."""
MANY_DECODES, SHORT_CONTEXT = 32, 256
"""Rows of so many decodes and so short contexts show idle blocks: little else is in their launch."""
_HEADS = {"heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim"}


def fit_gemm_layers(table: Table, dtype: str, device: Device) -> GemmCurve:
    """A roofline, then what remains at each measured number of tokens, smoothed over shapes alone.

    Nothing is smoothed along the tokens: steps there are the kernels' own (RTX 4090, one layer of 28,672 columns:
    378 us for 256 tokens, 605 us for 272).
    """
    bare = gemm_roofline(table, dtype, device)
    m, n, k = (table.number(axis) for axis in "mnk")
    residual = np.log(table.time_s / bare.base(m, n, k))
    nodes = [np.log2(np.unique(values)) for values in (m, n, k)]
    shapes, which = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    along = np.stack(
        [np.interp(nodes[0], np.log2(m[which == i]), residual[which == i]) for i in range(len(shapes))]
    )
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*nodes[1:], indexing="ij")], axis=1)
    cube = smooth(np.log2(shapes), along, grid, SHAPE_BANDWIDTH)
    cube = cube.T.reshape([len(axis) for axis in nodes])
    return bare.model_copy(
        update={
            "source": f"layers of dtype {dtype}: {len(table)} rows, {len(shapes)} shapes",
            "table": LogTable.pack(dict(zip("mnk", nodes, strict=True)), cube),
        }
    )


def fit_prefill_layers(table: Table, kv_dtype: str, device: Device) -> PrefillCurve:
    """Chunks alone in their launch, with and without context."""
    kv_bytes = KV_BYTES[kv_dtype]
    return PrefillCurve(
        source=f"attention of one chunk over KV of {kv_dtype}: {len(table)} rows, with and without context",
        fitted=fitted(table, **_HEADS, new_tokens="isl", context_tokens="past_kv", num_seqs="batch"),
        kv_bytes=kv_bytes,
        regimes=tuple(
            prefill_regime(part, kv_bytes, (dim, window), device) for dim, window, part in split(table)
        ),
    )


def fit_decode_layers(table: Table, kv_dtype: str, device: Device) -> DecodeCurve:
    """Decodes alone in their launch, their KV read from HBM."""
    return _decodes(
        table, kv_dtype, device, f"attention of decodes over KV of {kv_dtype}, between other layers"
    )


def fit_shared_layers(table: Table, kv_dtype: str, device: Device) -> SharedLaunchCurve:
    """Decodes beside chunks: first those beside short ones, then what a longer chunk adds."""
    decodes = _beside_short_chunks(table)
    source = f"attention of decodes beside a chunk over KV of {kv_dtype}"
    return SharedLaunchCurve(
        source=f"{source}: {len(table)} rows of a chunk without context, less the chunk alone",
        fitted=fitted(table, **_HEADS, num_seqs="batch", mean_context="kv_len", new_tokens="chunk"),
        decodes=_decodes(
            _by_query_head(decodes),
            kv_dtype,
            device,
            f"{source} of at most {TILE} tokens, by query head",
            rate=L2_RATE,
            heads=HEADS,
        ),
        idle_block_s=_idle_block(table, decodes),
    )


def with_layers(profile: Profile, rows: Collection) -> Profile:
    """Add what layer tables know and tables of single kernels do not.

    Decodes whose KV comes from HBM get a correction; decodes beside chunks get a curve of their own.
    """
    decode, shared = dict(profile.decode_attention), dict(profile.shared_attention)
    for dtype in map(str, np.unique(rows.tables["attention_decode"]["kv_dtype"])):
        if dtype in decode:
            decode[dtype] = between_layers(
                decode[dtype], rows.tables["attention_decode"].only(kv_dtype=dtype)
            )
            beside = rows.tables["attention_shared"].only(kv_dtype=dtype)
            shared[dtype] = fit_shared_layers(beside, dtype, rows.device)
    return profile.model_copy(update={"decode_attention": decode, "shared_attention": shared})


def between_layers(curve: DecodeCurve, table: Table) -> DecodeCurve:
    """Correct the time of KV from HBM by rows of layers, in every regime that has such rows."""
    bare = curve.model_copy(
        update={"regimes": tuple(one.model_copy(update={"between_layers": None}) for one in curve.regimes)}
    )
    regimes = []
    for regime in bare.regimes:
        part = table.only(head_dim=regime.head_dim, window=regime.window)
        regimes.append(_corrected(bare, regime, part) if len(part) else regime)
    source = f"{curve.source.partition('; between layers')[0]}; between layers {len(table)} rows"
    return curve.model_copy(update={"regimes": tuple(regimes), "source": source})


def _corrected(bare: DecodeCurve, regime: DecodeRegime, part: Table) -> DecodeRegime:
    kind = regime.head_dim, regime.window
    batch, kv_heads = part.number("batch"), part.number("kv_heads")
    layout = part.number("heads"), kv_heads
    before = bare.seconds(*layout, *kind, batch, batch * part.number("kv_len"), from_hbm=True)
    rows = batch * kv_heads
    octaves = np.arange(np.floor(np.log2(rows.min())), np.ceil(np.log2(rows.max())) + 1.0)
    nodes = octaves, np.log2(KV_HEADS), group_coordinate(GROUPS)
    places = points(part, rows, group_coordinate)
    residual = np.log(part.time_s / before)
    lengths, factor = smooth_per_length(part.number("kv_len"), places, residual, nodes, LAYOUT_BANDWIDTH)
    context, at, heads, group = np.meshgrid(lengths, 2.0**octaves, KV_HEADS, GROUPS, indexing="ij")
    batch = np.maximum(at / heads, 1.0)
    base = np.log(bare.seconds(heads * group, heads, *kind, batch, batch * context, from_hbm=True))
    time = (base + factor).reshape(len(lengths), -1)
    for column in time.T:  # the least change that lets times grow with the context
        column[:] = isotonic_regression(column).x
    axes = dict(zip(("mean_context", "rows", "kv_heads", "group"), (np.log2(lengths), *nodes), strict=True))
    table = LogTable.pack(axes, time.reshape(factor.shape) - base)
    return regime.model_copy(update={"between_layers": table})


def _decodes(
    table: Table, kv_dtype: str, device: Device, what: str, *, rate: float = 1.0, heads: Float = KV_HEADS
) -> DecodeCurve:
    bandwidths = rate * device.hbm_bytes_per_s, streaming_bytes_per_s(table, KV_BYTES[kv_dtype], device)
    return decode_curve(table, kv_dtype, f"{what}: {len(table)} rows", bandwidths, heads=heads)


def _by_query_head(table: Table) -> Table:
    """Each query head with a KV head of its own, and how many share theirs as its group."""
    heads, kv_heads = table.number("heads"), table.number("kv_heads")
    counted = {"heads": heads * heads / kv_heads, "kv_heads": heads}
    return Table(table.name, table.columns | counted, table.time_s)


def _beside_short_chunks(table: Table) -> Table:
    """What decodes add to a launch whose chunk fills one tile at most, and the launch: median over the chunks."""
    short = table.where(table.number("chunk") <= TILE)
    added = _added(short)
    axes = [name for name in short.columns if not name.startswith(("chunk", "launch"))]
    keys = np.stack([np.unique(short[axis], return_inverse=True)[1] for axis in axes], axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    time_s = np.array([np.median(added[group.ravel() == i]) for i in range(len(first))])
    return Table("attention_decode", {axis: short[axis][first] for axis in axes}, time_s)


def _added(table: Table) -> Float:
    """The launch without its chunk; no less than next to nothing."""
    launch: Float = table.number("launch_s")
    return np.maximum(table.time_s - table.number("chunk_s") + launch, LEAST * launch)


def _idle_block(table: Table, decodes: Table) -> float:
    """Seconds of a block without work: median over launches of many decodes of short contexts."""
    alone = dict(zip(_keys(decodes), decodes.time_s.tolist(), strict=True))
    rows = table.where(
        (table.number("chunk") > TILE)
        & (table.number("batch") >= MANY_DECODES)
        & (table.number("kv_len") <= SHORT_CONTEXT)
    )
    known = np.array([key in alone for key in _keys(rows)], dtype=bool)
    if not known.any():
        return 0.0
    rows = rows.where(known)
    more = _added(rows) - np.array([alone[key] for key in _keys(rows)])
    return max(float(np.median(more / idle_blocks(rows))), 0.0)


def _keys(table: Table) -> list[tuple[float, ...]]:
    axes = ("heads", "kv_heads", "head_dim", "window", "batch", "kv_len")
    return list(zip(*(table.number(axis).tolist() for axis in axes), strict=True))
