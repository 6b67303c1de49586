"""Decodes that share an attention launch with the chunks of prompts."""

from __future__ import annotations

from numpy.typing import ArrayLike

from sim.curves.decode import DecodeCurve
from sim.curves.term import Curve, Float, SecondsOrZero, floats


class SharedLaunchCurve(Curve):
    """What decodes take in a launch that also computes chunks, where that is another kernel than for decodes alone.

    FlashAttention 2 packs the query heads of a KV head into one tile, and splits long contexts among thread blocks,
    only where every sequence has one new token. Beside a chunk each query head reads the keys and values by itself and
    walks the whole context: to `decodes` each has a KV head of its own. How many share their keys and values in truth
    hardly shows while those of all sequences fit into L2, and is but a coordinate of its table (RTX PRO 6000: 2,048
    query heads on 1,024 tokens each take 310 us where four share them, 297 us where eight do).
    The grid of the launch is as long as its longest chunk, and a decode's blocks beyond its first find nothing to
    do: `idle_block_s` for each of them, one for a sequence, a query head and TILE tokens of that chunk.
    What the chunks themselves take is that of a launch of their own.
    """

    decodes: DecodeCurve
    idle_block_s: SecondsOrZero

    def seconds(
        self,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: int,
        window: int,
        num_seqs: ArrayLike,
        context_tokens: ArrayLike,
    ) -> Float:
        """Time of the decodes and of the launch, beside chunks of at most TILE tokens, as measured between layers."""
        count = floats(heads)
        return self.decodes.seconds(
            count * count / floats(kv_heads), count, head_dim, window, num_seqs, context_tokens
        )
