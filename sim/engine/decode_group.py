"""The sequences that decode: all of them yield one token in every step, so running sums say everything.

With s the engine's step count, a sequence that joined at step j holding L tokens attends to L + (s - j) + 1 tokens
in step s. The sum over the group is `base + n (s + 1)`, with `base` the sum of L - j: joining and leaving are one
addition, and a step costs nothing. With a sliding window w the sum is split into the sequences that are still below
w and those that are not.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.engine.request import Sequence


class DecodeGroup:
    """Joined and left by sequences; asked by step."""

    def __init__(self, sliding_window: int | None) -> None:
        self.size = 0
        self._base = 0
        self._finishing: list[tuple[int, int, Sequence]] = []
        self._window = sliding_window
        self._below = 0
        self._below_base = 0
        self._crossing: list[tuple[int, int, Sequence]] = []

    def join(self, seq: Sequence, step: int) -> None:
        """`seq`, with the KV of `seq.target` tokens, yields its next token in `step`."""
        offset = seq.target - step
        seq.joined_step = step
        seq.last_step = step + seq.output_tokens - seq.generated - 1
        self.size += 1
        self._base += offset
        heappush(self._finishing, (seq.last_step, seq.ticket, seq))
        if self._window is not None:
            crossing = self._window - 1 - offset  # its context equals the window in that step
            if crossing > step:
                seq.crossing_step = crossing
                self._below += 1
                self._below_base += offset
                heappush(self._crossing, (crossing, seq.ticket, seq))

    def leave(self, seq: Sequence, step: int) -> None:
        """`seq` yields no token in `step` any more."""
        offset = seq.target - seq.joined_step
        self.size -= 1
        self._base -= offset
        if self._window is not None:
            self._cross(step)
            if seq.crossing_step >= step:
                self._below -= 1
                self._below_base -= offset
            seq.crossing_step = -1
        seq.joined_step = seq.last_step = -1

    def context_tokens(self, step: int) -> int:
        return self._base + self.size * (step + 1)

    def window_context(self, step: int) -> tuple[int, int]:
        """Context tokens cut to the window, summed, and how many of the sequences are still below it."""
        if self._window is None:
            return 0, 0
        self._cross(step)
        below = self._below_base + self._below * (step + 1)
        return below + (self.size - self._below) * self._window, self._below

    def steps_alike(self, step: int) -> int:
        """Steps from `step` on until one of the group yields its last token, or fills its window, inclusive."""
        heap = self._finishing
        while not _stands(heap[0], heap[0][2].last_step):
            heappop(heap)
        last = heap[0][0]
        if self._window is not None:
            self._cross(step)
            if self._crossing and self._crossing[0][0] < last:
                last = self._crossing[0][0]
        return last - step + 1

    def finished(self, step: int) -> list[Sequence]:
        """Sequences whose last token came in or before `step`, in running order; they are still in the group."""
        heap = self._finishing
        done = []
        while heap and heap[0][0] <= step:
            entry = heappop(heap)
            if _stands(entry, entry[2].last_step):
                done.append(entry[2])
        return done

    def _cross(self, step: int) -> None:
        """Count those as beyond the window whose context filled it before `step`."""
        heap = self._crossing
        while heap and (heap[0][0] < step or not _stands(heap[0], heap[0][2].crossing_step)):
            entry = heappop(heap)
            seq = entry[2]
            if _stands(entry, seq.crossing_step):
                self._below -= 1
                self._below_base -= seq.target - seq.joined_step


def _stands(entry: tuple[int, int, Sequence], step: int) -> bool:
    """Whether an entry is of the sequence's latest admission: it may have left and joined again for the same step."""
    return entry[0] == step and entry[1] == entry[2].ticket
