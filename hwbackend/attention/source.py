"""What a source of attention is to the sampler, and how one is recorded."""

from __future__ import annotations

from typing import Protocol

from hwbackend.attention.sampler import PageSampler, Sampling
from sim.errors import ConfigError
from sim.kv.access.recording import Recording


class AttentionSource(Protocol):
    """A model that decodes one sequence, and shows what each step attends to."""

    num_layers: int
    num_kv_heads: int
    random_weights: bool
    """Whether nobody trained it: then a recording of it shows chance, and no structure of language."""

    def __str__(self) -> str:
        """Whose attention it is, in words."""
        ...

    def decode(self, sampler: PageSampler) -> None:
        """Decode until the sampler is done, or there is nothing more to decode."""


def record(source: AttentionSource, sampling: Sampling) -> Recording:
    """Record a source; ConfigError where it has fewer steps than asked for."""
    sampler = PageSampler(sampling, source.num_layers, source.num_kv_heads)
    source.decode(sampler)
    if not sampler.done:
        raise ConfigError(
            f"--steps {sampling.steps}: {source} has {sampler.steps} decode steps in a row; ask for no more"
        )
    return sampler.recording(str(source), random_weights=source.random_weights)
