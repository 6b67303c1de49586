"""Token ids of a run: equal prefixes of the trace are equal tokens, answers are what the model says.

A trace says which blocks of prompts are equal, not what is in them. A token's id is a hash of its block's content and
its place in the block, so that equal content is equal tokens. Where a later prompt repeats an answer, the trace knows
the blocks of that answer: its tokens then are the trace's, whatever the model would have said, as when a recorded talk
is replayed. Everywhere else the token that the model has sampled is fed back.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.request import RequestTable
from sim.kv.access.hashing import hashed
from workloads.trace import BlockHashes

Int64 = NDArray[np.int64]

UNKNOWN: Final = -1
"""In place of a token that was not sampled yet."""


class TokenStore:
    """Tokens of every request, made when they are asked for first; `sampled` keeps what the model said."""

    def __init__(
        self, table: RequestTable, hashes: BlockHashes | None, block_size: int, vocab_size: int
    ) -> None:
        self._table = table
        self._hashes = hashes
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._fed: dict[int, Int64] = {}
        self.sampled: dict[int, Int64] = {}
        """Answers by request, UNKNOWN where nothing was sampled yet."""

    def of(self, index: int) -> Int64:
        """Prompt and answer of a request, UNKNOWN where the answer is not there yet."""
        known = self._fed.get(index)
        if known is None:
            known = self._fed[index] = self._make(index)
            self.sampled[index] = np.full(self._table.output_tokens[index], UNKNOWN)
        return known

    def sample(self, index: int, position: int, token: int) -> None:
        """The model says `token` at a position of the sequence; fed back unless the trace knows better."""
        fed = self.of(index)
        if fed[position] == UNKNOWN:
            fed[position] = token
        self.sampled[index][position - self._table.input_tokens[index]] = token

    def _make(self, index: int) -> Int64:
        prompt = self._table.input_tokens[index]
        count = prompt + self._table.output_tokens[index]
        size = self._block_size
        contents = self._table.contents(index, size)
        place = np.arange(count)
        block = place // size
        own = hashed(hashed(np.uint64(index), 0), block)  # of the partial block at the end
        state = np.where(block < contents.size, hashed(np.uint64(0), _at(contents, block)), own)
        tokens = (hashed(state, place % size) % np.uint64(self._vocab_size)).astype(np.int64)
        known = 0 if self._hashes is None else self._hashes.of(index).size * size
        tokens[max(prompt, known) :] = UNKNOWN
        return tokens


def _at(contents: Int64, block: Int64) -> Int64:
    if not contents.size:
        return np.zeros_like(block)
    return contents[np.minimum(block, contents.size - 1)]
