"""YAML as people mean it: numbers as in YAML 1.2 (1e9 is one, 010 is ten, 1:30 is text), and no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

from workloads.errors import ConfigError

_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(
    r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(~|null|Null|NULL|)$")


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  as in the base class


for _tag, _pattern, _first in (
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str | int | float | bool) and key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key!r} stands there twice", key_node.start_mark
            )
        if isinstance(key, str | int | float | bool):
            seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str, where: str, *, lines: bool = False) -> Any:  # noqa: ANN401  whatever YAML holds
    """Read one document; raises ConfigError in one line that begins with `where` (and the line, for a file)."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark and lines else ""
        raise ConfigError(f"{where}{line}: not YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply for a scenario") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
