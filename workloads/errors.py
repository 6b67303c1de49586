"""What a user can get wrong, as exceptions: one line each, naming the place and the remedy.

InputError            exit 2: what, where, what would be right
├── TraceFormatError  a trace file: path, line
└── ConfigError       a scenario, an override, a model or a profile: field
"""

from __future__ import annotations

from pathlib import Path


class InputError(Exception):
    """Bad input. `str(error)` is the one line that the user sees."""


class ConfigError(InputError):
    """A field of a scenario, model or profile is not usable."""


class TraceFormatError(InputError):
    """A row of a trace is not usable. `line` counts from 1; None where the whole file is meant."""

    def __init__(self, path: str | Path, line: int | None, message: str) -> None:
        super().__init__(path, line, message)  # rebuilt from args when SimPy copies it
        self.path = Path(path)
        self.line = line
        self.message = message

    def __str__(self) -> str:
        where = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.message}"
