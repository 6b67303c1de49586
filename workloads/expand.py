"""Prefix block ids at another block size, so that a trace meets the engine's blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.errors import InputError
from workloads.trace import BlockHashes, Int64, Trace

_ROOM = 2**62


def expand_hashes(trace: Trace, block_tokens: int) -> Trace:
    """Return the trace with ids for blocks of `block_tokens` tokens.

    Smaller blocks: each id becomes source/target derived ids (512 -> 16: 32 of them), cut to the length
    of the prompt. Larger blocks: a block takes the id of its last part, which stands for the whole prefix.
    Either way the last block of a prompt that does not fill it gets an id of its own: it is never shared.
    """
    if block_tokens < 1:
        raise InputError(f"block_tokens: {block_tokens} is not a block size; give at least 1")
    if trace.hashes is None or trace.hashes.block_tokens == block_tokens:
        return trace
    source = trace.hashes.block_tokens
    if source % block_tokens and block_tokens % source:
        raise InputError(
            f"block_tokens: {block_tokens} does not fit blocks of {source} tokens; give a divisor or multiple"
        )
    if block_tokens > source and not trace.hashes.is_chained():
        raise InputError(
            f"block_tokens: ids of {source} tokens do not stand for prefixes; give {source} or less"
        )
    hashes = _split(trace, block_tokens) if block_tokens < source else _join(trace, block_tokens)
    return replace(trace, hashes=_unshare_partial(hashes, trace.input_tokens))


def _depths(counts: Int64) -> Int64:
    """Return 0, 1, 2, ... within each request, in a row."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) - np.repeat(ends - counts, counts)


def _split(trace: Trace, block_tokens: int) -> BlockHashes:
    assert trace.hashes is not None
    parts = trace.hashes.block_tokens // block_tokens
    counts = -(-trace.input_tokens // block_tokens)
    _check_counts(trace)
    depth = _depths(counts)
    at = np.repeat(trace.hashes.offsets[:-1], counts) + depth // parts
    return BlockHashes.build(
        block_tokens, counts, _small(trace.hashes.ids, parts)[at] * parts + depth % parts
    )


def _join(trace: Trace, block_tokens: int) -> BlockHashes:
    assert trace.hashes is not None
    parts = block_tokens // trace.hashes.block_tokens
    counts = -(-trace.input_tokens // block_tokens)
    _check_counts(trace)
    last = np.minimum((_depths(counts) + 1) * parts, np.repeat(np.diff(trace.hashes.offsets), counts)) - 1
    at = np.repeat(trace.hashes.offsets[:-1], counts) + last
    return BlockHashes.build(block_tokens, counts, trace.hashes.ids[at])


def _check_counts(trace: Trace) -> None:
    assert trace.hashes is not None
    wrong = np.flatnonzero(
        np.diff(trace.hashes.offsets) != -(-trace.input_tokens // trace.hashes.block_tokens)
    )
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"trace: request {row} has {trace.hashes.of(row).size} block ids for "
            f"{trace.input_tokens[row]} tokens in blocks of {trace.hashes.block_tokens}"
        )


def _small(ids: Int64, parts: int) -> Int64:
    """Return ids that can be multiplied by `parts`: themselves, or dense codes where they are too large."""
    if ids.size == 0 or (ids.min() >= -_ROOM // parts and ids.max() < _ROOM // parts):
        return ids
    dense: Int64 = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return dense


def _unshare_partial(hashes: BlockHashes, input_tokens: Int64) -> BlockHashes:
    """Give every partial last block an id that no other block has."""
    ids = hashes.ids.copy()
    partial = np.flatnonzero(input_tokens % hashes.block_tokens)
    if not partial.size:
        return hashes
    fresh = int(ids.max()) + 1
    ids[hashes.offsets[1:][partial] - 1] = fresh + np.arange(partial.size)
    return BlockHashes.build(hashes.block_tokens, np.diff(hashes.offsets), ids)
