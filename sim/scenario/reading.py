"""From a file and overrides to a checked scenario; every mistake is one line that names the field."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sim.errors import ConfigError
from sim.scenario.sections import PoliciesConfig, Scenario
from workloads.yaml_values import parse_yaml

Raw = dict[str, Any]


def load_scenario(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, seed: int | None = None
) -> Scenario:
    """Read a scenario from a YAML file, or take it as a mapping, and apply overrides `a.b=value` in order.

    Relative paths inside the scenario are taken from the folder of the file, then from the current one.
    """
    if isinstance(source, Mapping):
        raw, where, folder = _copy(source), "scenario", Path()
    else:
        where, folder = str(source), Path(source).parent
        raw = _read(Path(source))
    for override in overrides:
        apply_override(raw, override)
    if seed is not None:
        raw["seed"] = seed
    _find_paths(raw, folder)
    try:
        return Scenario.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{where}: {one_line(error, Scenario, raw)}") from None


def read_mapping(path: Path) -> Raw:
    """A scenario file as it stands, unchecked; the files that it names as they are seen from here."""
    raw = _read(path)
    _find_paths(raw, path.parent)
    return raw


def apply_override(raw: Raw, override: str) -> None:
    """Set `a.b.c=value` in a nested mapping; the value is read as YAML."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r}: write PATH=VALUE, such as engine.max_num_seqs=64")
    value = parse_yaml(text, f"--set {override}")
    node = raw
    for depth, key in enumerate(keys[:-1]):
        child = node.get(key)
        if keys[0] == "policies" and depth == 1 and not isinstance(child, dict):
            child = node[key] = {"name": child or _default_policy(key)}
        elif child is None:
            child = node[key] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"--set {override!r}: {'.'.join(keys[: depth + 1])} is {child!r} and has no fields inside"
            )
        node = child
    node[keys[-1]] = value


def _default_policy(kind: str) -> str | None:
    info = PoliciesConfig.model_fields.get(kind)
    return getattr(info.default, "name", None) if info else None


def one_line(error: ValidationError, root: type[BaseModel], raw: Raw) -> str:  # noqa: PLR0911  one for each kind
    """Say the first problem of a validation in one line: the field, what is wrong, what would be right."""
    problem = error.errors(include_url=False)[0]
    path = [str(part) for part in problem["loc"]]
    kind = problem["type"]
    field = ".".join(_keys_of_file(problem["loc"], raw))
    if kind == "extra_forbidden":
        known = _fields_at(root, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{field}: no such field; {hint}"
    if kind == "missing":
        name = path[-1]  # a policy given by its name alone has no keys in the file
        return f"{field if field.split('.')[-1] == name else f'{field}.{name}'}: is missing"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        known = _fields_at(root, path)
        if "name" in known and not isinstance(problem["input"], dict):
            return f"{field}: takes a name, or {{name: ..., and its options}}, not {reprlib.repr(problem['input'])}"
        return f"{field}: takes fields ({', '.join(known)}), not {reprlib.repr(problem['input'])}"
    if kind == "union_tag_not_found":
        return f"{field}: needs a name beside its options, such as {{name: ...}}"
    if kind == "union_tag_invalid":
        context = problem["ctx"]
        near = difflib.get_close_matches(
            context["tag"], context["expected_tags"].replace("'", "").split(", "), n=1
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{field}: unknown name {context['tag']!r}; one of {context['expected_tags']}{hint}"
    if kind == "tuple_type":
        return f"{field}: takes a list, [one, another], not {reprlib.repr(problem['input'])}"
    message = message[0].lower() + message[1:]
    if kind == "value_error" or isinstance(problem["input"], dict):
        return f"{field}: {message}" if field else message
    return f"{field}: {message}, not {reprlib.repr(problem['input'])}"


def _read(path: Path) -> Raw:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `servetwin init` writes a scenario to start from") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; give the scenario file inside it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text ({error.__class__.__name__})") from None
    raw = parse_yaml(text, str(path), lines=True)
    if isinstance(raw, dict) and "servetwin" in raw and isinstance(raw.get("scenario"), dict):
        raw = raw["scenario"]  # the lock file of a run
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a scenario is a mapping with model, hardware and workload")
    return raw


def _copy(value: Any) -> Any:  # noqa: ANN401  whatever YAML holds
    if isinstance(value, Mapping):
        return {str(key): _copy(item) for key, item in value.items()}
    return value


def _find_paths(raw: Raw, folder: Path) -> None:
    """Make file names relative to the scenario's folder, where such a file is there."""
    access = raw.get("kv_access")
    places = (
        (raw, "model"),
        (raw.get("hardware"), "profile"),
        (raw.get("workload"), "trace"),
        (access.get("pattern") if isinstance(access, dict) else None, "path"),
    )
    for section, key in places:
        if not isinstance(section, dict):
            continue
        value = section.get(key)
        if isinstance(value, str) and not Path(value).is_absolute() and (folder / value).is_file():
            section[key] = str(folder / value)


def _fields_at(root: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Names of the fields that a mapping at `path` may have."""
    models: list[type[BaseModel]] = [root]
    for part in path:
        below: list[type[BaseModel]] = []
        for model in models:
            if part in model.model_fields:
                below += _models_in(model.model_fields[part].annotation)
        tagged = [m for m in models if "name" in m.model_fields and m.model_fields["name"].default == part]
        models = below or tagged or models
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401  a type, or a form of types
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _keys_of_file(path: Sequence[str | int], raw: Any) -> list[str]:  # noqa: ANN401  whatever YAML holds
    """Drop what pydantic puts into a location beyond the keys of the file: the tag of a union's member."""
    kept: list[str] = []
    node = raw
    for at, part in enumerate(path):
        if isinstance(node, Mapping):
            if part in node:
                node = node[part]
            elif at < len(path) - 1:
                continue
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        kept.append(str(part))
    return kept
