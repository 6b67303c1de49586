"""What can go wrong in the simulator beyond bad input.

InputError (workloads.errors)   exit 2
└── CapacityError               a model, batch or request that the device cannot hold
InvariantError                  exit 3: a law of the engine was broken, with the state that broke it
"""

from __future__ import annotations

from workloads.errors import ConfigError, InputError, TraceFormatError

__all__ = ["CapacityError", "ConfigError", "InputError", "InvariantError", "TraceFormatError"]


class CapacityError(InputError):
    """Something does not fit: the message names what is needed, what there is, and a way out."""


class InvariantError(Exception):
    """A fault of ours."""
