"""Where the measured data are that some tests compare with; they are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SERVETWIN_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared_data(*parts: str) -> Path:
    """A file or folder of the measured data; skips the test where it is not there."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {'/'.join(parts)} in {ROOT}; set SERVETWIN_DATA to the folder of measured data")
    return path
