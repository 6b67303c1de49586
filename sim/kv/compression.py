"""What is stored and read of the KV cache where it is made smaller than the model's own.

By layer: only some layers own KV and the others attend to it too (Brandon et al., "Reducing Transformer KV cache size
with cross-layer attention", 2024), and of a layer only some heads may be kept.

By age: the latest tokens of a sequence are kept whole. Of the older ones a share is kept, in 16 bits or in 8: 8-bit
KV behind a 16-bit window is KIVI's residual (Liu et al., ICML 2024), a share of the tokens is what H2O (Zhang et al.,
NeurIPS 2023) and its kin keep, and none of them a sliding window.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from sim.kv.footprint import Footprint

OlderDtype = Literal["bfloat16", "fp8", "int8"]
_RECENT_BYTES: Final = 2
_SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class KvCompression:
    """Shares of a plain 16-bit cache; the defaults leave it as it is."""

    owning_layers: float = 1.0
    """Share of the layers that own KV, to the nearest layer, spread evenly; others read that of the owner below."""
    layer_keep: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Share of a layer's KV that is kept, in the low, middle and high third of the layers."""
    recent_tokens: int | None = None
    """Latest tokens that are kept whole; None: all are."""
    older_kept: Fraction = Fraction(1)
    """Share of the tokens behind them that is kept."""
    older_dtype: OlderDtype = "bfloat16"

    @property
    def sliding_window(self) -> int | None:
        """Tokens that are left where nothing older is kept."""
        return self.recent_tokens if self.older_kept == 0 else None

    def num_owners(self, num_layers: int) -> int:
        return max(1, round(self.owning_layers * num_layers))

    def stored_share(self, num_layers: int) -> Fraction:
        """Bytes of a recent token, of those it would take in a plain cache."""
        owners = self.num_owners(num_layers)
        own = {_owner(layer, owners, num_layers) for layer in range(num_layers)}
        return sum((self._kept(layer, num_layers) for layer in own), Fraction(0)) / num_layers

    def reads(self, num_layers: int) -> tuple[tuple[float, float], ...]:
        """(Share of the layers, share of a layer's KV that their attention reads): each reads what its owner kept.

        KV that two layers share is read twice: between them the owner's weights, and the KV of all other sequences,
        go through the L2.
        """
        owners = self.num_owners(num_layers)
        read = Counter(
            self._kept(_owner(layer, owners, num_layers), num_layers) for layer in range(num_layers)
        )
        return tuple((count / num_layers, float(share)) for share, count in read.items())

    def older_bytes(self, head_dim: int) -> Fraction:
        """Bytes of an older token that is kept, of those of a recent one.

        fp8 has one scale a layer, which is nothing; int8 one 32-bit scale for each token and head, of K and of V.
        """
        value = {
            "bfloat16": Fraction(_RECENT_BYTES),
            "fp8": Fraction(1),
            "int8": 1 + Fraction(_SCALE_BYTES, head_dim),
        }
        return value[self.older_dtype] / _RECENT_BYTES

    def footprint(self, block_size: int, head_dim: int) -> Footprint | None:
        """Granules of a sequence; None where older tokens are kept as they are."""
        if self.recent_tokens is None:
            return None
        return Footprint.of(block_size, self.recent_tokens, self.older_kept, self.older_bytes(head_dim))

    def _kept(self, layer: int, num_layers: int) -> Fraction:
        return Fraction(self.layer_keep[3 * layer // num_layers]).limit_denominator(1_000_000)


def _owner(layer: int, owners: int, num_layers: int) -> int:
    """Return the layer whose KV this one reads: itself or the nearest owner below; layer 0 is one."""
    return -(-(layer * owners // num_layers) * num_layers // owners)
