"""The canonical trace: immutable columns, one entry per request, sorted by arrival."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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


def session_codes(names: Sequence[Hashable | None]) -> Int64:
    """Return a code for each name in order of first appearance, -1 for None."""
    codes: dict[Hashable, int] = {}
    return _frozen([-1 if name is None else codes.setdefault(name, len(codes)) for name in names])


def _column(name: str, values: ArrayLike) -> Int64:
    raw = np.asarray(values)
    if raw.dtype.kind not in "iub" and raw.size and not np.array_equal(raw, np.floor(raw)):
        raise InputError(f"trace: {name} must hold whole numbers")
    return _frozen(raw)


def _check_laws(arrival: Int64, columns: dict[str, Int64], tenants: int) -> None:
    for name, column in columns.items():
        if column.shape != arrival.shape:
            raise InputError(f"trace: {name} has {column.size} entries for {arrival.size} arrivals")
    if not arrival.size:
        return
    if arrival[0] < 0 or np.any(np.diff(arrival) < 0):
        raise InputError("trace: arrivals must be non-negative and sorted in time")
    for name in ("input_tokens", "output_tokens"):
        if columns[name].min() < 1:
            raise InputError(f"trace: {name} must be at least 1 in every request")
    if columns["tenant"].min() < 0 or columns["tenant"].max() >= tenants:
        raise InputError(f"trace: tenant codes must be 0..{tenants - 1}, one of the tenant names")


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """Prefix identity: per request a run of block ids; equal id = equal block after an equal prefix.

    `offsets` has one more entry than requests; request i owns `ids[offsets[i]:offsets[i + 1]]`. Each id
    stands for `block_tokens` tokens; the last id of a request may cover a partial block, which is never
    shareable.
    """

    block_tokens: int
    offsets: Int64
    ids: Int64

    def of(self, index: int) -> Int64:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def select(self, index: Int64) -> BlockHashes:
        """Return the runs of the requests at `index`, in that order."""
        counts = np.diff(self.offsets)[index]
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        ids = self.ids[np.repeat(self.offsets[:-1][index], counts) + within]
        return BlockHashes(self.block_tokens, _frozen(offsets), _frozen(ids))

    def is_chained(self) -> bool:
        """Whether each id always follows the same id, so that an id stands for its whole prefix."""
        starts = self.offsets[:-1][np.diff(self.offsets) > 0]
        _, codes = np.unique(self.ids, return_inverse=True)  # ids may be any int64; -1 is no id here
        parent = np.concatenate([[-1], codes[:-1]])
        parent[starts] = -1
        order = np.argsort(codes, kind="stable")
        same = np.diff(codes[order]) == 0
        return not bool(np.any(same & (np.diff(parent[order]) != 0)))

    @classmethod
    def build(cls, block_tokens: int, counts: ArrayLike, ids: ArrayLike) -> BlockHashes:
        """From the number of ids of each request and all ids in a row."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return cls(block_tokens, _frozen(offsets), _frozen(ids))


@dataclass(frozen=True, eq=False)
class Turns:
    """How the requests of sessions hang together; one entry per request, all arrays read-only int64.

    continues    position of the latest earlier request whose prompt and answer this prompt begins with, -1 for none
    predecessor  position of the request that must be done (or refused) before this one is sent, -1 for none; each
                 request is followed by one at most
    think_ns     from that request's end to the sending of this one; 0 where there is none

    A request with a predecessor arrives when the run lets it. Its `arrival_ns` is the earliest time possible, as if
    answers took no time.
    """

    continues: Int64
    predecessor: Int64
    think_ns: Int64

    @classmethod
    def build(cls, continues: ArrayLike, predecessor: ArrayLike, think_ns: ArrayLike) -> Turns:
        return cls(
            _column("continues", continues),
            _column("predecessor", predecessor),
            _column("think_ns", think_ns),
        )

    @cached_property
    def waiting(self) -> int:
        """How many requests wait for another one."""
        return int(np.count_nonzero(self.predecessor >= 0))

    def without_waits(self) -> Turns:
        """Return the same prompts, sent at their times."""
        return Turns.build(self.continues, np.full_like(self.predecessor, -1), np.zeros_like(self.think_ns))

    def select(self, index: Int64) -> Turns:
        """Return the requests at `index`, in that order; what hung on one that is left out stands alone."""
        place = np.full(self.continues.size + 1, -1)  # the last entry answers for -1
        place[index] = np.arange(index.size)
        predecessor = place[self.predecessor[index]]
        think_ns = np.where(predecessor >= 0, self.think_ns[index], 0)
        return Turns.build(place[self.continues[index]], predecessor, think_ns)

    def check(self, trace: Trace) -> None:
        """Raise InputError where a law is broken."""
        own = np.arange(len(trace))
        for name in ("continues", "predecessor", "think_ns"):
            if getattr(self, name).shape != own.shape:
                raise InputError(
                    f"trace: {name} has {getattr(self, name).size} entries for {own.size} arrivals"
                )
        for name in ("continues", "predecessor"):
            column = getattr(self, name)
            linked = column >= 0
            if np.any(column < -1) or np.any(column >= own):
                raise InputError(f"trace: {name} must be -1 or the position of an earlier request")
            sessions = trace.session[column[linked]]
            if np.any(sessions < 0) or np.any(sessions != trace.session[linked]):
                raise InputError(f"trace: {name} must name a request of the same session")
        said = trace.input_tokens + trace.output_tokens
        linked = self.continues >= 0
        if np.any(trace.input_tokens[linked] < said[self.continues[linked]]):
            raise InputError("trace: a prompt is shorter than the prompt and answer that it continues")
        waits = self.predecessor >= 0
        if np.unique(self.predecessor[waits]).size < self.waiting:
            raise InputError("trace: predecessor must name each request at most once")
        if np.any(self.think_ns < 0) or np.any(self.think_ns[~waits] != 0):
            raise InputError("trace: think_ns must be at least 0, and 0 where there is no predecessor")


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
    turns          who waits for whose answer and repeats it, where the trace says so
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
    turns: Turns | None = None
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
        turns: Turns | None = None,
        has_arrivals: bool = True,
        failed: int = 0,
        source: str = "",
        warnings: Sequence[str] = (),
    ) -> Self:
        """Check the columns and freeze them; raises InputError where a law of the trace is broken."""
        arrival = _column("arrival_ns", arrival_ns)
        n = arrival.size
        columns = {
            "input_tokens": _column("input_tokens", input_tokens),
            "output_tokens": _column("output_tokens", output_tokens),
            "session": _column("session", np.full(n, -1) if session is None else session),
            "tenant": _column("tenant", np.zeros(n) if tenant is None else tenant),
            "priority": _column("priority", np.zeros(n) if priority is None else priority),
        }
        _check_laws(arrival, columns, len(tenant_names))
        if hashes is not None and hashes.offsets.size != n + 1:
            raise InputError(f"trace: {hashes.offsets.size} hash offsets for {n} requests")
        trace = cls(
            arrival,
            **columns,
            tenant_names=tuple(tenant_names),
            hashes=hashes,
            turns=turns,
            has_arrivals=has_arrivals,
            failed=failed,
            source=source,
            warnings=tuple(warnings),
        )
        if turns is not None:
            turns.check(trace)
        return trace

    def __len__(self) -> int:
        return int(self.arrival_ns.size)

    @cached_property
    def duration_ns(self) -> int:
        """From the start of the trace to its last arrival."""
        return int(self.arrival_ns[-1]) if len(self) else 0

    def with_columns(self, **columns: ArrayLike) -> Trace:
        """Return the trace with some of its columns replaced by others of the same length."""
        names = ("arrival_ns", "input_tokens", "output_tokens", "session", "tenant", "priority")
        if unknown := columns.keys() - set(names):
            raise TypeError(f"no columns: {sorted(unknown)}")
        frozen = {name: _column(name, values) for name, values in columns.items()}
        if any(column.size != len(self) for column in frozen.values()):
            raise InputError(f"trace: a column of another length than {len(self)}")
        return replace(self, **frozen)  # type: ignore[arg-type]  # columns only, by the check above

    def head(self, count: int) -> Trace:
        """Return the first `count` requests."""
        return self.select(np.arange(min(count, len(self))))

    def select(self, index: ArrayLike) -> Trace:
        """Return the requests at `index` (ascending positions), with arrival times as they are."""
        at = np.asarray(index, dtype=np.int64)
        return replace(
            self,
            arrival_ns=_frozen(self.arrival_ns[at]),
            input_tokens=_frozen(self.input_tokens[at]),
            output_tokens=_frozen(self.output_tokens[at]),
            session=_frozen(self.session[at]),
            tenant=_frozen(self.tenant[at]),
            priority=_frozen(self.priority[at]),
            hashes=None if self.hashes is None else self.hashes.select(at),
            turns=None if self.turns is None else self.turns.select(at),
        )
