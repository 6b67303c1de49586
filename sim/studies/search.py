"""Searches over a yes-or-no question whose answer changes once."""

from __future__ import annotations

import math
from collections.abc import Callable


def greatest(holds: Callable[[float], bool], top: float, *, floor: float, ratio: float) -> float | None:
    """The greatest value up to `top` for which it holds, to within a factor `ratio`; None if not even at `floor`."""
    if holds(top):
        return top
    failing, value = top, top / 2
    while not holds(value):
        if value <= floor:
            return None
        failing, value = value, max(value / 2, floor)
    while failing / value > ratio:
        middle = math.sqrt(failing * value)
        if holds(middle):
            value = middle
        else:
            failing = middle
    return value


def fewest(holds: Callable[[int], bool], *, least: int, most: int, guess: int) -> int | None:
    """The smallest number from `least` to `most` for which it holds; None if not even for `most`."""
    if least > most:
        return None
    failing, value, step = least - 1, min(max(guess, least), most), 1
    while not holds(value):
        if value == most:
            return None
        failing, value, step = value, min(value + step, most), step * 2
    step = 1
    while value - step > failing:  # the guess was good, most likely: try just below, then further
        if not holds(value - step):
            failing = value - step
            break
        value, step = value - step, step * 2
    while value - failing > 1:
        middle = (value + failing) // 2
        if holds(middle):
            value = middle
        else:
            failing = middle
    return value
