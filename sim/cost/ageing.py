"""The cost of steps where older tokens of the KV cache are kept in part, or in 8 bits.

A sequence's latest tokens are whole; with `window_context_tokens` summed up to that border, the rest of the context is
older. Attention is one kernel over what is kept: `read` tokens at the price of 16-bit KV, less what 8-bit KV saves, in
proportion to the share of older tokens in what is read.

    older = context - window context          read = window context + kept x older
    attention = A16(read) - (A16(read) - A8(read)) x kept x older / read
    ageing = launches + tokens that age x bytes moved / bandwidth

In a step of n decodes at most min(n, older) tokens age: fewer only where some sequences have not reached the border,
and then the context of those that have dwarfs it. Prompts are priced as in a plain cache but for the ageing: the keys
and values of a chunk are whole while its attention runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.cost.compiled import COUNT, NS, TOLERANCE, CompiledCost, DecodeRow
from sim.cost.host_time import HostTime
from sim.cost.segments import Segments, ladder, through
from sim.cost.terms import StepTerms
from workloads.errors import ConfigError


class AgeingCost(CompiledCost):
    """A `StepCost` whose `sliding_window`, in the engine's words, is the border of age."""

    def __init__(
        self,
        terms: StepTerms,
        host: HostTime,
        sizes: tuple[int, ...],
        max_tokens: int,
        *,
        mixed_sizes: tuple[int, ...] | None = None,
        weight_dtype: str = "auto",
        enforce_eager: bool = False,
    ) -> None:
        super().__init__(
            terms,
            host,
            sizes,
            max_tokens,
            mixed_sizes=mixed_sizes,
            weight_dtype=weight_dtype,
            enforce_eager=enforce_eager,
        )
        self.sliding_window = terms.kv_border
        self._border = terms.kv_border
        self._kept = float(terms.compression.older_kept)
        self._dropped = float(1 - terms.compression.older_kept)
        launches, token = terms.ageing()
        self._launches_ns, self._ageing_ns = NS * launches, NS * token
        self._saves = terms.older_kv_dtype != terms.decode_kv_dtype
        try:
            terms.older_saving(1, 1)
        except ConfigError as error:  # refused here, not in the first step that has an older token
            raise ConfigError(f"kv_compression.cold_dtype: {error}") from error
        self._savings: dict[int, Segments] = {}

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:
        row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
        older = context_tokens - window_context_tokens
        if not older:
            return round(max(row.whole.at(context_tokens), row.floor))
        read = context_tokens - self._dropped * older
        price = row.whole.at(read)
        if self._saves:
            price -= self._saving(num_seqs).at(read) * (self._kept * older / read)
        price += self._launches_ns + self._ageing_ns * min(num_seqs, older)
        return round(max(price, row.floor))

    def _decode_price(
        self,
        row: DecodeRow,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        growing: int,
        steps: int,
    ) -> NDArray[np.float64]:
        step = COUNT[:steps] if steps <= len(COUNT) else np.arange(steps, dtype=np.float64)
        context = step * num_seqs + context_tokens
        older = context - (step * growing + window_context_tokens)
        read = context - self._dropped * older
        first, last = float(read[0]), float(read[-1])
        price = row.whole.many(read, first, last)
        if self._saves:
            price -= self._saving(num_seqs).many(read, first, last) * (self._kept * older / read)
        price += np.where(older > 0.0, self._launches_ns + self._ageing_ns * np.minimum(num_seqs, older), 0.0)
        return price

    def _mixed_price(
        self,
        num_seqs: int,
        context_tokens: float,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> tuple[float, float]:
        older = context_tokens - window_context_tokens
        read = context_tokens - self._dropped * older
        price, floor = super()._mixed_price(num_seqs, read, 0, chunks)
        price += self._moved_ns(num_seqs, older, chunks) - self._saved_ns(num_seqs, read, older)
        return price, floor

    def _attention_seconds(
        self,
        num_seqs: int,
        context_tokens: float,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> dict[str, float]:
        older = context_tokens - window_context_tokens
        read = context_tokens - self._dropped * older
        seconds = super()._attention_seconds(num_seqs, read, 0, chunks)
        if num_seqs:
            seconds["decode_attention"] -= self._saved_ns(num_seqs, read, older) / NS
        moved = self._moved_ns(num_seqs, older, chunks)
        return {**seconds, "kv_ageing": moved / NS} if moved else seconds

    def _saved_ns(self, num_seqs: int, read: float, older: float) -> float:
        if not self._saves or not older:
            return 0.0
        return self._saving(num_seqs).at(read) * (self._kept * older / read)

    def _moved_ns(self, num_seqs: int, older: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Time in which tokens age, of decodes and of chunks that reach beyond the border."""
        ages = min(num_seqs, older)
        for new, computed in chunks:
            ages += max(computed + new - self._border, 0) - max(computed - self._border, 0)
        return self._launches_ns + self._ageing_ns * ages if ages else 0.0

    def _saving(self, num_seqs: int) -> Segments:
        """What attention would save if all that it reads were older [ns], by the tokens read."""
        found = self._savings.get(num_seqs)
        if found is None:
            terms = self._terms
            read = num_seqs * ladder(1, terms.model.max_position_embeddings)
            saving = NS * terms.older_saving(num_seqs, read)
            whole = NS * terms.decode_attention(num_seqs, read, window=False)
            found = self._savings[num_seqs] = through(read, saving, TOLERANCE * whole)
        return found
