"""The section `kv_compression`: a KV cache made smaller than the model's own, and what its user says that costs."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.kv.compression import KvCompression

Tokens = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
Share = Annotated[float, Field(strict=True, ge=0.001, le=1)]
Third = Literal["low", "middle", "high"]


class KvCompressionConfig(BaseModel):
    """A smaller KV cache. What that does to answers is not simulated: say it in `quality`, and reports repeat it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )

    hot_tokens: Tokens | None = None
    """Latest tokens of a sequence that stay 16-bit; older ones become `cold_dtype`."""
    cold_dtype: Literal["fp8", "int8"] = "fp8"
    """Precision of the older tokens: fp8, or int8 with a 32-bit scale for each token and head."""
    owning_layers: Share = 1.0
    """Share of the layers that own KV; the others attend to that of the nearest owner below."""
    layer_keep: dict[Third, Share] = {}
    """Share of the KV heads kept in the low, middle and high third of the layers; 1 where left out."""
    keep_ratio: Share = 1.0
    """Share of the older tokens that is kept, by whatever measure of importance."""
    keep_recent: Annotated[int, Field(strict=True, ge=0, le=100_000_000)] | None = None
    """Latest tokens that are all kept beside `keep_ratio`; by default hot_tokens, or none."""
    sliding_window: Tokens | None = None
    """Tokens that attention reaches back, where the model has no window of its own; older KV is freed."""
    quality: dict[str, float] = {}
    """What this does to answers, as you know or assume it, such as perplexity_factor: 1.03; only repeated."""

    @property
    def ages(self) -> bool:
        """Whether older tokens are treated unlike the latest."""
        return self.hot_tokens is not None or self.keep_ratio < 1 or self.sliding_window is not None

    def build(self) -> KvCompression | None:
        """What is stored and read; None where nothing is made smaller."""
        low, middle, high = (self.layer_keep.get(third, 1.0) for third in ("low", "middle", "high"))
        built = KvCompression(
            owning_layers=self.owning_layers,
            layer_keep=(low, middle, high),
            recent_tokens=self._recent_tokens,
            older_kept=Fraction(0)
            if self.sliding_window
            else Fraction(self.keep_ratio).limit_denominator(1_000_000),
            older_dtype="bfloat16" if self.hot_tokens is None else self.cold_dtype,
        )
        return None if built == KvCompression() else built

    @property
    def _recent_tokens(self) -> int | None:
        if not self.ages:
            return None
        return self.sliding_window or self.hot_tokens or self.keep_recent or 0

    @model_validator(mode="after")
    def _every_field_acts(self) -> KvCompressionConfig:
        if self.cold_dtype != "fp8" and self.hot_tokens is None:
            raise ValueError(
                f"cold_dtype: {self.cold_dtype} is for tokens older than hot_tokens; set hot_tokens"
            )
        if self.keep_recent is not None and self.keep_ratio == 1:
            raise ValueError("keep_recent: all tokens are kept; set keep_ratio below 1")
        if self.quality and self.build() is None:
            raise ValueError("quality: nothing is compressed that could have an effect on it")
        return self

    @model_validator(mode="after")
    def _one_border_of_age(self) -> KvCompressionConfig:
        if self.sliding_window is not None and (self.hot_tokens is not None or self.keep_ratio < 1):
            raise ValueError(
                "sliding_window: tokens behind it are gone; leave hot_tokens and keep_ratio out beside it"
            )
        if self.hot_tokens and self.keep_recent is not None and self.keep_recent != self.hot_tokens:
            raise ValueError(
                f"keep_recent: tokens age once, at hot_tokens ({self.hot_tokens}); leave keep_recent out"
            )
        return self
