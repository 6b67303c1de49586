"""Numbers of pages. A block of a sequence has a column; its page in layer group g is number column x groups + g."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.errors import InvariantError
from sim.kv.access.reads import Int64
from sim.kv.prefetch.decision import Pages


class PageTable:
    """Columns by sequence. A column that is freed is given out again, the latest first."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.columns = 0  # ever in use at once, so that page numbers are below columns x groups
        self._free: list[int] = []
        self._rows: dict[int, _Row] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._rows

    def extend(self, key: int, blocks: int) -> Int64:
        """Give the sequence `blocks` blocks in all; returns the new pages, by block and then by group."""
        row = self._rows.setdefault(key, _Row())
        if blocks < row.size:
            raise InvariantError(f"sequence {key} shrinks from {row.size} to {blocks} blocks")
        new = np.array([self._column() for _ in range(blocks - row.size)], dtype=np.int64)
        row.append(new)
        return self._pages(new)

    def batch(self, keys: Iterable[int]) -> BatchTable:
        """Return the tables of some sequences as they are now, one after the other."""
        rows = [self._rows[key] for key in keys]
        blocks = np.array([row.size for row in rows], dtype=np.int64)
        columns = np.concatenate([row.columns[: row.size] for row in rows]) if rows else blocks
        return BatchTable(self.groups, blocks, np.cumsum(blocks) - blocks, columns)

    def remove(self, key: int) -> Int64:
        """Forget a sequence; returns its pages."""
        row = self._rows.pop(key)
        columns = row.columns[: row.size]
        self._free += columns.tolist()
        return self._pages(columns)

    def _column(self) -> int:
        if self._free:
            return self._free.pop()
        self.columns += 1
        return self.columns - 1

    def _pages(self, columns: Int64) -> Int64:
        return (columns[:, None] * self.groups + np.arange(self.groups)).ravel()


@dataclass(frozen=True, eq=False, slots=True)
class BatchTable:
    """Sequences of a step: their blocks, and the columns of all of these in a row."""

    groups: int
    blocks: Int64
    starts: Int64
    columns: Int64

    def numbers(self, pages: Pages) -> Int64:
        """Numbers of pages; the blocks must be there."""
        return self.columns[self.starts[pages.sequence] + pages.block] * self.groups + pages.group


class _Row:
    """Columns of one sequence, in an array that doubles."""

    __slots__ = ("columns", "size")

    def __init__(self) -> None:
        self.columns = np.empty(16, dtype=np.int64)
        self.size = 0

    def append(self, new: Int64) -> None:
        size = self.size + new.size
        if size > self.columns.size:
            grown = np.empty(max(size, 2 * self.columns.size), dtype=np.int64)
            grown[: self.size] = self.columns[: self.size]
            self.columns = grown
        self.columns[self.size : size] = new
        self.size = size
