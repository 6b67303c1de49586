"""Paged blocks that several sequences share until one of them writes: copy-on-write.

A sequence forks when several answers to one prompt are wanted (parallel sampling): the new one shares all blocks of
the old one, the partly filled last one too. Full blocks are never written again and are shared for good. Whoever
writes first into a shared partial block gets a block of its own and the content copied; the last who holds it writes
in place. Kwon et al., SOSP 2023, section 4.4.

Blocks are counted as in `PagedAllocator`. What is shared is known by its ids, which are given out at the fork. A
sequence's blocks are, in the order of its tokens: shared parts, then either a shared partial block or blocks of its
own. Forks cost what they do; a step in which nobody writes for the first time after one costs no more than without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim, Memory
from sim.kv.allocators.paged import PagedAllocator, PagedHolding
from sim.kv.transfer import Transfer

Runs = list[tuple[int, int]]


class SharedPart:
    """Full blocks that `holders` sequences hold: `blocks` of them, with the ids in `runs`."""

    __slots__ = ("blocks", "holders", "runs")

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.blocks = sum(length for _, length in runs)
        self.holders = 1


class PartialBlock:
    """A block with `tokens` tokens that `holders` sequences hold and none has written to since they share it."""

    __slots__ = ("block", "holders", "tokens")

    def __init__(self, block: int, tokens: int) -> None:
        self.block = block
        self.tokens = tokens
        self.holders = 1


class ForkedHolding(PagedHolding):
    """Blocks of one sequence; `runs` are of those that it holds alone."""

    __slots__ = ("partial", "parts")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[SharedPart] = []
        self.partial: PartialBlock | None = None


class ForkingPagedAllocator(PagedAllocator):
    """`PagedAllocator` whose sequences can fork. A block takes `block_bytes` on each GPU."""

    def __init__(self, num_blocks: int, block_size: int, block_bytes: int) -> None:
        super().__init__(num_blocks, block_size)
        self._block_bytes = block_bytes
        self._doubled = 0  # tokens in partial blocks, for each holder beyond the first
        self._writers: dict[ForkedHolding, None] = {}  # growing, with a shared partial block
        self._promised_copies: Counter[PartialBlock] = Counter()
        self.copies = 0

    @property
    def stored_tokens(self) -> int:
        return super().stored_tokens - self._doubled

    def memory(self) -> Memory:
        used, stored, largest, cached = super().memory()
        return used, stored - self._doubled, largest, cached

    def open(self, claim: Claim) -> ForkedHolding:  # noqa: ARG002
        return ForkedHolding()

    def fork(self, holding: ForkedHolding) -> ForkedHolding:
        """Begin another sequence with the same tokens, which does not grow yet. Takes no block."""
        self._share(holding)
        other = ForkedHolding()
        other.parts = list(holding.parts)
        for part in other.parts:
            part.holders += 1
            self._shares += part.blocks
        other.partial = holding.partial
        if other.partial is not None:
            other.partial.holders += 1
            self._doubled += other.partial.tokens
        other.tokens = self._tokens_of(holding)
        other.blocks = self.held(holding)
        self._tokens += other.tokens
        return other

    def extend(self, holding: PagedHolding, tokens: int) -> bool:
        assert isinstance(holding, ForkedHolding)
        if self.missing_blocks(holding, tokens) > self._free:
            return False
        if tokens > holding.tokens:
            self._write(holding)
        return super().extend(holding, tokens)

    def start_growing(self, holding: PagedHolding) -> None:
        assert isinstance(holding, ForkedHolding)
        super().start_growing(holding)
        if holding.partial is not None:
            self._writers[holding] = None

    def has_room(self, extensions: Sequence[tuple[PagedHolding, int]]) -> bool:
        need = self.growth(1) + sum(self.missing_blocks(*extension) for extension in extensions)
        if self._writers:
            writers = Counter(holding.partial for holding in self._writers)
            need += sum(min(n, p.holders - 1) for p, n in writers.items() if p is not None)
        return need <= self._free

    def start_room(self) -> None:
        super().start_room()
        self._promised_copies.clear()

    def promise(self, holding: PagedHolding, tokens: int | None) -> bool:
        if not super().promise(holding, tokens):
            return False
        assert isinstance(holding, ForkedHolding)
        if tokens is None and holding.partial is not None:
            self._promised_copies[holding.partial] += 1
        return True

    def missing_blocks(self, holding: PagedHolding, tokens: int | None) -> int:
        assert isinstance(holding, ForkedHolding)
        missing = super().missing_blocks(holding, tokens)
        partial = holding.partial
        writes = partial is not None and (tokens is None or tokens > holding.tokens)
        if writes and partial is not None and partial.holders - self._promised_copies[partial] > 1:
            missing += 1
        return missing

    def growth_limit(self, steps: int) -> int:
        return 0 if self._writers else super().growth_limit(steps)

    def grow(self, steps: int) -> None:
        self._promised_copies.clear()
        if self._writers:
            for holding in list(self._writers):
                self._write(holding)
        super().grow(steps)

    def release(self, holding: PagedHolding) -> None:
        assert isinstance(holding, ForkedHolding)
        shared = 0
        for part in holding.parts:
            part.holders -= 1
            shared += part.blocks
            if part.holders:
                self._shares -= part.blocks
            else:
                self._free += part.blocks
                self._free_runs.extend(part.runs)
        if holding.partial is not None:
            shared += 1
            self._drop(holding.partial)
        self._writers.pop(holding, None)
        self._free -= shared  # which the count of all its blocks includes
        holding.parts, holding.partial = [], None
        super().release(holding)

    def block_table(self, holding: PagedHolding) -> list[int]:
        assert isinstance(holding, ForkedHolding)
        self._tell(holding)
        runs = [run for part in holding.parts for run in part.runs]
        if holding.partial is not None:
            runs.append((holding.partial.block, 1))
        return [block for first, length in [*runs, *holding.runs] for block in range(first, first + length)]

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        own = [h for h in holdings if isinstance(h, ForkedHolding)]
        parts = Counter(part for h in own for part in h.parts)
        partials = Counter(h.partial for h in own if h.partial is not None)
        counted = [(part.holders, n) for part, n in parts.items()]
        counted += [(partial.holders, n) for partial, n in partials.items()]
        for holders, there in counted:
            if holders != there:
                raise InvariantError(f"{holders} holders of shared blocks instead of {there}")
        runs = [*self._free_runs, *(run for h in own for run in h.runs)]
        runs += [run for part in parts for run in part.runs] + [(partial.block, 1) for partial in partials]
        ids = sorted(block for first, length in runs for block in range(first, first + length))
        if ids != list(range(self.num_blocks)):
            raise InvariantError("a block id is lost or held twice")
        alone = sum(self._alone(h) for h in own)
        if alone + sum(part.blocks for part in parts) + len(partials) != self.used_blocks:
            raise InvariantError(f"{self.used_blocks} blocks used do not match the sequences")
        self._check_growth(own)

    def _alone(self, holding: ForkedHolding) -> int:
        """Blocks that it holds alone, whether it has ids for them or not."""
        shared = sum(part.blocks for part in holding.parts) + (holding.partial is not None)
        return self.held(holding) - shared

    def _tokens_of(self, holding: PagedHolding) -> int:
        if holding.growing_since < 0:
            return holding.tokens
        return holding.tokens + self._step - holding.growing_since

    def _tell(self, holding: ForkedHolding) -> None:
        """Give ids to the blocks that it holds alone."""
        lacking = self._alone(holding) - sum(length for _, length in holding.runs)
        self._hand_out(holding, lacking)

    def _share(self, holding: ForkedHolding) -> None:
        """Turn what a sequence holds alone into what others may hold too."""
        self._tell(holding)
        filled = self._tokens_of(holding) % self.block_size
        if filled and holding.partial is None:
            first, length = holding.runs.pop()
            holding.partial = PartialBlock(first + length - 1, filled)
            if length > 1:
                holding.runs.append((first, length - 1))
            if holding.growing_since >= 0:
                self._writers[holding] = None
        if holding.runs:
            holding.parts.append(SharedPart(holding.runs))
            holding.runs = []

    def _write(self, holding: ForkedHolding) -> None:
        """Let a sequence have its last block alone, before it writes there."""
        partial = holding.partial
        self._writers.pop(holding, None)
        if partial is None:
            return
        holding.partial = None
        if partial.holders == 1:
            holding.runs = [(partial.block, 1)]
            return
        self._drop(partial)
        self._take_for_growth(1)
        self._tell(holding)
        self.copies += 1
        # The step that follows writes and reads there. The pair of ids is for whoever copies.
        pair = partial.block, holding.runs[-1][0]
        self.transfers.append(Transfer("copy", "copy", self._block_bytes, blocking=True, payload=pair))

    def _drop(self, partial: PartialBlock) -> None:
        partial.holders -= 1
        if partial.holders:
            self._doubled -= partial.tokens
        else:
            self._free += 1
            self._free_runs.append((partial.block, 1))

    def landed(self, transfer: Transfer) -> None:
        """A copy has ended; the step that waited for it is all that it concerned."""
