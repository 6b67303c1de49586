"""Which kind of measured runs a file or folder holds, by its content, and the one door to all of their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers import (
    aggregates,
    aiperf,
    cpu_engine,
    guidellm,
    inference_perf,
    llmservingsim,
    open_loop,
    per_request,
    silicon,
    vllm_bench,
)
from workloads.errors import ConfigError, InputError

ScenarioRaw = Mapping[str, Any]

_SUFFIXES: Final = (".json", ".jsonl", ".csv")


class DataSet(Protocol):
    """A module that reads runs of which it knows what they ran on."""

    def recognises(self, path: Path) -> bool:
        """Tell whether a file or folder is of this kind; never raises."""

    def read(self, path: Path) -> list[MeasuredRun]:
        """Read its runs."""


class Client(Protocol):
    """A module that reads what a client wrote, which says nothing of the server."""

    def recognises(self, path: Path) -> bool:
        """Tell whether a file is of this kind; never raises."""

    def read(self, path: Path, scenario_raw: ScenarioRaw) -> list[MeasuredRun]:
        """Read its runs, measured on what `scenario_raw` says."""


@dataclass(frozen=True)
class Format:
    """A kind of file or folder with measured runs, as messages call it."""

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, ScenarioRaw | None], list[MeasuredRun]]
    from_client: bool = False


def _data_set(name: str, reader: DataSet) -> Format:
    return Format(name, reader.recognises, lambda path, _: reader.read(path))


def _client(reader: Client, name: str) -> Format:
    def read(path: Path, scenario_raw: ScenarioRaw | None) -> list[MeasuredRun]:
        if scenario_raw is None or "model" not in scenario_raw:
            raise ConfigError(
                f"{path}: results of {name}, which do not say what they were measured on; "
                "give a scenario with model, hardware and engine"
            )
        return reader.read(path, scenario_raw)

    return Format(f"results of {name}", reader.recognises, read, from_client=True)


def _cpu_engine(path: Path, scenario_raw: ScenarioRaw | None) -> list[MeasuredRun]:
    """Read runs of an engine on a CPU, whose profile is fitted to logs of its own."""
    hardware = (scenario_raw or {}).get("hardware")
    profile = hardware.get("profile") if isinstance(hardware, Mapping) else None
    if profile is None:
        raise InputError(
            f"{path}: runs of an engine on a CPU; give a scenario whose hardware.profile is fitted to its calibration "
            "runs (servetwin profile fit --engine-log)"
        )
    return cpu_engine.read(path, Path(profile))


FORMATS: Final[tuple[Format, ...]] = (
    _data_set("closed-loop tables (silicon_e2e)", silicon),
    _data_set("recorded runs of LLMServingSim", llmservingsim),
    _data_set("open-loop runs of inference-perf with their requests (vllm_h100_perrequest)", per_request),
    _data_set("open-loop stages of inference-perf (e2e_openloop)", open_loop),
    _data_set("aggregates of open-loop runs (vllm_multi_gpu_aggregates)", aggregates),
    Format("step-logged runs of a CPU engine (vllm_cpu_engine)", cpu_engine.recognises, _cpu_engine),
    _client(vllm_bench, vllm_bench.CLIENT),
    _client(guidellm, guidellm.CLIENT),
    _client(aiperf, aiperf.CLIENT),
    _client(inference_perf, inference_perf.CLIENT),
)


def read_runs(
    path: Path,
    scenario_raw: ScenarioRaw | None = None,
    *,
    on_refused: Callable[[InputError], None] | None = None,
) -> list[MeasuredRun]:
    """Read all measured runs of a file, or of every known file and folder in a folder.

    A client's results need `scenario_raw`, what they were measured on; their runs are named by their files. Results in
    a folder that cannot be trusted are an error, unless `on_refused` takes them and the others are read without them.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    found = list(_found(path))
    if not found:
        known = "; ".join(one.name for one in FORMATS)
        raise InputError(f"{path}: no measured runs of a known kind; known are {known}")
    runs: list[MeasuredRun] = []
    refused: list[InputError] = []
    for where, kind in found:
        try:
            runs += kind.read(where, scenario_raw)
        except InputError as error:
            of_file = kind.from_client and scenario_raw is not None and not isinstance(error, ConfigError)
            if on_refused is None or where == path or not of_file:
                raise
            refused.append(error)
            on_refused(error)
    if not runs:
        raise InputError(f"{path}: none of its {len(found)} results can be used; the first: {refused[0]}")
    return runs


def _found(path: Path) -> Iterator[tuple[Path, Format]]:
    """Yield what is known in a file or folder; a folder that is known as a whole is not searched."""
    kind = next((one for one in FORMATS if one.recognises(path)), None)
    if kind is not None:
        yield path, kind
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if child.is_dir() or child.suffix in _SUFFIXES:
                yield from _found(child)
