"""The block accesses of a trace, in the order of its file: what a prefix cache without timing sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workloads.errors import InputError
from workloads.trace import Int64, Trace


@dataclass(frozen=True, eq=False)
class BlockAccesses:
    """All blocks of all requests in a row; request i has those from offsets[i] to offsets[i + 1].

    blocks        one number per content and tenant: blocks of different tenants are different blocks
    tokens        what a block adds to the tokens of its prompt, the last one often less than block_tokens
    now_ns        arrival of each request; None where the trace has lengths only
    input_tokens  of all requests together
    """

    blocks: Int64
    tokens: Int64
    offsets: Int64
    now_ns: Int64 | None
    block_tokens: int
    input_tokens: int

    def __len__(self) -> int:
        return int(self.blocks.size)

    @cached_property
    def starts(self) -> Int64:
        """Of each access, where its request begins."""
        return np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @cached_property
    def positions(self) -> Int64:
        """Of each access, how many blocks of its prompt stand before it."""
        return np.arange(len(self)) - self.starts

    @classmethod
    def of(cls, trace: Trace) -> BlockAccesses:
        """Number the blocks of a trace; raises InputError where it has none."""
        hashes = trace.hashes
        if hashes is None:
            raise InputError(
                f"{trace.source or 'trace'}: has no prefix block hashes (hash_ids), and a prefix cache needs them; "
                "of the formats, mooncake, bailian and parquet carry them, of the shipped models mooncake-conv"
            )
        counts = np.diff(hashes.offsets)
        starts = np.repeat(hashes.offsets[:-1], counts)
        before = (np.arange(hashes.ids.size) - starts) * hashes.block_tokens
        tokens = np.clip(np.repeat(trace.input_tokens, counts) - before, 0, hashes.block_tokens)
        return cls(
            blocks=_own_by_tenant(hashes.ids, np.repeat(trace.tenant, counts)),
            tokens=tokens,
            offsets=hashes.offsets,
            now_ns=trace.arrival_ns if trace.has_arrivals else None,
            block_tokens=hashes.block_tokens,
            input_tokens=int(trace.input_tokens.sum()),
        )


def _own_by_tenant(ids: Int64, tenant: Int64) -> Int64:
    """Return numbers that are equal where both the id and the tenant are."""
    if not ids.size or (tenant == tenant[0]).all():
        return ids
    _, dense = np.unique(ids, return_inverse=True)
    return dense * (int(tenant.max()) + 1) + tenant
