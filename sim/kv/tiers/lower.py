"""Host memory and disk together, below one engine's HBM.

What is copied from HBM goes to host memory. What leaves host memory goes to the disk, if there is one, through a
buffer: its room in host memory is free at once, and until it is on the disk it is found nowhere. The buffer is a part
of host memory besides; what comes while it is full is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.kv.tiers.movement import Demotion
from sim.kv.tiers.store import TierStore

BUFFER_SHARE = 16
"""The buffer on the way to the disk holds a 16th as many blocks as host memory."""


class LowerTiers:
    """Finds and places contents; which transfers that takes is for the allocator to ask."""

    def __init__(self, host: TierStore, disk: TierStore | None = None) -> None:
        self.host = host
        self.disk = disk
        self.dropped = 0  # blocks that were lost on the way to the disk
        self._buffered = 0
        self._buffer_blocks = max(host.num_blocks // BUFFER_SHARE, 1)

    def leading_run(self, contents: Sequence[int], now_ns: int) -> list[bool]:
        """Whether each of the first contents that some tier holds is on disk alone, up to one that none holds."""
        host, disk = self.host, self.disk
        stale = host.expired(now_ns)
        stale_disk = disk.expired(now_ns) if disk is not None else frozenset()
        found: list[bool] = []
        for content in contents:
            if content in host and content not in stale:
                found.append(False)
            elif disk is not None and content in disk and content not in stale_disk:
                found.append(True)
            else:
                break
        return found

    def knows(self, content: int) -> bool:
        """Whether it is in a tier or on its way to one."""
        return self.host.knows(content) or (self.disk is not None and self.disk.knows(content))

    def touch(self, contents: Sequence[int], now_ns: int) -> None:
        """These are used, in whatever tier."""
        self.host.touch(contents, now_ns)
        if self.disk is not None:
            self.disk.touch(contents, now_ns)

    def reserve(
        self, contents: Sequence[int], positions: Sequence[int], now_ns: int
    ) -> tuple[int, Demotion | None]:
        """Make room in host memory, for as many of the contents as returned, and say what goes to disk for that."""
        count, gone, where = self.host.reserve(contents, positions, now_ns)
        return count, self._demote(gone, where, now_ns) if self.disk is not None and gone else None

    def _demote(self, gone: Sequence[int], positions: Sequence[int], now_ns: int) -> Demotion | None:
        assert self.disk is not None
        self.disk.touch(gone, now_ns)
        new = [
            (content, at) for content, at in zip(gone, positions, strict=True) if not self.disk.knows(content)
        ]
        room = new[: self._buffer_blocks - self._buffered]
        contents = [content for content, _ in room]
        count, _, _ = self.disk.reserve(contents, [at for _, at in room], now_ns)
        self.dropped += len(new) - count
        self._buffered += count
        return Demotion(contents[:count]) if count else None

    def demoted(self, demotion: Demotion, now_ns: int) -> None:
        """It is on the disk."""
        assert self.disk is not None
        self._buffered -= len(demotion.contents)
        self.disk.written(demotion.contents, now_ns)

    def check_integrity(self) -> None:
        """Raise InvariantError where a tier's books do not agree."""
        self.host.check_integrity()
        if self.disk is not None:
            self.disk.check_integrity()
