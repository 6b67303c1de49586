"""Block ids of whole sequences: an answer that a later prompt repeats can be found in a prefix cache too."""

from __future__ import annotations

import numpy as np

from workloads.errors import InputError
from workloads.expand import expand_hashes
from workloads.trace import BlockHashes, Trace


def sequence_hashes(trace: Trace, block_tokens: int) -> BlockHashes | None:
    """Ids of the full blocks of every prompt, at an engine's block size, and of its answer where they are known.

    In a session the next prompt repeats what was said: where it starts with the full blocks of this one, its ids name
    the blocks that this answer fills. None where the trace says nothing of prefixes.
    """
    try:
        hashes = expand_hashes(trace, block_tokens).hashes
    except InputError as error:
        raise InputError(
            f"engine.block_size: {block_tokens} does not fit the trace's prefix blocks: {error}"
        ) from None
    if hashes is None:
        return None
    full = trace.input_tokens // block_tokens
    runs = [hashes.of(i)[: full[i]] for i in range(len(trace))]
    last: dict[int, int] = {}
    for i, session in enumerate(trace.session.tolist()):
        if session < 0:
            continue
        before = last.get(session)
        last[session] = i
        if before is not None:
            said = int(trace.input_tokens[before] + trace.output_tokens[before] - 1) // block_tokens
            known = runs[before]
            if np.array_equal(runs[i][: known.size], known):
                runs[before] = runs[i][: max(said, known.size)]
    counts = [run.size for run in runs]
    return BlockHashes.build(
        block_tokens, counts, np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)
    )
