"""How decode attention divides its contexts among blocks of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_RESIDENT: Final = 2
"""Blocks of threads of `decode_attention` on a multiprocessor at once: what its registers leave."""
_WAVES: Final = 4
"""Waves of blocks that are wanted, so that the last, partial one weighs little."""
_LEAST_TOKENS: Final = 256
"""A shorter part costs more in merging than it wins."""
_GRANULE: Final = 64
"""Tokens that the warps of a block take in a round."""
_MOST_TABLE_ENTRIES: Final = 3072
"""Of a block table in shared memory: 12 KiB beside at most 32.5 KiB of the kernel's own, of 48."""


@dataclass(frozen=True, slots=True)
class Splits:
    num_splits: int
    split_tokens: int
    table_bytes: int


def plan_splits(num_blocks: int, max_tokens: int, block_size: int | None, num_multiprocessors: int) -> Splits:
    """Parts for contexts of up to `max_tokens`, where unsplit ones would be `num_blocks` blocks of threads.

    `block_size` [tokens] of the KV blocks; None: a contiguous cache, which needs no table.
    """
    max_tokens = max(max_tokens, 1)
    wanted = -(-_WAVES * _RESIDENT * num_multiprocessors // max(num_blocks, 1))
    parts = max(1, min(wanted, -(-max_tokens // _LEAST_TOKENS)))
    split_tokens = _round_up(-(-max_tokens // parts), _GRANULE)
    if block_size is not None:
        # A part that starts within a block touches one block more.
        most = (_MOST_TABLE_ENTRIES - 1) * block_size // _GRANULE * _GRANULE
        split_tokens = min(split_tokens, most)
    entries = 0 if block_size is None else -(-split_tokens // block_size) + 1
    return Splits(-(-max_tokens // split_tokens), split_tokens, 4 * entries)


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
