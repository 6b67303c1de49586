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
