"""What the commands of this package share: kinds of options, checks of them, words on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from cyclopts import Parameter

from workloads.errors import ConfigError

if TYPE_CHECKING:
    from hwbackend.device import Device
    from sim.model import ModelSpec

REPEATED: Final = Parameter(negative="", consume_multiple=False)
FLAG: Final = Parameter(negative="")
SMALL_MODEL: Final = str(files("calibration") / "small_llama" / "config.json")
"""A Llama of 20 million parameters: what a CPU serves at a few milliseconds a step."""
_LONGEST_S: Final = 86_400


def check_budget(budget_s: float) -> None:
    """Refuse a budget that is none, or of more than a day."""
    if not 0 < budget_s <= _LONGEST_S:
        raise ConfigError(f"--budget {budget_s:g}: seconds, above 0 and at most {_LONGEST_S}")


def load_models(names: Sequence[str], device: Device) -> list[ModelSpec]:
    """Load the models named by --model; where none is, one that a device of this kind usually serves."""
    from sim.model import load_model  # noqa: PLC0415  not for --help

    default = "llama-3.1-8b" if device.kind == "cuda" else SMALL_MODEL
    return [load_model(name) for name in (names or (default,))]


def say(message: str) -> None:
    """Tell the user something that is not data."""
    print(message, file=sys.stderr)
