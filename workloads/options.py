"""Command-line options -> the `workload:` section of a scenario. Values are YAML, as in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.errors import ConfigError
from workloads.yaml_values import parse_yaml


def workload_section(
    file: Path | None, options: Mapping[str, str | None], sets: Sequence[str]
) -> dict[str, Any]:
    """Return the section of a YAML file, changed by named options and by FIELD=VALUE pairs, in that order."""
    section = {} if file is None else _section_of(file)
    for name, text in options.items():
        if text is not None:
            section[name] = _value(f"--{name.replace('_', '-')}", text)
    for pair in sets:
        field, equals, text = pair.partition("=")
        if not equals or not field:
            raise ConfigError(f"--set: {pair!r} is not FIELD=VALUE, as request_rate=8")
        _put(section, field.removeprefix("workload.").split("."), _value(f"--set {field}", text))
    return section


def _section_of(file: Path) -> dict[str, Any]:
    try:
        document = parse_yaml(file.read_text(encoding="utf-8"), str(file), lines=True)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not YAML: {' '.join(str(error).split())[:120]}") from None
    section = document.get("workload", document) if isinstance(document, dict) else document
    if not isinstance(section, dict):
        raise ConfigError(f"{file}: no workload section; a mapping with trace or input_tokens is expected")
    return dict(section)


def _value(where: str, text: str) -> Any:  # noqa: ANN401 - YAML has no type
    try:
        return parse_yaml(text, where)
    except ConfigError:
        raise ConfigError(f"{where}: {text!r} is not YAML; quote it, as '{{uniform: [1, 9]}}'") from None


def _put(section: dict[str, Any], path: list[str], value: Any) -> None:  # noqa: ANN401 - as above
    *parents, last = path
    for name in parents:
        child = section.setdefault(name, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set: {name} is {child!r}, which has no field {last}")
        child = section[name] = dict(child)
        section = child
    section[last] = value
