"""The cost of engine steps: compiled once per model, hardware and limits, then priced in microseconds.

    gpu  = layers by computed tokens + attention by context + LM head and sampling by sequences
    step = max(gpu, host's own work) + overhead        async scheduling
    step = gpu + host's own work + overhead            without it

Without a CUDA graph the host's launches are a lower bound beside the GPU's work (`sim/cost/eager.py`).

Tables by token count are built in bulk, the first time a mixed step is priced. Attention of decodes is
compiled per number of sequences into segments linear in the summed context (alone, and beside chunks), that of
prefill chunks into a grid over (new tokens, context), bilinear between its knots. One price is one sum of floats,
rounded once, half to even, to nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.cost.assumptions import assumptions
from sim.cost.chunks import ChunkGrid
from sim.cost.cuda_graphs import padded_tokens
from sim.cost.eager import calls_per_layer
from sim.cost.hbm_traffic import HbmTraffic
from sim.cost.host_time import HostTime
from sim.cost.segments import Segments, ladder, through
from sim.cost.step_cost import StepParts, Traffic
from sim.cost.terms import StepTerms, total
from sim.curves.prefill import TILE

NS = 1e9
TOLERANCE = 5e-4
COUNT = np.arange(4096, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Mixed:
    """What steps with prefill chunks are made of [ns]: by chunk, by tokens, by sequences."""

    grid: ChunkGrid
    layers: list[float]
    heads: list[float]  # with the host overhead


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Pure decode of n sequences [ns]: what it costs in full by the context."""

    whole: Segments  # layers, head, host, and attention of the layers without a window
    attention: Segments  # the last of these alone
    windowed: Segments | None  # attention of the layers with a window, by the window context
    floor: float


class _Attention(Protocol):
    """Seconds of decodes' attention over all layers of a kind."""

    def __call__(
        self, num_seqs: int, context_tokens: NDArray[np.float64], *, window: bool
    ) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class _Beside:
    """Attention of n decodes in a launch with chunks [ns]: of the layers without a window, and of those with one."""

    attention: Segments
    windowed: Segments | None


class CompiledCost:
    """A `StepCost` of one model on one hardware; the text of the module gives the arithmetic."""

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
        model = terms.model
        self._weight_dtype, self._eager = weight_dtype, enforce_eager
        self.sliding_window = model.sliding_window if model.num_window_layers else None
        self._terms = terms
        self._host = host
        self._max_tokens = max_tokens
        mixed_sizes = sizes if mixed_sizes is None else mixed_sizes
        self._padded: list[int] = padded_tokens(sizes, max_tokens).tolist()
        self._mixed_padded: list[int] = padded_tokens(mixed_sizes, max_tokens).tolist()
        self._captured = max(sizes, default=0)
        self._mixed_captured = max(mixed_sizes, default=0)
        calls = model.num_layers * calls_per_layer(
            model, terms.tp, terms.weight_dtype, compiled=not enforce_eager
        )
        self._eager_ns = host.call_ns * calls
        self._launch_ns = NS * terms.prefill_launches()
        self._idle_ns = NS * terms.idle_tile_s
        self._decodes: dict[int, DecodeRow] = {}
        self._beside: dict[int, _Beside] = {}
        self._mixed: _Mixed | None = None
        self._hbm = HbmTraffic(terms)
        self._longest = 1  # context of a prompt priced so far
        self._deepest = 0  # tokens computed before a chunk, likewise
        total(terms.layers(1))  # what the profile cannot price is refused here, not in the first step

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:
        row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
        price = row.whole.at(context_tokens)
        if row.windowed is not None:
            price += row.windowed.at(window_context_tokens)
        return round(max(price, row.floor))

    def decode_window_ns(
        self, num_seqs: int, context_tokens: int, window_context_tokens: int, growing: int, steps: int
    ) -> NDArray[np.int64]:
        row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
        price = self._decode_price(row, num_seqs, context_tokens, window_context_tokens, growing, steps)
        return np.rint(np.maximum(price, row.floor)).astype(np.int64)

    def _decode_price(
        self,
        row: DecodeRow,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        growing: int,
        steps: int,
    ) -> NDArray[np.float64]:
        """Successive steps [ns] before they are rounded, and before the host's work bounds them from below."""
        step = COUNT[:steps] if steps <= len(COUNT) else np.arange(steps, dtype=np.float64)
        last = context_tokens + num_seqs * (steps - 1)
        price = row.whole.many(step * num_seqs + context_tokens, context_tokens, last)
        if row.windowed is not None:
            last = window_context_tokens + growing * (steps - 1)
            price += row.windowed.many(step * growing + window_context_tokens, window_context_tokens, last)
        return price

    def mixed_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        if not chunks:
            return self.decode_ns(num_seqs, context_tokens, window_context_tokens)
        return round(max(self._mixed_price(num_seqs, context_tokens, window_context_tokens, chunks)))

    def _mixed_price(
        self,
        num_seqs: int,
        context_tokens: float,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> tuple[float, float]:
        """A step with chunks [ns], and the least that the host's work lets it take."""
        mixed = self._mixed or self._compile_mixed()
        tokens, price = num_seqs, 0.0
        for new, computed in chunks:
            tokens += new
            price += mixed.grid.at(new, computed)
            self._longest = max(self._longest, new + computed)
            self._deepest = max(self._deepest, computed)
        if num_seqs:
            price += self._beside_chunks_ns(num_seqs, context_tokens, window_context_tokens, chunks)
        else:
            price += self._launch_ns
        sequences = num_seqs + len(chunks)
        price += mixed.layers[tokens] + mixed.heads[sequences] + self._host.token_ns * (tokens - num_seqs)
        if tokens <= self._mixed_captured:
            price += self._host.pieces_ns
        return price, self._floor_ns(sequences, captured=tokens <= self._mixed_captured)

    def parts(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> StepParts:
        terms, prefill = self._terms, sum(new for new, _ in chunks)
        padded, captured = (
            (self._mixed_padded, self._mixed_captured) if chunks else (self._padded, self._captured)
        )
        tokens, sequences = padded[num_seqs + prefill], num_seqs + len(chunks)
        seconds = {name: float(value) for name, value in terms.layers(tokens).items()}
        for name, value in terms.head(sequences).items():
            seconds[name] = seconds.get(name, 0.0) + float(value)
        seconds |= self._attention_seconds(num_seqs, context_tokens, window_context_tokens, chunks)
        busy = sum(seconds.values())
        seconds["host"] = (self._host.overhead_ns(sequences) + self._host.token_ns * prefill) / NS
        if chunks and num_seqs + prefill <= captured:
            seconds["host"] += self._host.pieces_ns / NS
        floor = self._floor_ns(sequences, captured=num_seqs + prefill <= captured)
        idle = floor / NS - busy - seconds["host"]
        if idle > 0:
            seconds["host_wait"] = idle
        overhead = sum(seconds.values()) - busy
        hbm, link = terms.bytes_moved(tokens, context_tokens, window_context_tokens, chunks)
        return StepParts(overhead_s=overhead, compute_s=busy, hbm_bytes=hbm, link_bytes=link, seconds=seconds)

    def _attention_seconds(
        self,
        num_seqs: int,
        context_tokens: float,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> dict[str, float]:
        seconds: dict[str, float] = {}
        if num_seqs and chunks:
            beside = self._beside_chunks_ns(num_seqs, context_tokens, window_context_tokens, chunks)
            seconds["decode_attention"] = beside / NS
        elif num_seqs:
            row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
            windowed = row.windowed.at(window_context_tokens) if row.windowed else 0.0
            seconds["decode_attention"] = (row.attention.at(context_tokens) + windowed) / NS
        if chunks:
            grid = (self._mixed or self._compile_mixed()).grid
            launch = 0.0 if num_seqs else self._launch_ns
            seconds["prefill_attention"] = (launch + sum(grid.at(*chunk) for chunk in chunks)) / NS
        return seconds

    def _beside_chunks_ns(
        self,
        num_seqs: int,
        context_tokens: float,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> float:
        """Attention of decodes in a launch with chunks, the launch included [ns]."""
        row = self._beside.get(num_seqs) or self._compile_beside(num_seqs)
        price = row.attention.at(context_tokens)
        if row.windowed is not None:
            price += row.windowed.at(window_context_tokens)
        if self._idle_ns:
            longest = max(new for new, _ in chunks)
            price += self._idle_ns * num_seqs * (-(-longest // TILE) - 1)
        return price

    @property
    def hbm_bytes_per_s(self) -> float:
        return self._terms.profile.hbm_bytes_per_s

    def traffic(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        *,
        chunks: Sequence[tuple[int, int]] = (),
        growing: int = 0,
        steps: int = 1,
    ) -> Traffic:
        contexts = context_tokens, window_context_tokens
        if chunks:
            tokens = num_seqs + sum(new for new, _ in chunks)
            price, floor = self._mixed_price(num_seqs, *contexts, chunks)
            slack_s = max(floor - price, 0.0) / NS
            grid = (self._mixed or self._compile_mixed()).grid
            attention_s = sum(grid.at(*chunk) for chunk in chunks) / NS
            return self._hbm.mixed(self._mixed_padded[tokens], contexts, chunks, attention_s, slack_s)
        row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
        alone = self._decode_price(row, num_seqs, *contexts, growing, steps)
        slack = np.maximum(row.floor - alone, 0.0) / NS
        return self._hbm.decodes(self._padded[num_seqs], num_seqs, contexts, growing, steps, slack)

    @property
    def extrapolated(self) -> Mapping[str, str]:
        """Terms asked outside the range of their measurements so far, with the axis and range in words."""
        return self._terms.extrapolated(
            self._max_tokens, max(self._decodes, default=1), self._longest, self._deepest
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the prices assume where a user would expect something else, one line each."""
        uncaptured = not self._eager and not self._mixed_captured
        return assumptions(self._terms, self._weight_dtype, enforce_eager=self._eager, uncaptured=uncaptured)

    def _floor_ns(self, sequences: int, *, captured: bool) -> float:
        return max(1.0, self._host.floor_ns(sequences) + (0.0 if captured else self._eager_ns))

    def _compile_decode(self, num_seqs: int) -> DecodeRow:
        terms = self._terms
        base = self._base_ns(num_seqs)
        attention = self._attention(num_seqs, base, terms.decode_attention, window=False)
        row = DecodeRow(
            whole=attention.shifted(base + self._host.overhead_ns(num_seqs)),
            attention=attention,
            windowed=self._attention(num_seqs, base, terms.decode_attention, window=True)
            if terms.model.num_window_layers
            else None,
            floor=self._floor_ns(num_seqs, captured=num_seqs <= self._captured),
        )
        self._decodes[num_seqs] = row
        return row

    def _compile_beside(self, num_seqs: int) -> _Beside:
        """Attention beside chunks: that of a launch alone where no other is known."""
        terms = self._terms
        if terms.shares_launches:
            base, price = self._base_ns(num_seqs), terms.shared_decode_attention
            windowed = (
                self._attention(num_seqs, base, price, window=True) if terms.model.num_window_layers else None
            )
            beside = _Beside(self._attention(num_seqs, base, price, window=False), windowed)
        else:
            row = self._decodes.get(num_seqs) or self._compile_decode(num_seqs)
            beside = _Beside(row.attention, row.windowed)
        self._beside[num_seqs] = beside
        return beside

    def _base_ns(self, num_seqs: int) -> float:
        """A decode's layers and head."""
        terms = self._terms
        return NS * float(total(terms.layers(self._padded[num_seqs])) + total(terms.head(num_seqs)))

    def _attention(self, num_seqs: int, base: float, price: _Attention, *, window: bool) -> Segments:
        """Attention of decodes by summed context [ns], within `TOLERANCE` of a whole step at its knots."""
        model = self._terms.model
        longest = model.sliding_window or 1 if window else model.max_position_embeddings
        context = num_seqs * ladder(1, longest)
        cost = NS * price(num_seqs, context, window=window)
        return through(context, cost, TOLERANCE * (base + cost))

    def _compile_mixed(self) -> _Mixed:
        padded = np.asarray(self._mixed_padded)
        sizes, where = np.unique(padded, return_inverse=True)
        layers = NS * total(self._terms.layers(np.maximum(sizes, 1)))[where]
        sequences = np.arange(self._max_tokens + 1)
        heads = NS * total(self._terms.head(np.maximum(sequences, 1)))
        overhead = [self._host.overhead_ns(int(count)) for count in sequences]
        self._mixed = _Mixed(
            grid=ChunkGrid(self._terms, self._max_tokens),
            layers=layers.tolist(),
            heads=(heads + overhead).tolist(),
        )
        return self._mixed
