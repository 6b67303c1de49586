"""Threads of the BLAS under NumPy: OpenBLAS lets a process read and set them while it runs."""

from __future__ import annotations

import ctypes
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

_STEMS: Final = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""Names of its functions in NumPy's wheels, and in the distributions'."""
_WISHES: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def num_threads() -> int | None:
    """Threads of a product now; None where the library does not tell."""
    function = _function("get_num_threads")
    return None if function is None else int(function())


def set_num_threads(count: int) -> int | None:
    """Set them, unless the environment has a wish; returns what it was where that changed."""
    function, before = _function("set_num_threads"), num_threads()
    if function is None or before in (None, count) or any(os.environ.get(name) for name in _WISHES):
        return None
    function(ctypes.c_int(count))
    return before


def _function(name: str) -> Any:  # noqa: ANN401  a C function
    library = _library()
    found = (getattr(library, stem.format(name), None) for stem in _STEMS)
    return next((function for function in found if function is not None), None)


@lru_cache(maxsize=1)
def _library() -> Any:  # noqa: ANN401
    """The OpenBLAS that is loaded: NumPy's own comes first."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    paths = dict.fromkeys(re.findall(r"\S*openblas\S*\.so\S*", maps))
    ranked = sorted(paths, key=lambda path: "numpy" not in path)
    return ctypes.CDLL(ranked[0]) if ranked else None
