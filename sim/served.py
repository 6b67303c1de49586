"""How a served engine's kernels differ from the tables of kernels timed alone."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from sim.curves.term import Model, SecondsOrZero

Factor = Annotated[float, Field(gt=0.1, lt=10)]
Share = Annotated[float, Field(ge=0, lt=10)]

SMALL_MESSAGE: Final = 2.0**20
LARGE_MESSAGE: Final = 2.0**24
MANY_TOKENS: Final = 64.0
"""All-reduces between the two sizes [bytes] take a factor in between, and experts between one token and that many."""


class Experts(Model):
    """Of one kernel of experts, as tables name them: met by few tokens (one each at most), and by many."""

    few: Factor = 1.0
    many: Factor = 1.0


class Served(Model):
    """Factors on the times of kernels as an engine runs them, one after the other for hours.

    compute             GEMMs, by the share of a layer's time in which arithmetic runs at full rate: a GPU at its power
                        limit clocks down under long steps of it, and a table's rows are short bursts
    gemm_fixed          the fixed part of quantised GEMMs: tables time the quantisation of activations as launches of
                        its own, and compiled code does it in the kernel before
    decode_fixed        what decode attention takes beyond the streaming of KV from HBM
    prefill_attention   that kernel
    experts             by the kind of checkpoint, as tables name kernels; engines have changed these more than others
    routing_s           of each layer with experts, for kernels that no table has: choosing experts, sorting tokens
    all_reduce          all-reduce of small messages, between kernels that finish at different times on the GPUs
    all_reduce_large    all-reduce of large messages, which engines may send by other means (multicast) than the tables
    """

    compute: Factor = 1.0
    gemm_fixed: Share = 1.0
    decode_fixed: Share = 1.0
    prefill_attention: Factor = 1.0
    experts: dict[str, Experts] = Field(default_factory=dict)
    routing_s: SecondsOrZero = 0.0
    all_reduce: Factor = 1.0
    all_reduce_large: Factor = 1.0
    source: str
    notes: str = ""
