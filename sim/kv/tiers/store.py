"""One tier below HBM: blocks by their content, in the order of an eviction policy.

A block takes its room from the moment its copy is asked for, and is found from the moment the copy has landed. While
it is read it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.errors import InvariantError
from sim.kv.eviction.decision import Eviction


class TierStore:
    """`num_blocks` blocks. A content is an integer as in a prefix cache; its position is counted in blocks."""

    def __init__(self, num_blocks: int, policy: Eviction) -> None:
        self.num_blocks = num_blocks
        self._policy = policy
        self._position: dict[int, int] = {}  # of contents that are found here
        self._writing: dict[int, int] = {}  # the same of those on their way here
        self._readers: dict[int, int] = {}
        self.used_block_ns = 0  # blocks times nanoseconds, up to `_since_ns`
        self.peak_blocks = 0
        self._since_ns = 0

    def __contains__(self, content: int) -> bool:
        """Whether it can be read here."""
        return content in self._position

    def knows(self, content: int) -> bool:
        """Whether it is here or on its way here."""
        return content in self._position or content in self._writing

    @property
    def used_blocks(self) -> int:
        return len(self._position) + len(self._writing)

    @property
    def contents(self) -> set[int]:
        """All that can be read here."""
        return set(self._position)

    def expired(self, now_ns: int) -> frozenset[int]:
        """Contents that must not be read any more; they go when the tier is used next."""
        return frozenset(self._policy.expired(now_ns))

    def touch(self, contents: Sequence[int], now_ns: int) -> None:
        """These are used in another tier: what is here of them is worth as much as if it were read."""
        self._drop_expired(now_ns)
        known = [content for content in contents if content in self._position]
        self._policy.accessed(known, [self._position[content] for content in known], now_ns)

    def reserve(
        self, contents: Sequence[int], positions: Sequence[int], now_ns: int
    ) -> tuple[int, list[int], list[int]]:
        """Make room for contents that are not known here.

        Returns for how many of them, from the first on, there is room; what went for it; and where that stood in its
        sequences.
        """
        self._drop_expired(now_ns)
        lacking = len(contents) - (self.num_blocks - self.used_blocks)
        gone = self._policy.victims(lacking) if lacking > 0 else []
        where = [self._position[content] for content in gone]
        self._remove(gone, now_ns)
        count = min(len(contents), self.num_blocks - self.used_blocks)
        self._count(now_ns)
        self._writing.update(zip(contents[:count], positions[:count], strict=True))
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        return count, gone, where

    def written(self, contents: Sequence[int], now_ns: int) -> None:
        """Copies of contents for which room was reserved have landed."""
        positions = [self._writing.pop(content) for content in contents]
        self._position.update(zip(contents, positions, strict=True))
        self._policy.inserted(contents, positions, now_ns)

    def read(self, contents: Sequence[int], now_ns: int) -> None:
        """Somebody reads these, which are here: they are used, and stay until `done`."""
        self._policy.accessed(contents, [self._position[content] for content in contents], now_ns)
        for content in contents:
            readers = self._readers.get(content, 0)
            self._readers[content] = readers + 1
            if not readers:
                self._policy.held([content])

    def done(self, contents: Sequence[int], now_ns: int) -> None:
        """One reader of these is through."""
        for content in contents:
            self._readers[content] -= 1
            if not self._readers[content]:
                del self._readers[content]
                self._policy.released([content], now_ns)

    def used_to(self, now_ns: int) -> int:
        """Blocks times nanoseconds from 0 to now."""
        return self.used_block_ns + self.used_blocks * (now_ns - self._since_ns)

    def restart_account(self, now_ns: int) -> None:
        """Count the blocks in use from now on."""
        self._since_ns = now_ns
        self.used_block_ns = 0
        self.peak_blocks = self.used_blocks

    def check_integrity(self) -> None:
        """Raise InvariantError where more is here than fits, or somebody reads what is not here."""
        if self.used_blocks > self.num_blocks:
            raise InvariantError(f"{self.used_blocks} blocks in a tier of {self.num_blocks}")
        if not self._readers.keys() <= self._position.keys():
            raise InvariantError("a block that is read is gone")
        if self._writing.keys() & self._position.keys():
            raise InvariantError("a block is written that is there")

    def _drop_expired(self, now_ns: int) -> None:
        self._remove(self._policy.expired(now_ns), now_ns)

    def _remove(self, contents: Sequence[int], now_ns: int) -> None:
        if contents:
            self._count(now_ns)
            self._policy.removed(contents)
            for content in contents:
                del self._position[content]

    def _count(self, now_ns: int) -> None:
        self.used_block_ns += self.used_blocks * (now_ns - self._since_ns)
        self._since_ns = now_ns
