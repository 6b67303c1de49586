"""What every allocator of KV memory does for an engine.

An engine asks once a step whether all that runs has room (`has_room`), goes through its sequences one by one where it
has not (`start_room`, `promise`), lets prompts take what they compute (`extend`), and lets all sequences that decode
take a token (`grow`). Memory is counted in blocks' worth of tokens whatever an allocator's own unit is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvariantError
from sim.kv.tiers.account import TierAccount
from sim.kv.transfer import Transfer

Contents = NDArray[np.int64]
NO_BLOCKS: Contents = np.zeros(0, dtype=np.int64)


Memory = tuple[int, int, int, int]
"""Blocks that sequences hold; tokens that have KV in them, a shared block counted once; the largest request that could
be placed, in blocks; blocks that nobody holds and a prefix could be found in."""


class Claim:
    """What a request at the head of a queue asks for.

    index           of the request
    tokens          that must be held before its next token can be sampled: the prompt, and after a preemption also
                    what was generated
    final_tokens    that it will hold in the end. An engine cannot know that: only for allocators that reserve with
                    the eyes of an oracle
    lane            the queue that it stands in
    contents        of its full blocks, for prefix caches; None without one
    prefix          blocks found by the last `find_prefix`
    loading_tokens  tokens, behind those found, that `open` starts to bring from another tier
    """

    __slots__ = (
        "contents",
        "final_tokens",
        "index",
        "lane",
        "loading_tokens",
        "prefix",
        "tokens",
    )

    def __init__(
        self, index: int, tokens: int, final_tokens: int, lane: int = 0, contents: Contents | None = None
    ) -> None:
        self.index = index
        self.tokens = tokens
        self.final_tokens = final_tokens
        self.lane = lane
        self.contents = contents
        self.prefix = NO_BLOCKS
        self.loading_tokens = 0


class Holding:
    """What one sequence holds. `tokens` is exact while it does not grow; growing adds a token per step.

    `lane` is that of the claim it was opened for, where an allocator keeps a pool for each lane.
    """

    __slots__ = ("growing_since", "lane", "tokens")

    def __init__(self) -> None:
        self.lane = 0
        self.tokens = 0
        self.growing_since = -1


class Allocator(ABC):
    """KV memory of one engine: `num_blocks` blocks of `block_size` tokens, however they are given out."""

    finds_prefixes: ClassVar[bool] = False
    """Whether it asks what is in a block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.now_ns = 0  # kept up by the engine, for policies that go by time
        self.transfers: list[Transfer] = []  # asked for, and not yet taken by the driver
        self.wake_ns: int | None = None  # when it wants to act, though nothing else happens

    # How full it is.

    @property
    @abstractmethod
    def used_blocks(self) -> int:
        """What sequences hold, in whole blocks' worth."""

    @property
    @abstractmethod
    def stored_tokens(self) -> int:
        """Tokens that have KV in what is held; a block that several hold counts once."""

    @property
    @abstractmethod
    def largest_free_blocks(self) -> int:
        """The largest request that could be placed now, in blocks' worth."""

    @property
    def free_blocks(self) -> int:
        return self.num_blocks - self.used_blocks

    @property
    def cached_blocks(self) -> int:
        """Free blocks in which a prefix could be found."""
        return 0

    def memory(self) -> Memory:
        """All of these at once, asked in every step."""
        return self.used_blocks, self.stored_tokens, self.largest_free_blocks, self.cached_blocks

    # One sequence.

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        """Whether a sequence that comes to hold `final_tokens` could ever run here, alone."""
        return -(-final_tokens // self.block_size) <= self.num_blocks

    def ever_holds_in(self, lane: int, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        """The same of a request of that lane."""
        return self.ever_holds(tokens, final_tokens)

    def find_prefix(self, claim: Claim) -> int:  # noqa: ARG002
        """Tokens of the claim that are held already, by whomever; sets its `prefix`."""
        return 0

    @abstractmethod
    def can_hold(self, claim: Claim) -> bool:
        """Whether all the tokens of the claim could be held now, its prefix shared."""

    @abstractmethod
    def open(self, claim: Claim) -> Any:  # noqa: ANN401  each allocator has a Holding of its own
        """Begin to hold: the claim's prefix, and what is reserved for it; only where `can_hold` said yes."""

    @abstractmethod
    def extend(self, holding: Any, tokens: int) -> bool:  # noqa: ANN401
        """Let a sequence that is not growing hold `tokens` tokens in all; False, and no change, where room is short."""

    @abstractmethod
    def start_growing(self, holding: Any) -> None:  # noqa: ANN401
        """From the next step on, the sequence takes one token a step."""

    @abstractmethod
    def held(self, holding: Any) -> int:  # noqa: ANN401
        """Blocks' worth that the sequence holds now."""

    @abstractmethod
    def release(self, holding: Any) -> None:  # noqa: ANN401
        """Take back everything that the sequence holds, for good."""

    def preempt(self, holding: Any) -> None:  # noqa: ANN401
        """Take back everything; the sequence will come again with a claim of all its tokens."""
        self.release(holding)

    @abstractmethod
    def block_table(self, holding: Any) -> list[int]:  # noqa: ANN401
        """Ids of the blocks in the order of the sequence's tokens; ids stay the same as it grows."""

    # All that run.

    @abstractmethod
    def has_room(self, extensions: Sequence[tuple[Any, int]]) -> bool:
        """Whether all growing sequences could take their next token, and these sequences that many tokens in all."""

    @abstractmethod
    def start_room(self) -> None:
        """Forget promises; sequences are about to be asked one by one."""

    @abstractmethod
    def promise(self, holding: Any, tokens: int | None) -> bool:  # noqa: ANN401
        """Set aside what a sequence needs for `tokens` in all, or where it grows (None) for its next token.

        False, and nothing set aside, where room is short. Promises hold until the step is taken.
        """

    def yields_to(self, victim: Any, holding: Any) -> bool:  # noqa: ANN401, ARG002
        """Whether preempting `victim` is a way to make room for `holding`."""
        return True

    @property
    def recalls(self) -> bool:
        """Whether a sequence may have to give way to one that waits: somebody holds what is promised to others."""
        return False

    def start_recall(self, prompts: Sequence[tuple[Any, int]]) -> None:  # noqa: B027  nothing to note
        """Before sequences are asked one by one: `prompts` are to be computed, each with its tokens in all."""

    def owes(self, holding: Any) -> bool:  # noqa: ANN401, ARG002
        """Whether the sequence holds what is promised to others and wanted now."""
        return False

    def pool_blocks(self) -> tuple[int, ...]:
        """Blocks that sequences of each pool hold; empty where there are no pools."""
        return ()

    @abstractmethod
    def growth_limit(self, steps: int) -> int:
        """How many of the next `steps` steps the growing sequences can take with nothing to decide."""

    @abstractmethod
    def grow(self, steps: int) -> None:
        """All growing sequences take `steps` tokens; the caller has made sure that there is room."""

    # Transfers.

    def begin_step(self) -> None:  # noqa: B027
        """A step is about to be planned, at `now_ns`; what the last one computed is there."""

    @property
    def expects_transfers(self) -> bool:
        """Whether something is on its way after which there may be more room: transfers, or tokens of a bucket."""
        return False

    def tier_account(self, end_ns: int) -> TierAccount | None:  # noqa: ARG002
        """What was found in which tier and what moved, up to the end of the run; None where there is one tier."""
        return None

    def landed(self, transfer: Transfer) -> None:
        """A transfer that was asked for has ended; told at the start of a step."""
        raise InvariantError(f"{type(self).__name__} asked for no transfer, and {transfer} has landed")

    def is_loading(self, holding: Any) -> bool:  # noqa: ANN401, ARG002
        """Whether blocks of the sequence are still on their way."""
        return False

    @abstractmethod
    def check_integrity(self, holdings: Iterable[Any]) -> None:
        """Raise InvariantError unless `holdings`, being all there are, account for all memory exactly once."""


class AllocatorConfig(Protocol):
    """The part of a scenario that names an allocator."""

    @property
    def name(self) -> str:
        """As in a scenario."""

    def build(self, num_blocks: int, block_size: int, max_model_len: int, block_bytes: int) -> Allocator:
        """Make the KV memory of one engine; a block takes `block_bytes` on each of its GPUs."""
