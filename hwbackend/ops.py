"""Operations of a transformer over paged KV blocks: one set of signatures, on every device.

Names of axes: n tokens, b sequences, h query heads, kvh KV heads (h is a multiple of kvh, "grouped queries": head i
reads KV head i // (h / kvh)), d dimensions of a head, m and k and i rows and columns of matrices. Scores are scaled
by 1/sqrt(d) and softmax is exact; sums are in float32 whatever the dtype of the values.

Arrays are the device's own (NumPy, CuPy). Values have the dtype of the ops (`dtype`): float32 on the CPU, float16 or
bfloat16 on a GPU, where bfloat16 lives in arrays of uint16, as CuPy has no such dtype. Ids, slots, positions and
lengths are int32. Shapes that do not fit raise `ShapeError` before anything is launched; on a GPU ids are trusted,
since to look at them would stall the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

Array: TypeAlias = Any
"""A NumPy or CuPy array: CuPy cannot be imported where there is no GPU, so it cannot be named here."""

Dtype = Literal["float32", "float16", "bfloat16", "int8", "fp8"]
VALUE_BYTES: Final[dict[Dtype, int]] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8": 1}


class ShapeError(ValueError):
    """Arrays that do not fit each other or the kernel: which operation, what came, what would be right."""


@dataclass(frozen=True, slots=True)
class KvPool:
    """KV blocks of one layer.

    data: [2, num_blocks, block_size, kvh, d], keys and values. Token i of a sequence lies in slot
    `block_table[i // block_size] * block_size + i % block_size`.
    scales: a stored value times its scale is the value. int8: [2, num_blocks, kvh, block_size] float32, one a token
    and head, set when it is written. fp8 (e4m3 in uint8): [2] float32, of all keys and all values, set beforehand.
    Otherwise None.
    """

    data: Array
    scales: Array | None
    dtype: Dtype

    @property
    def num_blocks(self) -> int:
        return int(self.data.shape[1])

    @property
    def block_size(self) -> int:
        return int(self.data.shape[2])

    @property
    def num_kv_heads(self) -> int:
        return int(self.data.shape[3])

    @property
    def head_dim(self) -> int:
        return int(self.data.shape[4])

    @property
    def bytes_per_token(self) -> int:
        """Key and value of one token, with the scales that are its own."""
        scale_bytes = 4 if self.dtype == "int8" else 0
        return 2 * self.num_kv_heads * (self.head_dim * VALUE_BYTES[self.dtype] + scale_bytes)


class Ops(Protocol):
    """What a transformer needs. Results are new arrays unless a method says that it writes in place."""

    dtype: Dtype

    def to_values(self, x: Array) -> Array:
        """float32 values of the device in the dtype of the ops, to nearest even."""
        ...

    def to_floats(self, x: Array) -> Array:
        """The reverse, exact."""
        ...

    def add(self, x: Array, y: Array) -> None:
        """Add y to x in place; both contiguous and of one shape."""
        ...

    def matmul(self, x: Array, w: Array, out: Array | None = None) -> Array:
        """x[m, k] w[k, n] -> [m, n]."""
        ...

    def matmul_8bit(self, x: Array, w: Array) -> Array:
        """int8 x[m, k] and w[n, k] -> int32 [m, n] = x w^T: the layout that 8-bit tensor cores want.

        On a GPU k and n are multiples of 4.
        """
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """x[m, i] / sqrt(mean(x^2) + eps) * weight[i], row by row."""
        ...

    def rope_table(self, max_positions: int, head_dim: int, theta: float) -> Array:
        """[max_positions, d] float32: cosines, then sines, of position * theta^(-2j/d) for j < d/2."""
        ...

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        """Rotate q[n, h, d] and k[n, kvh, d] in place by positions[n]; dimension j pairs with j + d/2."""
        ...

    def silu_mul(self, gate_up: Array) -> Array:
        """gate_up[m, 2i], gate then up -> silu(gate) * up [m, i]."""
        ...

    def new_pool(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Dtype | None = None
    ) -> KvPool:
        """An empty (zero) pool of this dtype (None: the ops' own), or an 8-bit one: int8, on a GPU fp8 too."""
        ...

    def append_kv(self, pool: KvPool, k: Array, v: Array, slots: Array) -> None:
        """Write k[n, kvh, d] and v[n, kvh, d] to slots[n]; a negative slot (padding) takes nothing."""
        ...

    def decode_attention(
        self,
        q: Array,
        pool: KvPool,
        block_tables: Array,
        context_lens: Array,
        *,
        max_context_len: int | None = None,
        window: int | None = None,
    ) -> Array:
        """One new token a sequence: q[b, h, d], block_tables[b, blocks], context_lens[b] -> [b, h, d].

        A context includes the new token, whose KV is in the pool already; an empty one gives zeros. `window`: only so
        many latest tokens are seen. `max_context_len` saves a GPU from asking the device for it.
        """
        ...

    def prefill_attention(
        self, q: Array, pool: KvPool, block_table: Array, context_len: int, *, window: int | None = None
    ) -> Array:
        """A chunk of one sequence: q[n, h, d], block_table[blocks] -> [n, h, d], causal.

        Token i stands at position context_len + i and sees the positions up to its own; the KV of the chunk itself is
        in the pool already.
        """
        ...

    def contiguous_decode_attention(
        self, q: Array, k: Array, v: Array, context_lens: Array, *, max_context_len: int | None = None
    ) -> Array:
        """As `decode_attention`, over k and v [b, capacity, kvh, d]."""
        ...

    def copy_blocks(self, pool: KvPool, src: Array, dst: Array) -> None:
        """Copy blocks src[n] to dst[n], which are none of src."""
        ...

    def gather_blocks(self, pool: KvPool, ids: Array) -> KvPool:
        """Blocks ids[n] as a pool of their own, in this order."""
        ...

    def scatter_blocks(self, pool: KvPool, ids: Array, blocks: KvPool) -> None:
        """The reverse: block i of `blocks` to ids[i]; ids are distinct."""
        ...

    def quantise(self, x: Array, dtype: Dtype = "int8", scale: Array | None = None) -> tuple[Array, Array]:
        """x[..., d] to 8 bits -> (values, scales).

        int8: scales [...], of each row its largest magnitude / 127. fp8: all by `scale` [1], saturating.
        """
        ...

    def dequantise(self, values: Array, scales: Array) -> Array:
        """The reverse of `quantise`: int8 values have a scale a row, fp8 ones (uint8) a single scale."""
        ...


class StreamOps(Protocol):
    """Plain traffic over device memory, for measuring it. Buffers are contiguous, their bytes a multiple of 16."""

    def copy(self, dst: Array, src: Array) -> None:
        """Read every byte of src, write it to dst."""
        ...

    def read(self, src: Array) -> Array:
        """Read every byte; the result depends on all of them."""
        ...

    def write(self, dst: Array) -> None:
        """Write every byte."""
        ...

    def flush(self, buffer: Array) -> None:
        """Read and change every word of a buffer larger than the last cache, which then holds nothing else."""
        ...

    def empty(self) -> None:
        """Launch nothing."""
        ...
