"""The confirmations that come with the package: one policy question each, sized for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from hwbackend.device import Kind

_FOLDER: Final = files("calibration.confirmation") / "scenarios"


@dataclass(frozen=True, slots=True)
class ShippedConfirmation:
    """A question: what varies, and the metric that decides."""

    name: str
    title: str
    vary: dict[Kind, str]
    metric: str

    def scenario(self, kind: Kind) -> Path:
        """The scenario file for a class of devices."""
        return Path(str(_FOLDER / f"{'gpu_' if kind == 'cuda' else ''}{self.name}.yaml"))


_ONE_CHUNK: Final = (
    "policies.batcher={{name: chunked, chunk_tokens: {0}}},{{name: dynamic_chunked, target_tpot_ms: {1}}}"
)
_PREFETCHERS: Final = "policies.prefetch=none,stride,attention_weighted,scheduled"
_ORDERS: Final = "policies.batcher=chunked,prefix_first"

SHIPPED: Final = {
    one.name: one
    for one in (
        ShippedConfirmation(
            "chunking",
            "static against dynamic chunking",
            {"cpu": _ONE_CHUNK.format(32, 25), "cuda": _ONE_CHUNK.format(128, 25)},
            "mean_e2el_ms",
        ),
        ShippedConfirmation(
            "cache_aware",
            "cache-aware batching off and on",
            {"cpu": _ORDERS, "cuda": _ORDERS},
            "mean_e2el_ms",
        ),
        ShippedConfirmation(
            "prefetch",
            "prefetchers with KV in host memory",
            {"cpu": _PREFETCHERS, "cuda": _PREFETCHERS},
            "mean_e2el_ms",
        ),
    )
}
