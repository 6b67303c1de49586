"""Reading a JSON file as the document that a page needs; one ConfigError says where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workloads.errors import ConfigError

Document = TypeVar("Document", bound=BaseModel)


def read_document(path: Path, model: type[Document], command: str) -> Document:
    """Read a JSON file that `command` writes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); `{command}` writes it") from None
    return validated(path, lambda: model.model_validate_json(content))


def validated(path: Path, validate: Callable[[], Document]) -> Document:
    """Validate what a file holds; its first problem is raised with file and field."""
    try:
        return validate()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "document"
        raise ConfigError(f"{path}: {field}: {first['msg']}") from None
