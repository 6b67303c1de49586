"""Replay of recorded accesses (recording_files.py) for any sequence.

The step with context n replays the recorded step (n - recorded context) modulo the recorded steps, so that a
sequence like the recorded one reads just what was recorded. In a sequence of another length a page stands as far
from the end as it was recorded; the first page, where the attention sinks are, stays the first; what would lie
before the start is left out. A group of layers reads what any of its layers read, with the mean of their weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.kv.access.reads import Reads, num_blocks
from sim.kv.access.recording import Recording
from workloads.errors import ConfigError


class Recorded(BaseModel):
    """Read what a file says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["recorded"] = "recorded"
    path: str
    """A recording of KV accesses, .parquet or .jsonl."""

    def build(self, groups: int, block_size: int, seed: int) -> RecordedAccess:  # noqa: ARG002  nothing is random here
        from sim.kv.access.recording_files import read_recording  # noqa: PLC0415  pyarrow takes 70 ms to import

        recording = read_recording(Path(self.path))
        header = recording.header
        if header.block_size != block_size:
            raise ConfigError(
                f"{self.path}: recorded with blocks of {header.block_size} tokens, not of {block_size}"
            )
        if header.num_layers % groups:
            raise ConfigError(
                f"{self.path}: its {header.num_layers} layers do not fall into {groups} equal groups"
            )
        return RecordedAccess(recording, groups)


class RecordedAccess:
    """The recording by group, and each step's place in it."""

    def __init__(self, recording: Recording, groups: int) -> None:
        header = recording.header
        self.groups = groups
        self.block_size = header.block_size
        self._header = header
        self._steps = recording.steps
        layers = header.num_layers // groups
        pages = header.pages(self._steps)
        key = (recording.step * groups + recording.layer // layers) * pages + recording.page
        unique, which = np.unique(key, return_inverse=True)
        self._weight = np.bincount(which, recording.weight, minlength=unique.size) / layers
        self._page = unique % pages
        self._group = unique // pages % groups
        self._start = np.searchsorted(unique // (pages * groups), np.arange(self._steps + 1))

    def reads(self, sequence: int, context_tokens: int) -> Reads:  # noqa: ARG002  all sequences read alike
        step = (context_tokens - self._header.context_tokens) % self._steps
        rows = slice(self._start[step], self._start[step + 1])
        group, page, weight = self._group[rows], self._page[rows], self._weight[rows]
        shift = num_blocks(context_tokens, self.block_size) - self._header.pages(step)
        if not shift:
            return Reads(group, page, weight)
        block = np.where(page == 0, 0, page + shift)
        there = (block > 0) | (page == 0)  # a page of another place never takes the first one's
        return Reads(group[there], block[there], weight[there])

    def known(self, sequence: int, context_tokens: int) -> Reads:  # noqa: ARG002  nothing follows from the length
        return Reads.nothing()
