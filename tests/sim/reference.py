"""A naive engine to compare with: every sequence, block and token explicit, one step at a time, no shortcuts."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.doubles import AffineCost


@dataclass
class Request:
    index: int
    arrival: int
    prompt: int
    output: int
    computed: int = 0
    blocks: int = 0
    tokens: list[int] = field(default_factory=list)  # times
    scheduled: int = -1
    preemptions: int = 0
    decoding: bool = False
    cached: int = 0
    held: list[int] = field(default_factory=list)  # block numbers, with a prefix cache

    @property
    def total(self) -> int:
        return self.prompt + len(self.tokens)


def chunked_engine(  # noqa: C901, PLR0912, PLR0915  one loop on purpose: it is read from top to bottom
    requests: list[tuple[int, int, int]],
    cost: AffineCost,
    *,
    seats: int,
    budget: int,
    block_size: int,
    blocks: int,
) -> list[Request]:
    """vLLM's order of things with a fixed chunk budget; requests are (arrival, prompt, output), sorted."""
    everything = [Request(i, *request) for i, request in enumerate(requests)]
    coming, waiting, running = list(everything), [], []
    now = 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        free = blocks - sum(r.blocks for r in running)
        left, batch, preempted, at = budget, [], False, 0
        while at < len(running):
            r = running[at]
            new = min(r.total - r.computed, left)
            need = -(-(r.computed + new) // block_size) - r.blocks if new else 0
            while need > free:
                victim = running.pop()
                free += victim.blocks
                victim.blocks = victim.computed = 0
                victim.preemptions += 1
                victim.decoding = False
                waiting.insert(0, victim)
                preempted = True
                if victim is r:
                    break
            else:
                free -= need
                r.blocks += need
                left -= new
                if new:
                    batch.append((r, new))
            at += 1
        while not preempted and waiting and left and len(running) < seats:
            r = waiting[0]
            if -(-r.total // block_size) > free:
                break
            waiting.pop(0)
            running.append(r)
            new = min(r.total, left)
            r.blocks = -(-new // block_size)
            free -= r.blocks
            left -= new
            batch.append((r, new))
            if r.scheduled < 0:
                r.scheduled = now
        decodes = [r for r, _ in batch if r.decoding]
        window = cost.sliding_window
        now += cost.mixed_ns(
            len(decodes),
            sum(r.computed + 1 for r in decodes),
            sum(min(r.computed + 1, window) for r in decodes) if window else 0,
            [(new, r.computed) for r, new in batch if not r.decoding],
        )
        for r, new in batch:
            r.computed += new
            if r.computed == r.total:
                r.tokens.append(now)
                r.decoding = True
                if len(r.tokens) == r.output:
                    running.remove(r)
    return everything


class CachedBlocks:
    """vLLM's block pool, block by block: a list of free blocks, and which blocks hold which content."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = list(range(blocks))
        self.holders = [0] * blocks
        self.content: list[object] = [None] * blocks
        self.found: dict[object, list[int]] = {}

    def prefix(self, contents: list[object], tokens: int) -> list[int]:
        run = []
        for content in contents[: (tokens - 1) // self.size]:
            if not self.found.get(content):
                break
            run.append(self.found[content][0])
        return run

    def fits(self, tokens: int, prefix: list[int]) -> bool:
        idle = sum(self.holders[block] == 0 for block in prefix)
        return -(-tokens // self.size) - len(prefix) + idle <= len(self.free)

    def touch(self, prefix: list[int]) -> None:
        for block in prefix:
            if self.holders[block] == 0:
                self.free.remove(block)
            self.holders[block] += 1

    def grow(self, held: list[int], tokens: int, contents: list[object]) -> None:
        """Take blocks for `tokens` tokens in all, and make the full ones findable."""
        while len(held) < -(-tokens // self.size):
            block = self.free.pop(0)
            if self.content[block] is not None:
                self.found[self.content[block]].remove(block)
                self.content[block] = None
            self.holders[block] = 1
            held.append(block)
        for at in range(min(tokens // self.size, len(contents))):
            if self.content[held[at]] is None:
                self.content[held[at]] = contents[at]
                self.found.setdefault(contents[at], []).append(held[at])

    def give_back(self, held: list[int]) -> None:
        for block in reversed(held):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free.append(block)
        held.clear()


def cached_engine(  # noqa: C901, PLR0912, PLR0915  as above
    requests: list[tuple[int, int, int]],
    contents: list[list[object]],
    *,
    step_ns: int,
    seats: int,
    budget: int,
    block_size: int,
    blocks: int,
) -> list[Request]:
    """The same engine with a prefix cache; every step takes `step_ns`."""
    everything = [Request(i, *request) for i, request in enumerate(requests)]
    coming, waiting, running = list(everything), [], []
    pool = CachedBlocks(blocks, block_size)
    now = 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        left, batch, preempted, at = budget, [], False, 0
        while at < len(running):
            r = running[at]
            new = min(r.total - r.computed, left)
            while new and -(-(r.computed + new) // block_size) - len(r.held) > len(pool.free):
                victim = running.pop()
                pool.give_back(victim.held)
                victim.computed = 0
                victim.preemptions += 1
                waiting.insert(0, victim)
                preempted = True
                if victim is r:
                    break
            else:
                if new:
                    pool.grow(r.held, r.computed + new, contents[r.index])
                    batch.append((r, new))
                    left -= new
            at += 1
        while not preempted and waiting and left and len(running) < seats:
            r = waiting[0]
            prefix = pool.prefix(contents[r.index], r.total)
            if not pool.fits(r.total, prefix):
                break
            waiting.pop(0)
            running.append(r)
            pool.touch(prefix)
            r.held = list(prefix)
            r.computed = len(prefix) * block_size
            new = min(r.total - r.computed, left)
            pool.grow(r.held, r.computed + new, contents[r.index])
            left -= new
            batch.append((r, new))
            if r.scheduled < 0:
                r.scheduled, r.cached = now, r.computed
        now += step_ns
        for r, new in batch:
            r.computed += new
            if r.computed == r.total:
                r.tokens.append(now)
                if len(r.tokens) == r.output:
                    running.remove(r)
                    pool.give_back(r.held)
    return everything
