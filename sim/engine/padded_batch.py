"""A batch that is computed as a rectangle: as many rows as requests, each as long as the longest of them.

This is what engines did before they scheduled sequences one by one, and what padded kernels do. All prompts are
computed to the length of the longest, less a prefix that every one of them found in the cache; then every row takes a
token a step, with the context of the longest, until the last sequence is done. What a row computes beyond its own
sequence is padding: it takes time, and no KV memory.
"""

from __future__ import annotations

from sim.engine.plan import BatchPlan


class PaddedBatch:
    """Seats of one batch, whoever still sits there. `length`: of the longest prompt; `cached`: the shortest prefix."""

    __slots__ = ("_began", "_window", "cached", "length", "rows")

    def __init__(self, sliding_window: int | None) -> None:
        self.rows = 0
        self.length = 0  # tokens
        self.cached = 0  # tokens
        self._window = sliding_window
        self._began = -1  # engine step in which its rows first decode; -1 before that

    def holds(self, tokens: int, cached: int, most: int) -> bool:
        """Whether its prompts cost at most `most` tokens with one more, of `tokens`, of which `cached` are found."""
        length, prefix = self._with(tokens, cached)
        return (self.rows + 1) * (length - prefix) <= most

    def join(self, tokens: int, cached: int) -> None:
        self.length, self.cached = self._with(tokens, cached)
        self.rows += 1

    def _with(self, tokens: int, cached: int) -> tuple[int, int]:
        return (max(self.length, tokens), min(self.cached, cached)) if self.rows else (tokens, cached)

    def begin(self, step: int) -> None:
        """A step of the batch has run; from `step` on, if this was the first, its rows decode."""
        if self._began < 0:
            self._began = step

    def pad(self, plan: BatchPlan, prompts: int, step: int) -> None:
        """Make the plan of a step cost what the rectangle does, where `prompts` of the rows do not decode yet."""
        if self._began >= 0:
            rows = self.rows - prompts
            context = self._context(step)
            plan.padded_rows = plan.padded_tokens = rows - plan.decodes
            plan.decodes = rows
            plan.context_tokens = rows * context
            if self._window is not None:
                plan.window_context_tokens = rows * min(context, self._window)
                plan.growing = rows if context <= self._window else 0
        if plan.chunks:
            width = self.length - self.cached
            plan.padded_tokens += sum(width - new_tokens for new_tokens, _ in plan.shapes)
            plan.shapes = [(width, self.cached)] * len(plan.shapes)

    def steps_alike(self, steps: int, step: int) -> int:
        """How many of so many steps from `step` on differ in nothing but the growth of the rows."""
        if self._window is None or self._context(step) > self._window:
            return steps
        return min(steps, self._window - self._context(step) + 1)

    def _context(self, step: int) -> int:
        """Tokens that every row attends to in `step`."""
        return self.length + step - self._began + 1
