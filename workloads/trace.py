"""The canonical trace: immutable columns, one entry per request, sorted by arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workloads.errors import InputError

Int64 = NDArray[np.int64]

NS_PER_S = 1_000_000_000


def _frozen(values: ArrayLike) -> Int64:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """Prefix identity: per request a run of block ids; equal id = equal block after an equal prefix.

    `offsets` has one more entry than requests; request i owns `ids[offsets[i]:offsets[i + 1]]`. Each id stands
    for `block_tokens` tokens; the last id of a request may cover a partial block, which is never shareable.
    """

    block_tokens: int
    offsets: Int64
    ids: Int64

    def of(self, index: int) -> Int64:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests as columns of equal length; all arrays are read-only int64.

    arrival_ns     nanoseconds since the start of the trace, non-decreasing
    input_tokens   prompt length in tokens, at least 1
    output_tokens  generated length in tokens, at least 1 (the prefill yields the first of them)
    session        code of the session, -1 where there is none
    tenant         code into `tenant_names`
    priority       lower runs first, as in the engine
    hashes         prefix identity, where the trace carries it
    has_arrivals   False where the source gives lengths only (arrival_ns is then all zero)
    failed         requests of the source that were kept out because they failed there
    warnings       what a reader noticed and left as it was
    """

    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    session: Int64
    tenant: Int64
    priority: Int64
    tenant_names: tuple[str, ...] = ("default",)
    hashes: BlockHashes | None = None
    has_arrivals: bool = True
    failed: int = 0
    source: str = ""
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def build(
        cls,
        arrival_ns: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        session: ArrayLike | None = None,
        tenant: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        tenant_names: Sequence[str] = ("default",),
        hashes: BlockHashes | None = None,
        has_arrivals: bool = True,
        failed: int = 0,
        source: str = "",
        warnings: Sequence[str] = (),
    ) -> Self:
        """Check the columns and freeze them; raises InputError where a law of the trace is broken."""
        arrival = _frozen(arrival_ns)
        n = arrival.size
        columns = {
            "input_tokens": _frozen(input_tokens),
            "output_tokens": _frozen(output_tokens),
            "session": _frozen(np.full(n, -1) if session is None else session),
            "tenant": _frozen(np.zeros(n) if tenant is None else tenant),
            "priority": _frozen(np.zeros(n) if priority is None else priority),
        }
        for name, column in columns.items():
            if column.shape != (n,):
                raise InputError(f"trace: {name} has {column.size} entries for {n} arrivals")
        if n:
            if arrival[0] < 0 or np.any(np.diff(arrival) < 0):
                raise InputError("trace: arrivals must be non-negative and sorted in time")
            for name in ("input_tokens", "output_tokens"):
                if columns[name].min() < 1:
                    raise InputError(f"trace: {name} must be at least 1 in every request")
        if hashes is not None and hashes.offsets.size != n + 1:
            raise InputError(f"trace: {hashes.offsets.size} hash offsets for {n} requests")
        return cls(
            arrival,
            **columns,
            tenant_names=tuple(tenant_names),
            hashes=hashes,
            has_arrivals=has_arrivals,
            failed=failed,
            source=source,
            warnings=tuple(warnings),
        )

    def __len__(self) -> int:
        return int(self.arrival_ns.size)

    @cached_property
    def duration_ns(self) -> int:
        """From the start of the trace to its last arrival."""
        return int(self.arrival_ns[-1]) if len(self) else 0

    def head(self, count: int) -> Trace:
        """Return the first `count` requests."""
        return self.select(np.arange(min(count, len(self))))

    def select(self, index: ArrayLike) -> Trace:
        """Return the requests at `index` (ascending positions), with arrival times as they are."""
        at = np.asarray(index, dtype=np.int64)
        hashes = None
        if self.hashes is not None:
            runs = [self.hashes.of(int(i)) for i in at]
            offsets = np.concatenate([[0], np.cumsum([run.size for run in runs], dtype=np.int64)])
            ids = np.concatenate(runs) if runs else np.zeros(0)
            hashes = BlockHashes(self.hashes.block_tokens, _frozen(offsets), _frozen(ids))
        return replace(
            self,
            arrival_ns=_frozen(self.arrival_ns[at]),
            input_tokens=_frozen(self.input_tokens[at]),
            output_tokens=_frozen(self.output_tokens[at]),
            session=_frozen(self.session[at]),
            tenant=_frozen(self.tenant[at]),
            priority=_frozen(self.priority[at]),
            hashes=hashes,
        )
