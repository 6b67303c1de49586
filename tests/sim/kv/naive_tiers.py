"""Three tiers spelled out, one block at a time, every copy there at once. Least recently used first, in every tier."""

from __future__ import annotations

from sim.kv.tiers.lower import BUFFER_SHARE
from tests.sim.tiers import BLOCK


class NaiveTiers:
    """`host` and `disk` are lists of contents, the next to go first; `free` are blocks in the order of their use."""

    def __init__(self, blocks, host_blocks, disk_blocks, *, back):
        self.content = [None] * blocks
        self.stored_at = [0] * blocks
        self.free = list(range(blocks))
        self.holders = [0] * blocks
        self.host, self.disk = [], []
        self.host_blocks, self.disk_blocks = host_blocks, disk_blocks
        self.buffer = max(host_blocks // BUFFER_SHARE, 1)
        self.back = back
        self.clock = 0

    def find(self, content):
        """The block that has held it for the longest time."""
        there = [block for block, known in enumerate(self.content) if known == content]
        return min(there, key=lambda block: self.stored_at[block]) if there else None

    def open(self, contents, tokens):
        """Where each block of a prompt is found; (blocks, how many are in HBM, from host, from disk), None if short."""
        limit = (tokens - 1) // BLOCK
        prefix = []
        for content in contents[:limit]:
            block = self.find(content)
            if block is None:
                break
            prefix.append(block)
        idle = sum(not self.holders[block] for block in prefix)
        if -(-tokens // BLOCK) - len(prefix) + idle > len(self.free):
            return None
        below = []
        for content in contents[len(prefix) : limit]:
            if content not in self.host and content not in self.disk:
                break
            below.append(content)
        from_host = [content for content in below if content in self.host]
        from_disk = [content for content in below if content not in self.host]
        for tier in (self.host, self.disk):
            self._renew(tier, [content for content in contents[: len(prefix)] if content in tier])
        self._renew(self.host, from_host)
        self._renew(self.disk, from_disk)
        for block in prefix:
            if not self.holders[block]:
                self.free.remove(block)
            self.holders[block] += 1
        held = prefix + self.take(len(below), reading=(from_host, from_disk))
        self.store(held, contents, len(prefix), len(held))
        self._renew(self.host, from_host)  # the end of a use counts too
        self._renew(self.disk, from_disk)
        return held, len(prefix), len(from_host), len(from_disk)

    def take(self, count, reading=((), ())):
        taken, self.free = self.free[:count], self.free[count:]
        lost = []
        for block in taken:
            lost.append((self.content[block], block))
            self.content[block] = None
            self.holders[block] = 1
        if self.back:
            gone = [c for c, _ in lost if c is not None and self.find(c) is None]
            gone = [c for c in dict.fromkeys(gone) if c not in self.host and c not in self.disk]
            self.put(gone, reading)
        return taken

    def store(self, held, contents, first, end):
        for at in range(first, end):
            self.clock += 1
            self.content[held[at]] = contents[at]
            self.stored_at[held[at]] = self.clock

    def put(self, contents, reading=((), ())):
        """Copy to host memory what it lacks."""
        evictable = [content for content in self.host if content not in reading[0]]
        lacking = max(len(contents) - (self.host_blocks - len(self.host)), 0)
        gone = evictable[:lacking]
        self.host = [content for content in self.host if content not in gone]
        fits = contents[: self.host_blocks - len(self.host)]
        if self.disk_blocks and gone:
            self._renew(self.disk, [content for content in gone if content in self.disk])
            new = [content for content in gone if content not in self.disk][: self.buffer]
            evictable = [content for content in self.disk if content not in reading[1]]
            lacking = max(len(new) - (self.disk_blocks - len(self.disk)), 0)
            self.disk = [content for content in self.disk if content not in evictable[:lacking]]
            self.disk += new[: self.disk_blocks - len(self.disk)]
        self.host += fits

    def copy(self, contents):
        if not self.back:
            self.put([content for content in dict.fromkeys(contents) if content not in self.host])

    def release(self, held):
        for block in reversed(held):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free.append(block)

    @staticmethod
    def _renew(tier, contents):
        for content in contents:
            tier.remove(content)
            tier.append(content)
