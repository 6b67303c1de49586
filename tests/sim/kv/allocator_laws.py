"""What holds of every allocator, driven as an engine drives it: by admissions, chunks of prompts, steps and ends.

Two of each run side by side: one takes windows of steps at once, the other one step after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.kv.allocators.decision import Allocator, Claim


class Running:
    """A sequence: what it holds in either allocator, and what the model knows of it."""

    def __init__(self, claim: Claim, kv: list, tokens: int) -> None:
        self.claim = claim
        self.kv = kv
        self.tokens = tokens
        self.growing = False

    @property
    def left(self) -> int:
        return self.claim.final_tokens - self.tokens


def fragmentation(allocator: Allocator) -> float:
    free = allocator.free_blocks
    return (free - allocator.largest_free_blocks) / free if free else 0.0


class AllocatorMachine(RuleBasedStateMachine):
    make: Callable[[], Allocator]
    longest = 60
    shares_move = (
        False  # whether space may have changed hands, so that an empty pool is not as it was at the start
    )

    @initialize()
    def start(self):
        self.both = [type(self).make() for _ in range(2)]
        self.empty = self.figures(self.both[0])
        self.running: list[Running] = []
        self.count = 0

    def figures(self, allocator: Allocator) -> tuple:
        return allocator.used_blocks, allocator.stored_tokens, allocator.largest_free_blocks

    def agree(self, answers: list) -> bool:
        assert answers[0] == answers[1]
        return answers[0]

    @rule(tokens=st.integers(1, 40), more=st.integers(0, 30), share=st.floats(0, 1))
    def admit(self, tokens, more, share):
        self.count += 1
        claim = Claim(self.count, tokens, min(tokens + more, self.longest))
        possible = self.agree([a.ever_holds(claim.tokens, claim.final_tokens) for a in self.both])
        fits = self.agree([a.can_hold(claim) for a in self.both])
        assert possible or not fits or self.shares_move
        assert fits or self.running or not possible  # what could ever run does so alone
        if fits:
            first = max(1, round(share * tokens))
            kv = [a.open(claim) for a in self.both]
            assert all(a.extend(h, first) for a, h in zip(self.both, kv, strict=True))
            self.running.append(Running(claim, kv, first))

    @rule(data=st.data())
    def step(self, data):
        """One step: prompts take a chunk, and all that decode a token; the latest give way where room is short."""
        for seq in [seq for seq in self.running if seq.growing and not seq.left]:
            self.release(seq)
        wanted = {
            seq: min(seq.claim.tokens, seq.tokens + data.draw(st.integers(1, 9)))
            for seq in self.running
            if not seq.growing
        }
        if not self.agree(
            [a.has_room([(s.kv[i], t) for s, t in wanted.items()]) for i, a in enumerate(self.both)]
        ):
            self.make_room(wanted)
        for seq in [seq for seq in self.running if not seq.growing]:
            assert all(a.extend(h, wanted[seq]) for a, h in zip(self.both, seq.kv, strict=True))
            seq.tokens = wanted[seq]
        for allocator in self.both:
            allocator.grow(1)
        for seq in self.running:
            if seq.growing:
                seq.tokens += 1
            elif seq.tokens == seq.claim.tokens:
                seq.growing = True
                for allocator, holding in zip(self.both, seq.kv, strict=True):
                    allocator.start_growing(holding)

    def make_room(self, wanted: dict[Running, int]) -> None:
        for allocator in self.both:
            allocator.start_room()
        order = list(self.running)
        at = 0
        while at < len(order):
            seq = order[at]
            tokens = None if seq.growing else wanted[seq]
            while not self.agree([a.promise(h, tokens) for a, h in zip(self.both, seq.kv, strict=True)]):
                victim = order.pop()
                assert order or len(self.running) > 1  # alone, a sequence always has room
                self.release(victim)
                if victim is seq:
                    break
            at += 1

    @precondition(lambda self: any(seq.growing for seq in self.running))
    @rule(steps=st.integers(1, 40))
    def window(self, steps):
        """As many steps as nothing happens in: at once, and one by one."""
        for seq in [seq for seq in self.running if seq.growing and not seq.left]:
            self.release(seq)
        growing = [seq for seq in self.running if seq.growing]
        alike = min([steps, *(seq.left for seq in growing)])
        limit = self.agree([a.growth_limit(alike) for a in self.both])
        assert 0 <= limit <= alike
        if limit:
            self.both[0].grow(limit)
        for _ in range(limit):
            assert self.both[1].has_room(())
            self.both[1].grow(1)
        for seq in growing:
            seq.tokens += limit

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.release(data.draw(st.sampled_from(self.running)))

    @rule(seconds=st.integers(0, 400))
    def time_passes(self, seconds):
        for allocator in self.both:
            allocator.now_ns += seconds * 10**9

    def release(self, seq: Running) -> None:
        self.running.remove(seq)
        for allocator, holding in zip(self.both, seq.kv, strict=True):
            allocator.release(holding)

    @invariant()
    def accounts(self):
        for i, allocator in enumerate(self.both):
            allocator.check_integrity([seq.kv[i] for seq in self.running])
            assert allocator.used_blocks + allocator.free_blocks == allocator.num_blocks
            assert allocator.stored_tokens == sum(seq.tokens for seq in self.running)
            assert allocator.stored_tokens <= allocator.used_blocks * allocator.block_size
            assert 0 <= fragmentation(allocator) <= 1
            for seq in self.running:
                assert allocator.held(seq.kv[i]) * allocator.block_size >= seq.tokens
        assert self.figures(self.both[0]) == self.figures(self.both[1])

    @invariant()
    def no_two_sequences_share_a_block(self):
        tables = [[a.block_table(seq.kv[i]) for seq in self.running] for i, a in enumerate(self.both)]
        assert tables[0] == tables[1]
        ids = [block for table in tables[0] for block in table]
        assert len(set(ids)) == len(ids)
        assert all(0 <= block < self.both[0].num_blocks for block in ids)
        size = self.both[0].block_size
        assert [len(t) for t in tables[0]] == [-(-seq.tokens // size) for seq in self.running]

    def teardown(self):
        if hasattr(self, "running"):
            while self.running:
                self.release(self.running[-1])
            for allocator in self.both:
                allocator.check_integrity([])
                self.all_is_free(allocator)

    def all_is_free(self, allocator: Allocator) -> None:
        figures = self.figures(allocator)
        assert figures[:2] == (0, 0)
        assert figures == self.empty or self.shares_move


def law_test(make: Callable[[], Allocator], longest: int = 60, *, shares_move: bool = False) -> type:
    """A test case for the allocators that `make` makes; no sequence comes to hold more than `longest` tokens."""
    attributes = {"make": staticmethod(make), "longest": longest, "shares_move": shares_move}
    machine = type("Machine", (AllocatorMachine,), attributes)
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    return machine.TestCase
