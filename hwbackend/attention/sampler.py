"""Attention mass of successive decode steps of one sequence, step by step and layer by layer, and what they read.

Heads that share KV share its pages: a page comes with all KV heads, or with one where they are kept apart. Three rules:

    mean   a layer chooses by the mass over all its heads, on average
    any    each KV head chooses by the mass of its own query heads, and the layer reads what any of them chose
    apart  each KV head stands as a layer of its own (`Header.heads`)

The weight of a page that is read is its share of the mass by which it was chosen; with `any`, of the layer's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hwbackend.attention.choice import Choice
from hwbackend.attention.mass import Float64, page_mass
from sim.errors import ConfigError, InvariantError
from sim.kv.access.recording import Header, Recording

HeadRule = Literal["mean", "any", "apart"]
HEAD_RULES: Final[tuple[HeadRule, ...]] = get_args(HeadRule)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a source is recorded: pages of `block_size` tokens, chosen by a rule, over so many decode steps."""

    block_size: int
    choice: Choice
    heads: HeadRule = "mean"
    steps: int = 64

    def __post_init__(self) -> None:
        if self.heads not in HEAD_RULES:
            raise ConfigError(f"--heads {self.heads}: not one of {', '.join(HEAD_RULES)}")
        for name in ("block_size", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")


class PageSampler:
    """Takes what a source shows: layer after layer of a step, step after step with one more token each.

    A step that does not follow the last, as after a preemption, begins anew; once `done`, nothing more is taken.
    """

    def __init__(self, sampling: Sampling, num_layers: int, num_kv_heads: int) -> None:
        self._sampling = sampling
        self._num_layers = num_layers
        self._kv_heads = num_kv_heads
        self._heads = num_kv_heads if sampling.heads == "apart" else 1
        self._first = 0
        self._next = 0  # layers of the recorded steps that are here
        self._rows: list[tuple[int, int, NDArray[np.int64], Float64]] = []  # step, layer, pages, weights

    @property
    def steps(self) -> int:
        """Steps that are whole."""
        return self._next // self._num_layers

    @property
    def done(self) -> bool:
        return self.steps == self._sampling.steps

    def add(self, context_tokens: int, layer: int, mass: Float64) -> None:
        """Take the mass [heads, context_tokens] of a layer; each head's adds up to 1."""
        if self.done:
            return
        if layer == 0 and context_tokens != self._first + self.steps:
            self._first, self._next = context_tokens, 0
            self._rows.clear()
        step, expected = divmod(self._next, self._num_layers)
        if layer != expected or context_tokens != self._first + step or mass.shape[1] != context_tokens:
            raise InvariantError(
                f"layer {layer} at context {context_tokens} shows {mass.shape[1]} tokens, and layer {expected} "
                f"at context {self._first + step} is next"
            )
        pages = page_mass(mass, self._sampling.block_size)
        by_kv_head = pages.reshape(self._kv_heads, -1, pages.shape[1]).mean(axis=1)
        for head, (chosen, weight) in enumerate(self._choices(by_kv_head)):
            found = np.flatnonzero(chosen)
            self._rows.append((step, layer * self._heads + head, found, weight[found]))
        self._next += 1

    def recording(self, source: str, *, random_weights: bool) -> Recording:
        """Make a recording of the whole steps so far, of which there is at least one."""
        rows = self._rows[: self.steps * self._num_layers * self._heads]
        if not rows:
            raise InvariantError("nothing was sampled")
        sampling = self._sampling
        sizes = [pages.size for _, _, pages, _ in rows]
        words = f"{source}; pages: {sampling.choice}, heads: {sampling.heads}"
        return Recording(
            Header(
                sampling.block_size,
                self._first,
                self._num_layers * self._heads,
                heads=self._heads,
                source=words,
                random_weights=random_weights,
            ),
            np.repeat(np.array([step for step, _, _, _ in rows]), sizes),
            np.repeat(np.array([layer for _, layer, _, _ in rows]), sizes),
            np.concatenate([pages for _, _, pages, _ in rows]),
            np.minimum(
                np.concatenate([weight for _, _, _, weight in rows]), 1.0
            ),  # by rounding it may be above
        )

    def _choices(self, by_kv_head: Float64) -> list[tuple[NDArray[np.bool_], Float64]]:
        """Pages and weights of each recorded head; by_kv_head: [kvh, pages]."""
        choose, mean = self._sampling.choice.choose, by_kv_head.mean(axis=0)
        if self._sampling.heads == "mean":
            return [(choose(mean), mean)]
        chosen = [choose(mass) for mass in by_kv_head]
        if self._sampling.heads == "any":
            return [(np.logical_or.reduce(chosen), mean)]
        return list(zip(chosen, by_kv_head, strict=True))
