"""system.yaml of a kernel collection -> Device. What it lacks (L2 size, links) stands here with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from calibration.tables import TableError
from sim.profile import Device

L2_MIB = {"h100_sxm": 50, "h200_sxm": 50, "b200_sxm": 126, "a100_sxm": 40, "l40s": 96, "rtx_pro_6000": 128}
"""MiB, from the vendors' data sheets (as in the collection's hardware summary, unverified)."""

MIB = 1024 * 1024
DRIVER_MEMORY = {
    "h100_sxm": (81559 * MIB, "nvidia-smi of an H100 80GB HBM3: 81,559 MiB"),
    "h200_sxm": (143771 * MIB, "nvidia-smi of an H200: 143,771 MiB"),
    "a100_sxm": (81920 * MIB, "nvidia-smi of an A100-SXM4-80GB: 81,920 MiB"),
    "b200_sxm": (183359 * MIB, "nvidia-smi of a B200: 183,359 MiB"),
    "l40s": (46068 * MIB, "driver's report, 46,068 MiB, as system.yaml says"),
    "rtx_pro_6000": (97887 * MIB, "nvidia-smi, 97,887 MiB, as system.yaml says"),
}
NO_NVLINK = {"l40s", "rtx_pro_6000"}


def profile_name(system: str) -> str:
    return system.removesuffix("_server")


def read_device(path: Path, system: str) -> Device:
    """Read the vendor figures of one system."""
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        gpu, node = content["gpu"], content["node"]
        return _device(gpu, node, profile_name(system), path.name)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise TableError(f"{path}: not a system description, {type(error).__name__}: {error}") from error


def _device(gpu: dict[str, Any], node: dict[str, Any], name: str, source: str) -> Device:
    memory, memory_source = DRIVER_MEMORY.get(name, (int(gpu["mem_capacity"]), f"mem_capacity of {source}"))
    sm = int(gpu["sm_version"])
    flops = {"bfloat16": float(gpu["bfloat16_tc_flops"])}
    for key, dtype in (("fp8_tc_flops", "fp8"), ("fp4_tc_flops", "nvfp4")):
        if key in gpu:
            flops[dtype] = float(gpu[key])
    return Device(
        memory_bytes=memory,
        memory_source=memory_source,
        hbm_bytes_per_s=float(gpu["mem_bw"]),
        flops_per_s=flops,
        l2_bytes=L2_MIB.get(name, 50) * MIB,
        pcie_bytes_per_s=float(node["pcie_bw"]),
        nvlink_bytes_per_s=None if name in NO_NVLINK else float(node["intra_node_bw"]),
        nic_bytes_per_s=float(node["inter_node_bw"]),
        gpus_per_node=int(node["num_gpus_per_node"]),
        compute_capability=f"{sm // 10}.{sm % 10}",
        power_watt=float(gpu["power"]),
        source=f"{source} of the kernel collection (vendor's figures)",
    )
