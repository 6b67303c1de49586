import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def data() -> Path:
    """The measured traces and result files, which are not part of the repository."""
    root = Path(os.environ.get("SERVETWIN_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (root / "traces").is_dir():
        pytest.skip(f"no data in {root}; set SERVETWIN_DATA to the folder that has traces/")
    return root


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240611)


@pytest.fixture
def put(tmp_path):
    """Write a small file and return its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
