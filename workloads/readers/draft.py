"""What a reader found, before it is a trace: the laws that all formats share are checked here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from workloads.errors import TraceFormatError
from workloads.trace import NS_PER_S, BlockHashes, Int64, Trace, session_codes

_IDLE_GAPS = 10  # a first arrival later than so many mean gaps is worth a word


@dataclass
class Draft:
    """Rows in the order of the file, checked for type but not yet for the laws of a trace.

    lines             line of each row, None where the file is one JSON document
    names             what the source calls arrival, input and output
    completion_order  rows stand in order of completion and are sorted by arrival; else disorder is an error
    wall_clock        arrivals are of some clock: the earliest becomes 0
    """

    path: Path
    lines: Sequence[int | None]
    arrival_ns: Int64 | None
    input_tokens: Int64
    output_tokens: Int64
    failed: NDArray[np.bool_]
    names: tuple[str, str, str]
    session: Int64 | None = None
    hashes: BlockHashes | None = None
    completion_order: bool = False
    wall_clock: bool = False
    warnings: list[str] = field(default_factory=list)

    def fail(self, row: int, message: str) -> NoReturn:
        """Reject a row by its line, or by its number where lines mean nothing."""
        line = self.lines[row]
        raise TraceFormatError(self.path, line, message if line is not None else f"request {row}: {message}")

    def finish(self, *, drop_failed: bool) -> Trace:
        """Return the trace; failed rows are kept out, and counted, only if asked for."""
        self._check_failed(drop_failed=drop_failed)
        keep = self.rows()
        short = keep[self.input_tokens[keep] < 1]
        if short.size:
            self.fail(int(short.min()), f"{self.names[1]} is 0; a request has at least 1 input token")
        arrival = self._arrivals()
        times = np.zeros(keep.size, dtype=np.int64) if arrival is None else arrival[keep]
        return Trace.build(
            times,
            self.input_tokens[keep],
            self.output_tokens[keep],
            session=None if self.session is None else self.session[keep],
            hashes=None if self.hashes is None else self.hashes.select(keep),
            has_arrivals=arrival is not None,
            failed=int(self.failed.sum()),
            source=self.path.name,
            warnings=[*self.warnings, *_idle_start(times)],
        )

    def rows(self) -> Int64:
        """Return which rows of the source succeeded, in the order of the trace."""
        keep = np.flatnonzero(~self.failed)
        if self.completion_order and self.arrival_ns is not None:
            return keep[np.argsort(self.arrival_ns[keep], kind="stable")]
        return keep

    def _check_failed(self, *, drop_failed: bool) -> None:
        count = int(self.failed.sum())
        total = self.failed.size
        if count == total:
            raise TraceFormatError(self.path, None, f"all {total} requests failed; no workload is left")
        if count and not drop_failed:
            row = int(np.flatnonzero(self.failed)[0])
            why = f"{self.names[2]} is 0" if self.output_tokens[row] == 0 else "an error is recorded"
            self.fail(
                row,
                f"a failed request ({why}), the first of {count} in {total}; "
                "--drop-failed (drop_failed: true) keeps them out and counts them",
            )

    def _arrivals(self) -> Int64 | None:
        times = self.arrival_ns
        if times is None:
            return None
        if not self.completion_order:
            back = np.flatnonzero(np.diff(times) < 0)
            if back.size:
                row = int(back[0]) + 1
                by = (times[row - 1] - times[row]) / NS_PER_S
                message = f"{self.names[0]} goes back by {by:.9g} s; rows must be sorted by time"
                self.fail(row, message)
        return times - times.min() if self.wall_clock else times


def conversations(talks: Sequence[tuple[str, bool]]) -> Int64:
    """Return session codes from (conversation, has several turns); one that never has is no session."""
    several = {name for name, turns in talks if turns}
    return session_codes([name if name in several else None for name, _ in talks])


def _idle_start(times: Int64) -> list[str]:
    if times.size < 2 or times[0] == 0:
        return []
    gap = (times[-1] - times[0]) / (times.size - 1)
    if times[0] <= max(_IDLE_GAPS * gap, NS_PER_S):
        return []
    return [f"the first request arrives at {times[0] / NS_PER_S:.9g} s; times are kept as they are"]
