"""One named random stream per concern, so that changing one leaves the draws of the others as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Name = Literal["arrivals", "inputs", "outputs", "sessions", "tenants", "prefixes"]

_KEYS: dict[Name, int] = {
    "arrivals": 0,
    "inputs": 1,
    "outputs": 2,
    "sessions": 3,
    "tenants": 4,
    "prefixes": 5,
}


@dataclass(frozen=True)
class Streams:
    """The streams below one seed. Pure: asking twice gives two generators in the same state."""

    seed: np.random.SeedSequence

    def of(self, name: Name, *more: int) -> np.random.Generator:
        """Return the generator of a name (and of numbered children below it), at its start."""
        key = (*self.seed.spawn_key, _KEYS[name], *more)
        child = np.random.SeedSequence(self.seed.entropy, spawn_key=key, pool_size=self.seed.pool_size)
        return np.random.Generator(np.random.PCG64(child))
