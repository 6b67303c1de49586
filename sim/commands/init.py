"""`servetwin init` and `servetwin schema`: a scenario to start from, and what one may contain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import Parameter

from sim.commands.options import put_json, say
from sim.errors import ConfigError
from sim.profile import load_profile
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.scenario.vllm_flags import VllmCommand, engine_defaults, parse_vllm_command
from sim.scenario.writing import STARTING_POINT, scenario_text
from sim.service import build_service


def init(
    file: Path | None = None,
    *,
    from_vllm: str | None = None,
    gpu: str | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a commented scenario.

    Parameters
    ----------
    file
        Where to write it; standard output by default.
    from_vllm
        A `vllm serve ...` command line, in quotes, to take model and engine options from.
    gpu
        Profile of the GPU (`servetwin profile list`).
    force
        Overwrite an existing file.

    """
    command = parse_vllm_command(from_vllm) if from_vllm is not None else VllmCommand()
    if gpu is not None:
        command.fields["hardware.gpu"] = gpu
    if from_vllm is not None:
        device = load_profile(command.fields.get("hardware.gpu", STARTING_POINT["hardware.gpu"]))
        defaults = engine_defaults(device.device.memory_bytes, device.name)
        command.fields = {**defaults, **command.fields}
    text = scenario_text(command.fields, command.remarks)
    build_service(load_scenario(yaml.safe_load(text)))  # what it writes can be run, or is refused here
    for remark in command.remarks:
        say(f"note: {remark}")
    if file is None:
        sys.stdout.write(text)
        return
    if file.exists() and not force:
        raise ConfigError(f"{file}: exists; give another name or --force")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror})") from None
    say(f"wrote {file}")


def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    put_json(Scenario.model_json_schema())
