"""Shapes that operations refuse, the same on every device."""

from __future__ import annotations

from typing import Final

from hwbackend.ops import Array, KvPool, ShapeError

WORD_BYTES: Final = 16
"""What a thread of a kernel loads at once."""


def require(condition: bool, operation: str, message: str) -> None:
    if not condition:
        raise ShapeError(f"{operation}: {message}")


def check_matmul(x: Array, w: Array) -> None:
    require(
        x.ndim == 2 and w.ndim == 2 and x.shape[1] == w.shape[0],
        "matmul",
        f"{x.shape} times {w.shape}; the inner sizes must be equal",
    )


def check_norm(x: Array, weight: Array) -> None:
    require(
        x.ndim == 2 and weight.shape == x.shape[1:],
        "rms_norm",
        f"x {x.shape} with weight {weight.shape}; must be [m, i] and [i]",
    )


def check_rope(q: Array, k: Array, positions: Array, table: Array) -> None:
    fits = q.ndim == k.ndim == 3 and q.shape[0] == k.shape[0] == positions.shape[0]
    fits = fits and q.shape[2] == k.shape[2] == table.shape[1] and q.shape[2] % 2 == 0
    message = f"q {q.shape}, k {k.shape}, positions {positions.shape}, table {table.shape}"
    require(fits, "rope", f"{message}; must be [n, h, d], [n, kvh, d], [n], [positions, d] with even d")


def check_gate_up(gate_up: Array) -> None:
    require(
        gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0,
        "silu_mul",
        f"{gate_up.shape}; must be [m, 2i], gate beside up",
    )


def check_append(pool: KvPool, k: Array, v: Array, slots: Array) -> None:
    wanted = (slots.shape[0], pool.num_kv_heads, pool.head_dim)
    require(
        slots.ndim == 1 and k.shape == wanted and v.shape == wanted,
        "append_kv",
        f"k {k.shape} and v {v.shape} for {slots.shape} slots; must be {wanted}",
    )


def check_heads(operation: str, q: Array, num_kv_heads: int, head_dim: int) -> None:
    require(
        q.ndim == 3 and q.shape[2] == head_dim and q.shape[1] > 0 and q.shape[1] % num_kv_heads == 0,
        operation,
        f"q {q.shape}; must be [tokens, a multiple of {num_kv_heads} heads, {head_dim}]",
    )


def check_decode(q: Array, pool: KvPool, block_tables: Array, context_lens: Array) -> None:
    check_heads("decode_attention", q, pool.num_kv_heads, pool.head_dim)
    require(
        block_tables.ndim == 2 and context_lens.shape == (q.shape[0],) == block_tables.shape[:1],
        "decode_attention",
        f"{q.shape[0]} sequences with block_tables {block_tables.shape}, context_lens {context_lens.shape}; "
        f"must be [b, blocks] and [b]",
    )


def check_prefill(q: Array, pool: KvPool, block_table: Array, context_len: int) -> None:
    check_heads("prefill_attention", q, pool.num_kv_heads, pool.head_dim)
    require(context_len >= 0, "prefill_attention", f"context_len {context_len}; must not be negative")
    tokens = context_len + q.shape[0]
    require(
        block_table.ndim == 1 and block_table.shape[0] * pool.block_size >= tokens,
        "prefill_attention",
        f"block_table {block_table.shape} of blocks of {pool.block_size}; must hold {tokens} tokens",
    )


def check_contiguous(q: Array, k: Array, v: Array, context_lens: Array) -> None:
    operation = "contiguous_decode_attention"
    require(
        k.ndim == 4
        and k.shape == v.shape
        and k.shape[0] == q.shape[0]
        and context_lens.shape == (q.shape[0],),
        operation,
        f"q {q.shape}, k {k.shape}, v {v.shape}, context_lens {context_lens.shape}; "
        f"must be [b, h, d], [b, capacity, kvh, d] twice, [b]",
    )
    check_heads(operation, q, k.shape[2], k.shape[3])


def check_max_context(operation: str, max_context_len: int, capacity: int) -> None:
    require(
        max_context_len <= capacity,
        operation,
        f"a context of {max_context_len} tokens; there is room for {capacity}",
    )


def check_window(operation: str, window: int | None) -> None:
    require(window is None or window >= 1, operation, f"window {window}; must be at least 1 token, or None")


def check_same_kind(operation: str, pool: KvPool, blocks: KvPool, count: int) -> None:
    wanted = (2, count, *pool.data.shape[2:])
    require(
        blocks.dtype == pool.dtype and tuple(blocks.data.shape) == wanted,
        operation,
        f"blocks {blocks.data.shape} of {blocks.dtype}; must be {wanted} of {pool.dtype}",
    )
    if pool.dtype == "int8":
        scales = None if blocks.scales is None else tuple(blocks.scales.shape)
        own = (2, count, pool.num_kv_heads, pool.block_size)
        require(scales == own, operation, f"int8 blocks with scales {scales}; must be {own}")


def contiguous_words(operation: str, x: Array) -> int:
    """16-byte words of an array that kernels take as such."""
    require(
        x.flags.c_contiguous and x.nbytes % WORD_BYTES == 0,
        operation,
        f"{x.nbytes} bytes; must be contiguous, and a multiple of {WORD_BYTES}",
    )
    return x.nbytes // WORD_BYTES
