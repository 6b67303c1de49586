"""Prefix block ids of JSONL traces: the block size follows from the lengths, and every row is checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import TraceFormatError
from workloads.readers.source import shown
from workloads.trace import BlockHashes, Int64

Rows = Sequence[tuple[int, dict[str, Any]]]


def read_hashes(
    path: Path, rows: Rows, inputs: Int64, block_tokens: Sequence[int]
) -> tuple[BlockHashes | None, list[str]]:
    """Return the block ids of all rows, None where no row has any, and what is odd about them."""
    runs = [row.get("hash_ids") for _, row in rows]
    if all(run is None for run in runs):
        return None, []
    for (line, _), run in zip(rows, runs, strict=True):
        if run is None:
            raise TraceFormatError(path, line, "no hash_ids, though other rows have them; all rows or none")
        if type(run) is not list or not all(type(block) is int for block in run):
            message = f"hash_ids is {shown(run)}; a list of whole numbers is expected, one a block"
            raise TraceFormatError(path, line, message)
    flat = [block for run in runs if run is not None for block in run]
    counts = np.array([len(run) for run in runs if run is not None], dtype=np.int64)
    size = _block_tokens(path, rows, inputs, counts, block_tokens)
    warnings = [] if size == block_tokens[0] else [f"{size} tokens a block, as the lengths imply"]
    hashes = BlockHashes.build(size, counts, _dense(flat))
    if not hashes.is_chained():
        warnings.append("some block id follows different ids: ids do not stand for a whole prefix")
    return hashes, warnings


def _block_tokens(path: Path, rows: Rows, inputs: Int64, counts: Int64, candidates: Sequence[int]) -> int:
    """Choose the block size that fits the most rows; a row that does not fit it is an error."""
    fits = [int(np.count_nonzero(-(-inputs // size) == counts)) for size in candidates]
    size = candidates[int(np.argmax(fits))] if max(fits) else candidates[0]
    wrong = np.flatnonzero(-(-inputs // size) != counts)
    if wrong.size:
        row = int(wrong[0])
        message = (
            f"{counts[row]} hash_ids for input_length {inputs[row]}; "
            f"{-(-int(inputs[row]) // size)} blocks of {size} tokens are expected"
        )
        raise TraceFormatError(path, rows[row][0], message)
    return size


def _dense(flat: list[int]) -> Int64:
    try:
        return np.array(flat, dtype=np.int64)
    except OverflowError:  # hashes of 64 bits and more: only equality counts
        codes: dict[int, int] = {}
        return np.array([codes.setdefault(block, len(codes)) for block in flat], dtype=np.int64)
