"""What a recording says, layer by layer: pages of a step, reads that repeat, how far back they reach [O4, K9].

Two shares of reads are compared with what chance gives. Of N pages let one set have a and another b, each drawn from
all sets of its size alike and on its own: then a page of the second is in the first with probability a/N, so that
a b / N pages are expected in both (the mean of the hypergeometric distribution), and a share of a/N of the second.
Where most pages are chosen most are chosen twice, whatever attention does; only what exceeds chance is reuse.

    step reuse    pages of a step that the same layer read in the step before
    layer reuse   pages of a layer that the layer before it read in the same step

Recorded heads (`Header.heads`) stand for layers of their own, each after the same head of the layer before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from sim.kv.access.reads import Float64, Int64
from sim.kv.access.recording import Header, Recording
from sim.kv.replay.stack_distance import last_uses, stack_distances

NEAR_TOKENS: Final = 32
FAR_TOKENS: Final = 128
PUBLISHED: Final = {"average": 0.607, "first": 0.92, "middle": 0.40}
"""Layer reuse as it is claimed, without the model or the choice of pages that it was measured with (SYSTEMS K9)."""
_TOLERANCE: Final = 0.10
_LEAST_BEYOND: Final = 0.1
"""Of the way from chance to all: reuse that goes less far counts as chance."""
_FEWEST_PAIRS: Final = 3

Verdict = Literal["held", "did not hold", "not judged"]


@dataclass(frozen=True, slots=True)
class Share:
    """A share of reads, and what chance alone would give; None where there are no such reads."""

    measured: float | None
    chance: float | None

    @property
    def beyond_chance(self) -> float | None:
        """0 as by chance, 1 where everything is reused; negative where reads avoid each other (Cohen's kappa)."""
        if self.measured is None or self.chance is None or self.chance >= 1:
            return None
        return (self.measured - self.chance) / (1 - self.chance)


@dataclass(frozen=True, slots=True)
class LayerReuse:
    """Reads of a layer (of a recorded head), over all steps.

    pages           read by a step, mean
    share_of_pages  of all pages of the context, mean
    mass            attention mass of the pages of a step, mean
    step, layer     reuse of the step before, and of the layer before; a first one has none
    distance_pages  median and ninth decile of the different pages that the layer read since it read this one (its LRU
                    stack distance), over the reads of pages read before; None where there are none
    near, far       reads less than 32, at least 128 tokens back; beside them the share of all pages that lie there.
                    A page lies as far back as its distance in pages times their size
    near_mass       attention mass less than 32 tokens back, of all mass recorded
    """

    pages: float
    share_of_pages: float
    mass: float
    step: Share
    layer: Share
    distance_pages: tuple[float, float] | None
    near: Share
    far: Share
    near_mass: float


@dataclass(frozen=True, slots=True)
class CrossLayer:
    """Layer reuse over all layers but the first: on average, and by thirds of the depth (None below three)."""

    average: Share
    first: Share | None
    middle: Share | None
    last: Share | None

    def verdict(self, header: Header) -> tuple[Verdict, str]:
        """Whether the published shares are found here, each within 10 points and not by chance; and why in words.

        Judged only for attention that is said to be of a trained model: random weights show chance.
        """
        if header.random_weights is not False:
            why = "random weights show chance alone" if header.random_weights else "nothing says whose it is"
            return "not judged", why
        shares = {"average": self.average, "first": self.first, "middle": self.middle}
        off: dict[str, float] = {}
        by_chance: list[str] = []
        for name, share in shares.items():
            if share is None or share.measured is None or share.chance is None:
                return "not judged", "it takes four layers and more"
            off[name] = share.measured - PUBLISHED[name]
            if share.measured - share.chance < _LEAST_BEYOND * (1 - share.chance):
                by_chance.append(f"{name} is {share.measured:.1%}, by chance {share.chance:.1%}")
        worst = max(off, key=lambda name: abs(off[name]))
        if abs(off[worst]) <= _TOLERANCE and by_chance:
            return "did not hold", by_chance[0]
        words = f"{worst} is {PUBLISHED[worst] + off[worst]:.1%}, published {PUBLISHED[worst]:.1%}"
        return ("held" if abs(off[worst]) <= _TOLERANCE else "did not hold"), words


class Reuse:
    """Statistics of a recording. `layers` has an entry for each layer and head that it knows."""

    def __init__(self, recording: Recording) -> None:
        header = recording.header
        self.header = header
        self.steps = recording.steps
        self._recording = recording
        self._width = header.pages(self.steps)  # more pages than any step has
        rows = self.steps * header.num_layers
        self._row = recording.step * header.num_layers + recording.layer
        self._key = self._row * self._width + recording.page
        self._pages = np.bincount(self._row, minlength=rows).reshape(self.steps, header.num_layers)
        self._all_pages = np.array([header.pages(step) for step in range(self.steps)])
        self._back = (self._all_pages[recording.step] - 1 - recording.page) * header.block_size
        self._step_hits = self._hits(header.num_layers, recording.step >= 1)
        self._layer_hits = self._hits(header.heads, recording.layer >= header.heads)
        self.layers = tuple(self._layer(number) for number in range(header.num_layers))

    @property
    def cross_layer(self) -> CrossLayer:
        header = self.header
        after_first = np.arange(header.heads, header.num_layers)
        thirds: list[Share | None] = [None, None, None]
        pairs = header.num_layers // header.heads - 1
        if pairs >= _FEWEST_PAIRS:
            parts = np.array_split(after_first.reshape(pairs, header.heads), 3)
            thirds = [self._layer_share(part.ravel()) for part in parts]
        return CrossLayer(self._layer_share(after_first), *thirds)

    @property
    def step(self) -> Share:
        """Step reuse over all layers."""
        return self._step_share(np.arange(self.header.num_layers))

    @property
    def far_share(self) -> float:
        """Share of all reads that lie at least 128 tokens back."""
        return float((self._back >= FAR_TOKENS).mean())

    def _hits(self, rows_before: int, has_one: NDArray[np.bool_]) -> Int64:
        """[steps, layers]: pages of each row of (step, layer) that the row so many before it has too."""
        found = np.isin(self._key - rows_before * self._width, self._key, assume_unique=True) & has_one
        size = self.steps * self.header.num_layers
        return np.bincount(self._row[found], minlength=size).reshape(self.steps, -1)

    def _step_share(self, layers: Int64) -> Share:
        now, before = self._pages[1:, layers], self._pages[:-1, layers]
        return _share(self._step_hits[1:, layers], now, before, self._all_pages[1:, None])

    def _layer_share(self, layers: Int64) -> Share:
        now, before = self._pages[:, layers], self._pages[:, layers - self.header.heads]
        return _share(self._layer_hits[:, layers], now, before, self._all_pages[:, None])

    def _layer(self, number: int) -> LayerReuse:
        recording, pages = self._recording, self._pages[:, number]
        own = recording.layer == number
        back, weight = self._back[own], recording.weight[own]
        alone = np.array([number])
        return LayerReuse(
            pages=float(pages.mean()),
            share_of_pages=float((pages / self._all_pages).mean()),
            mass=float(weight.sum() / self.steps),
            step=self._step_share(alone),
            layer=self._layer_share(alone) if number >= self.header.heads else Share(None, None),
            distance_pages=_stack_distance(recording.page[own]),
            near=_part(back < NEAR_TOKENS, self._pages_back(below=NEAR_TOKENS), self._all_pages, pages),
            far=_part(
                back >= FAR_TOKENS,
                self._all_pages - self._pages_back(below=FAR_TOKENS),
                self._all_pages,
                pages,
            ),
            near_mass=float(weight[back < NEAR_TOKENS].sum() / max(weight.sum(), np.finfo(float).tiny)),
        )

    def _pages_back(self, below: int) -> Int64:
        """[steps] pages that lie less than so many tokens back."""
        return np.minimum(self._all_pages, -(-below // self.header.block_size))


def _share(hits: Int64, now: Int64, before: Int64, of: Int64) -> Share:
    reads = int(now.sum())
    if not reads:
        return Share(None, None)
    return Share(float(hits.sum() / reads), float((now * before / of).sum() / reads))


def _part(chosen: NDArray[np.bool_], there: Int64, of: Int64, pages: Int64) -> Share:
    """Reads in a part of the context; by chance each step reads there as many as the part has of all pages."""
    if not chosen.size:
        return Share(None, None)
    return Share(float(chosen.mean()), float((pages * there / of).sum() / pages.sum()))


def _stack_distance(pages: Int64) -> tuple[float, float] | None:
    last = last_uses(pages)
    again = stack_distances(last)[last >= 0]
    if not again.size:
        return None
    median, decile = np.quantile(again, [0.5, 0.9])
    return float(median), float(decile)


def page_map(recording: Recording) -> Float64:
    """[layers, pages]: mean attention mass of each page over the steps, by its place in the sequence."""
    header = recording.header
    shape = header.num_layers, header.pages(recording.steps - 1)
    found = np.bincount(
        recording.layer * shape[1] + recording.page, recording.weight, minlength=shape[0] * shape[1]
    )
    return found.reshape(shape) / recording.steps
