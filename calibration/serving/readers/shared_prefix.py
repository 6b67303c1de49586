"""What inference-perf's `shared_prefix` load sends: fixed prompts behind a few system prompts, over and over.

Stages follow each other on one server. Requests of a stage are `rate x duration` in number, their times those of a
Poisson process given that number: independent and uniform (recorded gaps have CV 1.0). The client repeats 100
prompts in a fixed order, 10 behind each of 10 system prompts, whatever numbers of them its settings name: recorded
prompt lengths have period 100, and the client's resolved configuration says `num_groups: 10` and
`num_prompts_per_group: 10`, its defaults, where the run's settings ask for other numbers under other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from workloads.build import Workload
from workloads.errors import InputError
from workloads.trace import NS_PER_S, BlockHashes, Int64, Trace

PROMPTS: Final = 100
"""Distinct prompts that take turns."""
GROUPS: Final = 10
"""System prompts among them."""
BLOCK_TOKENS: Final = 16
RETOKENISED: Final = 1.045
"""A prompt's tokens as the server counts them over those that the settings ask for: random tokens become text and
tokens again. 1.040 to 1.052 in the 16 runs whose prompt lengths are recorded (`e2e_openloop`)."""
DRAIN_S: Final = 4.2
"""From the end of one stage to the start of the next, as recorded in both runs that have two."""
_MOST: Final = 10_000_000  # requests of a stage
_RUN: Final = 1 << 32  # ids of one prompt: its number times this, plus the block's place


@dataclass(frozen=True)
class Stage:
    """A time of constant rate."""

    rate_rps: float
    duration_s: float

    @classmethod
    def of(cls, rate_rps: float, duration_s: float, where: str) -> Self:
        """A recorded stage, `where` it is; raises InputError where nobody could have sent its requests."""
        if not 0.5 < rate_rps * duration_s <= _MOST:
            raise InputError(
                f"{where}: {rate_rps:g} requests/s for {duration_s:g} s; 1 to {_MOST:,} requests are expected"
            )
        return cls(rate_rps, duration_s)

    @property
    def requests(self) -> int:
        return round(self.rate_rps * self.duration_s)


@dataclass(frozen=True)
class SharedPrefixLoad:
    """The load of one run.

    system_tokens   of a prompt's beginning, which those of its group share
    input_tokens    of a whole prompt, as the server counts them
    output_tokens   generated for each, to the last
    """

    stages: tuple[Stage, ...]
    system_tokens: int
    input_tokens: int
    output_tokens: int

    @property
    def requests(self) -> int:
        return sum(stage.requests for stage in self.stages)

    def masks(self) -> list[NDArray[np.bool_]]:
        """Which requests belong to each stage: bool, one entry a request."""
        return stage_masks([stage.requests for stage in self.stages])

    def draw(self, seed: int) -> Workload:
        """Draw the times of arrival; the rest is fixed."""
        rng = np.random.default_rng(seed)
        times, start_s = [], 0.0
        for stage in self.stages:
            times.append(start_s + np.sort(rng.random(stage.requests)) * stage.duration_s)
            start_s += stage.duration_s + DRAIN_S
        arrival_s = np.concatenate(times)
        prompt = np.arange(arrival_s.size) % PROMPTS
        lengths = np.full(arrival_s.size, self.input_tokens)
        trace = Trace.build(
            np.rint((arrival_s - arrival_s[0]) * NS_PER_S),
            lengths,
            np.full(arrival_s.size, self.output_tokens),
            hashes=prompt_hashes(prompt, lengths, self.system_tokens),
        )
        return Workload(trace)


def stage_masks(counts: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Which requests belong to each stage, where stages of so many requests follow each other."""
    stage = np.repeat(np.arange(len(counts)), counts)
    return [stage == number for number in range(len(counts))]


def prompt_hashes(prompt: Int64, input_tokens: Int64, system_tokens: int) -> BlockHashes:
    """Blocks of prompts by their number: the same throughout, and the system prompt's within its group.

    Which group a prompt is of is not recorded: its number's last digit stands for it. It matters to the first turn
    of the prompts alone; after that each is found whole.
    """
    counts = -(-input_tokens // BLOCK_TOKENS)
    ends = np.cumsum(counts)
    depth = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    owner = np.where(
        depth < system_tokens // BLOCK_TOKENS,
        np.repeat(prompt % GROUPS, counts),
        np.repeat(prompt + GROUPS, counts),
    )
    return BlockHashes.build(BLOCK_TOKENS, counts, owner * _RUN + depth)
