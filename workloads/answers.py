"""Block ids of whole sequences: an answer that a later prompt repeats can be found in a prefix cache too."""

from __future__ import annotations

import numpy as np

from workloads.errors import InputError
from workloads.expand import expand_hashes
from workloads.trace import BlockHashes, Int64, Trace


def sequence_hashes(trace: Trace, block_tokens: int) -> BlockHashes | None:
    """Ids of the full blocks of every prompt, at an engine's block size, and of its answer where they are known.

    Where a later prompt begins with a prompt and its answer, its ids name the blocks of both. Which prompts do, the
    trace's `turns` say, or else `guessed_turns`. None where the trace says nothing of prefixes.
    """
    try:
        hashes = expand_hashes(trace, block_tokens).hashes
    except InputError as error:
        raise InputError(
            f"engine.block_size: {block_tokens} does not fit the trace's prefix blocks: {error}"
        ) from None
    if hashes is None or trace.hashes is None:
        return None
    runs = _full_blocks(hashes, trace)
    full = [run.size for run in runs]
    continues = _guessed(trace.session, runs) if trace.turns is None else trace.turns.continues
    said = ((trace.input_tokens + trace.output_tokens - 1) // block_tokens).tolist()
    coarse = max(
        trace.hashes.block_tokens, block_tokens
    )  # smaller parts of a partial block have no common ids
    sure = (trace.input_tokens // coarse * coarse // block_tokens).tolist()
    for i in range(len(runs) - 1, -1, -1):  # from the last turn back, for each takes its ids from the next
        before = int(continues[i])
        if before < 0:
            continue
        if not np.array_equal(runs[i][: sure[before]], runs[before][: sure[before]]):
            raise InputError(f"trace: request {i} continues request {before}, but their prefix blocks differ")
        runs[before] = runs[i][: min(max(said[before], full[before]), full[i])]
    counts = [run.size for run in runs]
    return BlockHashes.build(
        block_tokens, counts, np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)
    )


def guessed_turns(trace: Trace) -> Int64:
    """Which request each prompt continues, as far as the blocks show it, -1 where they do not.

    The guess: a prompt that starts with the full blocks of its session's prompt before goes on where that ended.
    """
    if trace.hashes is None:
        return np.full(len(trace), -1)
    return _guessed(trace.session, _full_blocks(trace.hashes, trace))


def _full_blocks(hashes: BlockHashes, trace: Trace) -> list[Int64]:
    full = (trace.input_tokens // hashes.block_tokens).tolist()
    return [hashes.of(i)[:count] for i, count in enumerate(full)]


def _guessed(session: Int64, runs: list[Int64]) -> Int64:
    continues = np.full(session.size, -1)
    last: dict[int, int] = {}
    for i, code in enumerate(session.tolist()):
        if code < 0:
            continue
        before = last.get(code)
        last[code] = i
        if before is not None and np.array_equal(runs[i][: runs[before].size], runs[before]):
            continues[i] = before
    return continues
