"""The arms of a comparison: from `--vary PATH=A,B` to named scenarios that differ in nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from workloads.yaml_values import parse_yaml

_FIXED = {
    "seed": "replications vary it by themselves (--replications)",
    "workload": "other requests cannot be paired with those of the first arm; compare runs at each load, or use `plan`",
    "slo": "that changes what counts as good, not the service; compare under one slo",
    "simulation": "that never changes what comes out",
    "cluster.price_per_gpu_hour": "the price changes no metric",
}
_SAME_TURNS = ("workload.sessions.context_policy",)
"""Fields of the workload that leave every request its place: prompts differ, and who asks what when does not."""

_OPENING, _CLOSING = "{[", "}]"


@dataclass(frozen=True)
class Vary:
    """One `--vary`: a field, and the values it takes, as text and as read."""

    path: str
    texts: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ArmScenario:
    """One arm: its name, what it sets, and the scenario that follows."""

    name: str
    directory: str  # the name as a file name
    set: Mapping[str, Any]
    scenario: Scenario


def parse_vary(option: str) -> Vary:
    """Read `PATH=A,B`; values are YAML, and commas inside braces, brackets or quotes do not split."""
    path, equals, text = option.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(
            f"--vary {option!r}: write PATH=A,B, such as engine.max_num_batched_tokens=2048,8192"
        )
    for fixed, reason in _FIXED.items():
        if (path == fixed or path.startswith(f"{fixed}.")) and not path.startswith(_SAME_TURNS):
            raise ConfigError(f"--vary {path}: cannot be varied: {reason}")
    texts = _split(text)
    if len(texts) < 2:
        raise ConfigError(
            f"--vary {option}: one value; give at least two with a comma between (for one: --set)"
        )
    values = []
    for value in texts:
        if not value:
            raise ConfigError(f"--vary {option}: an empty value; write null for none")
        values.append(parse_yaml(value, f"--vary {option}"))
    return Vary(path, tuple(texts), tuple(values))


def build_arms(
    source: str | Path | Mapping[str, Any],
    vary: Sequence[str],
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> tuple[ArmScenario, ...]:
    """All combinations of the values, in order; the first is the one that the others are compared with."""
    if not vary:
        raise ConfigError(
            "--vary: missing; name what differs, such as --vary policies.batcher=chunked,dynamic_chunked"
        )
    load_scenario(source, overrides, seed=seed)  # so that its own mistakes are not blamed on --vary
    varied = [parse_vary(option) for option in vary]
    paths = [each.path for each in varied]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"--vary {path}: given twice; list all values in one")
    arms: list[ArmScenario] = []
    for chosen in itertools.product(*(range(len(each.texts)) for each in varied)):
        settings = [f"{each.path}={each.texts[at]}" for each, at in zip(varied, chosen, strict=True)]
        try:
            scenario = load_scenario(source, [*overrides, *settings], seed=seed)
        except ConfigError as error:
            raise ConfigError(f"--vary {', '.join(settings)}: {error}") from None
        values = {each.path: each.values[at] for each, at in zip(varied, chosen, strict=True)}
        name = ", ".join(_label(path, value, paths) for path, value in values.items())
        for other in arms:
            if other.scenario == scenario:
                raise ConfigError(
                    f"--vary: {other.name} and {name} are the same scenario; give each value once"
                )
        directory = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.") or "arm"
        if any(other.directory.lower() == directory.lower() for other in arms):
            directory += f"-{len(arms)}"
        arms.append(ArmScenario(name, directory, values, scenario))
    return tuple(arms)


def _split(text: str) -> list[str]:
    """Split at commas that stand outside braces, brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and depth == 0 and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in _OPENING) - (letter in _CLOSING)
        parts[-1] += letter
    return [part.strip() for part in parts]


def _label(path: str, value: Any, paths: Sequence[str]) -> str:  # noqa: ANN401  whatever YAML holds
    """Name a value briefly: policies by their own name, other fields as field=value."""
    leaf = path.rpartition(".")[2]
    if isinstance(value, Mapping):
        options = ", ".join(f"{key}={_plain(item)}" for key, item in value.items() if key != "name")
        name = value.get("name", leaf)
        return f"{name}({options})" if options else str(name)
    if path.startswith("policies.") and path.count(".") == 1:
        return _plain(value)
    unique = sum(other.rpartition(".")[2] == leaf for other in paths) == 1
    return f"{leaf if unique else path}={_plain(value)}"


def _plain(value: Any) -> str:  # noqa: ANN401  whatever YAML holds
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
