"""Eviction policies as a user writes them: a name, or a mapping with a name and options."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sim.kv.eviction import AnyEviction
from workloads.errors import ConfigError
from workloads.yaml_values import parse_yaml

TAIL_FIRST = "_tail_first"
"""After a policy's name: prompts are released from their tail to their head."""

_ADAPTER: TypeAdapter[AnyEviction] = TypeAdapter(AnyEviction)


@dataclass(frozen=True)
class NamedEviction:
    """A policy, and the order in which prompts are released."""

    policy: AnyEviction
    tail_first: bool = False

    @property
    def name(self) -> str:
        return self.policy.name + (TAIL_FIRST if self.tail_first else "")

    @property
    def options(self) -> dict[str, Any]:
        return self.policy.model_dump(mode="json", exclude={"name"})

    def __str__(self) -> str:
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


def parse_eviction(text: str) -> NamedEviction:
    """Read `lru`, `lru_tail_first` or `{name: ttl, ttl_s: 60}`; raises ConfigError with one line."""
    value = parse_yaml(text, f"eviction {text!r}")
    raw = value if isinstance(value, dict) else {"name": value}
    name = raw.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"eviction: {text!r} names no policy; one of {', '.join(names())}")
    plain = name.removesuffix(TAIL_FIRST)
    try:
        policy = _ADAPTER.validate_python({**raw, "name": plain})
    except ValidationError as error:
        raise ConfigError(f"eviction: {_one_line(error, name, plain)}") from None
    return NamedEviction(policy, tail_first=plain != name)


def names() -> list[str]:
    """All policies by name."""
    return list(_fields())


def _fields() -> dict[str, list[str]]:
    """The options of every policy."""
    definitions = _ADAPTER.json_schema()["$defs"].values()
    return {one["properties"]["name"]["const"]: sorted(one["properties"]) for one in definitions}


def _one_line(error: ValidationError, name: str, plain: str) -> str:
    problem = error.errors(include_url=False)[0]
    fields = _fields()
    if problem["type"] == "union_tag_invalid":
        near = difflib.get_close_matches(name, [*fields, *(one + TAIL_FIRST for one in fields)], 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(fields)}"
        return f"unknown policy {name!r}; {hint}"
    field = str(problem["loc"][-1])
    if problem["type"] == "extra_forbidden":
        known = [one for one in fields[plain] if one != "name"]
        near = difflib.get_close_matches(field, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'no options'}"
        return f"{plain} has no option {field!r}; {hint}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{plain}: {field}: {message}, not {problem['input']!r}"
