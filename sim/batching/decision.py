"""What a batcher sees and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sim.cost import StepCost


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The engine's own limits, which every batcher keeps; names as in vLLM.

    kv_tokens   that its KV memory holds; None where nobody said
    l2_tokens   whose KV of one layer fits the L2 cache of a GPU; None where nobody said
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_tokens: int | None = None
    l2_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the next step may hold. Sequences that decode always run, with one token each.

    prefill_tokens   most prompt tokens of the step, over all prompts
    split_prompts    whether a prompt may enter with a part of its tokens
    admissions       most waiting requests that may join
    batch_tokens     most tokens that the sequences of the engine may have between them when another one joins, its
                     own included; the first of an empty engine always may. None: no bound
    padded           whether those that join now are a batch that is computed as a rectangle (`PaddedBatch`)
    next_change_ns   when this decision would change with nothing else happening; None where it would not
    """

    prefill_tokens: int
    split_prompts: bool = True
    admissions: int = 1 << 30
    batch_tokens: int | None = None
    padded: bool = False
    next_change_ns: int | None = None


class EngineView(Protocol):
    """What an engine knows about itself when it plans a step. It never knows how long an output will be."""

    @property
    def num_running(self) -> int:
        """Sequences that were admitted and have not finished, those included whose KV is on its way."""

    @property
    def num_decodes(self) -> int:
        """Those of them that yield a token in the next step."""

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""

    @property
    def oldest_wait_ns(self) -> int:
        """When the first request of the queue arrived."""

    @property
    def top_priority(self) -> int:
        """The most urgent (lowest) priority among prompts in progress and the head of the queue."""

    @property
    def next_prompt(self) -> tuple[int, int]:
        """Tokens left and tokens computed of the prompt that comes next; (0, 0) where there is none."""

    @property
    def context_tokens(self) -> int:
        """Tokens that the decoding sequences would attend to in the next step, summed."""

    @property
    def window_context_tokens(self) -> int:
        """The same, each sequence cut to the model's sliding window."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""

    @property
    def num_blocks(self) -> int:
        """KV blocks in all."""


class ArrivalsView(Protocol):
    """Requests that wait and never ran, by their place in the queue: 0 is the oldest."""

    def __len__(self) -> int:
        """How many there are."""

    def tokens(self, place: int) -> int:
        """Length of the prompt."""

    def cached_tokens(self, place: int) -> int:
        """Tokens of the prompt that the prefix cache holds now."""

    def arrival_ns(self, place: int) -> int:
        """When it arrived."""

    def overtaken(self, place: int) -> int:
        """How often a request that came later was chosen before it."""


class QueueOrder(Protocol):
    """Who is next where a queue is not first come first served."""

    def arrived(self, tokens: int) -> None:
        """A request with so long a prompt has joined the queue."""

    def taken(self, tokens: int) -> None:
        """A request with so many tokens was admitted, chosen or not: the first of a queue is, where it is alone."""

    def choose(self, arrivals: ArrivalsView, now_ns: int) -> int:
        """Place of the next request to admit. The choice stands until it is admitted, or the engine is empty."""


class Batcher(Protocol):
    """A pure decision, asked before a step in which a prompt could run.

    Between two steps in which nothing is admitted, finished or preempted, and before `next_change_ns`, the same
    question must get the same answer, or `looks_every_step` be true: fast-forward is then off while anything waits.
    """

    @property
    def looks_every_step(self) -> bool:
        """Whether no two steps may be taken at once while anything waits."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Longest sequence that can ever be scheduled; None where there is no limit."""

    @property
    def order(self) -> QueueOrder | None:
        """Who of the queue is next; None: first come first served."""

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:
        """Decide on the next step; must not change the view."""


class BatcherConfig(Protocol):
    """The part of a scenario that names a batcher."""

    @property
    def needs_prefix_cache(self) -> bool:
        """Whether it does nothing without one."""

    def build(self, limits: EngineLimits, cost: StepCost) -> Batcher:
        """Make the batcher of one engine."""
