"""A collection: the kernel tables of one system, from a folder of ours or as aiconfigurator-core installs them."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.devices import profile_name, read_device
from calibration.measurements import DEVICE_FILE, read_measured_device
from calibration.tables import KEYS, Column, Table, TableError, clean, read_columns, read_table
from sim.profile import Device

NEEDED = ("gemm", "attention_prefill", "attention_decode")
PACKAGE = "aiconfigurator_core"
LAYERS = "*/tp*/dense.parquet"
"""Where the folder of a GPU has tables of whole layers."""


@dataclass(frozen=True)
class Collection:
    """Tables of one system by name, with the device and the engine whose kernels they time."""

    name: str
    engine: str
    device: Device
    tables: dict[str, Table]
    measured: bool = False
    """By a calibration of ours: few shapes, those of some models."""
    layers: bool = False
    """Whole layers inside an engine: few shapes at many sizes (`calibration/layer_tables.py`)."""


@dataclass(frozen=True)
class Raw:
    """Where the package keeps a table, and its columns for ours."""

    path: str
    columns: dict[str, str]
    convert: Callable[[dict[str, Column]], dict[str, Column]] = lambda columns: columns


def _kv_len(columns: dict[str, Column]) -> dict[str, Column]:
    """`step` counts the tokens already cached; the new one is read too."""
    return columns | {"kv_len": columns["kv_len"] + 1}


def _to_bytes(columns: dict[str, Column]) -> dict[str, Column]:
    """Message sizes of the package count elements: 2 bytes each, 1 for int8."""
    width = np.where(columns["dtype"] == "int8", 1, 2)
    return columns | {"message_bytes": columns["message_bytes"] * width}


_HEADS = {
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "window_size",
}
_ATTENTION = {"kv_dtype": "kv_cache_dtype", "batch": "batch_size"} | _HEADS
_SPLIT = {"topk": "topk", "experts": "num_experts", "moe_tp": "moe_tp_size", "moe_ep": "moe_ep_size"}
_LAYER = {"dtype": "moe_dtype", "tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size"}
_SIZE = {"gpus": "num_gpus", "message_bytes": "message_size"}
RAW = {
    "gemm": Raw("gemm/{backend}/*/gemm_perf.parquet", {"dtype": "gemm_dtype", "m": "m", "n": "n", "k": "k"}),
    "attention_prefill": Raw(
        "attention/{backend}/*/context_attention_perf.parquet", _ATTENTION | {"isl": "isl", "past_kv": "step"}
    ),
    "attention_decode": Raw(
        "attention/{backend}/*/generation_attention_perf.parquet", _ATTENTION | {"kv_len": "step"}, _kv_len
    ),
    "moe": Raw("moe/{backend}/*/moe_perf.parquet", _LAYER | _SPLIT | {"distribution": "distribution"}),
    "allreduce": Raw(
        "comm/{backend}/*/custom_allreduce_perf.parquet",
        _SIZE | {"impl": "backend", "dtype": "allreduce_dtype"},
        _to_bytes,
    ),
    "nccl": Raw("comm/nccl/*/nccl_perf.parquet", _SIZE | {"op": "op_name", "dtype": "nccl_dtype"}, _to_bytes),
}


def read_collection(directory: Path, system: str | None = None, version: str | None = None) -> Collection:
    """Read any layout; `system` picks one where the folder holds several."""
    if not directory.is_dir():
        raise TableError(f"{directory}: no such directory")
    if any(directory.glob(LAYERS)):
        from calibration.layer_tables import read_layers  # noqa: PLC0415 - which makes a Collection

        return read_layers(directory)
    for root in (directory, directory / "systems", directory / PACKAGE / "systems"):
        if (root / "data").is_dir():
            return _read_package(root, system, version)
    folder = directory / system if system and (directory / system).is_dir() else directory
    if not (folder / "gemm.parquet").is_file():
        known = systems_in(directory)
        hint = f"; --system {'|'.join(known)}" if known else "; gemm.parquet and system.yaml are needed"
        raise TableError(f"{folder}: no kernel tables{hint}")
    return _read_folder(folder, system or folder.resolve().name)


def systems_in(directory: Path) -> list[str]:
    """Name the systems of a folder that holds several of them; none where it is one system itself."""
    return sorted(path.parent.name for path in directory.glob("*/gemm.parquet"))


def package_root() -> Path:
    """Find the tables of the installed aiconfigurator-core without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TableError(
            "aiconfigurator-core is not installed; pip install 'servetwin[silicon]', or give --package DIR"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems"


def _read_folder(folder: Path, system: str) -> Collection:
    tables = {}
    for name in KEYS:
        path = folder / f"{name}.parquet"
        if path.is_file():
            tables[name] = read_table(path, name)
        elif name in NEEDED:
            raise TableError(f"{path}: no such file")
    if (folder / DEVICE_FILE).is_file():
        name, engine, device = read_measured_device(folder / DEVICE_FILE)
        return Collection(name, engine, device, tables, measured=True)
    device = read_device(folder / "system.yaml", system)
    return Collection(
        profile_name(system), _engine_of(folder.parent / "MANIFEST.csv", system), device, tables
    )


def _engine_of(manifest: Path, system: str) -> str:
    if manifest.is_file():
        with manifest.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row.get("system") == system and row.get("table") == "gemm":
                    found = re.search(r"/vllm/([^/]+)/", row.get("source", ""))
                    if found:
                        return f"vLLM {found[1]}"
    return "vLLM, version not stated by the tables"


def _read_package(root: Path, system: str | None, version: str | None) -> Collection:
    known = sorted(path.parents[3].name for path in root.glob("data/*/gemm/vllm/*/gemm_perf.parquet"))
    if system not in known:
        raise TableError(f"{root}: --system must be one of {', '.join(dict.fromkeys(known))}, not {system}")
    tables: dict[str, Table] = {}
    used = ""
    for name, raw in RAW.items():
        path = _newest(root / "data" / system, raw.path.format(backend="vllm"), version)
        if path is None and name in NEEDED:
            raise TableError(f"{root}: {system} has no {name} table of vLLM {version or ''}".rstrip())
        if path is not None:
            tables[name] = _read_raw(path, name, raw)
            used = path.parent.name if name == "gemm" else used
    device = read_device(root / f"{system}.yaml", system)
    return Collection(profile_name(system), f"vLLM {used}", device, tables)


def _newest(folder: Path, pattern: str, version: str | None) -> Path | None:
    """Take the asked version where a table has it, else its newest."""

    def order(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.parent.name)]

    found = sorted(folder.glob(pattern), key=order)
    asked = [path for path in found if path.parent.name == version]
    if asked:
        return asked[0]
    return found[-1] if found else None


def _read_raw(path: Path, name: str, raw: Raw) -> Table:
    source = read_columns(path, [*dict.fromkeys(raw.columns.values()), "latency"])
    columns = raw.convert({ours: source[theirs] for ours, theirs in raw.columns.items()})
    time_s: NDArray[np.float64] = source["latency"].astype(np.float64) * 1e-3
    return clean(path, name, {key: columns[key] for key in KEYS[name]}, time_s)
