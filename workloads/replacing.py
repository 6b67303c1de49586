"""Whole files or none: written beside the target, then renamed onto it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads.errors import InputError


@contextmanager
def replacing(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a path to write to; it becomes `target` when the block ends well, and vanishes when it does not."""
    if target.is_dir():
        raise InputError(f"{target}: is a directory; give a file name")
    if target.exists() and not force:
        raise InputError(f"{target}: exists already; --force replaces it")
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no directory {target.parent}; make it first")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o666 & ~_umask())
        draft.replace(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
