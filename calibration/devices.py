"""system.yaml of a kernel collection -> Device. What it lacks (SMs, L2 size) stands here with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from calibration.tables import TableError
from sim.profile import Device

MIB = 1024 * 1024
SMS_AND_L2 = {90: (132, 50), 100: (148, 126), 103: (148, 126), 80: (108, 40), 89: (142, 96), 120: (188, 128)}
"""Streaming multiprocessors and L2 MiB of the full-size server part, by compute capability (data sheets)."""
GIB = 1024 * MIB
DRIVER_MEMORY = {
    "h100_sxm": (79.10, "total of cudaMemGetInfo as vLLM logs it, 79.10 GiB (trl issue 2688)"),
    "a100_sxm": (79.25, "total of cudaMemGetInfo on an A100-SXM4-80GB, 79.25 GiB, from memory, unverified"),
    "h200_sxm": (139.81, "total of cudaMemGetInfo on an H200, 139.81 GiB, from memory, unverified"),
    "b200_sxm": (178.36, "total of cudaMemGetInfo on a B200, 178.36 GiB, from memory, unverified"),
    "l40s": (44.39, "total of cudaMemGetInfo on an L40S, 44.39 GiB, from memory, unverified"),
    "rtx_pro_6000": (94.97, "total of cudaMemGetInfo on an RTX PRO 6000, 94.97 GiB, from memory, unverified"),
}
"""GiB that CUDA reports and engines multiply by the utilisation; nvidia-smi shows 0.5 to 1 % more."""
LAYER_DEVICES = {
    "RTX4090": (
        "rtx_4090",
        Device(
            memory_bytes=25_250_627_584,
            memory_source="total of the driver, as a run of vLLM 0.19 recorded it",
            hbm_bytes_per_s=1008e9,
            flops_per_s={"bfloat16": 165.2e12, "fp8": 330.3e12},
            sm_count=128,
            l2_bytes=72 * MIB,
            pcie_bytes_per_s=32e9,
            nvlink_bytes_per_s=None,
            gpus_per_node=1,
            compute_capability="8.9",
            power_watt=450,
            source="NVIDIA Ada GPU architecture whitepaper (tensor cores with fp32 accumulation, without sparsity)",
        ),
    ),
    "RTXPRO6000": (
        "rtx_pro_6000",
        Device(
            memory_bytes=round(DRIVER_MEMORY["rtx_pro_6000"][0] * GIB),
            memory_source=DRIVER_MEMORY["rtx_pro_6000"][1],
            hbm_bytes_per_s=1792e9,
            flops_per_s={"bfloat16": 467.8e12, "fp8": 935.6e12},
            sm_count=188,
            l2_bytes=128 * MIB,
            pcie_bytes_per_s=64e9,
            nvlink_bytes_per_s=None,
            gpus_per_node=8,
            compute_capability="12.0",
            power_watt=600,
            source="vendor's figures, as rtx_pro_6000_server.yaml has them; SMs and L2 from data sheets",
        ),
    ),
}
"""Profile and device of the folders of `calibration/layer_tables.py`, by the name that their profiler gives a GPU."""
NO_NVLINK = 70e9
"""Byte/s: an intra-node bandwidth up to here is PCIe, not NVLink."""


def profile_name(system: str) -> str:
    return system.removesuffix("_server")


def read_device(path: Path, system: str) -> Device:
    """Read the vendor figures of one system."""
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _device(content["gpu"], content["node"], profile_name(system), path.name)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TableError(f"{path}: not a system description, {type(error).__name__}: {reason}") from error


def _device(gpu: dict[str, Any], node: dict[str, Any], name: str, source: str) -> Device:
    nominal = (int(gpu["mem_capacity"]) / GIB, f"mem_capacity of {source}; the driver reports somewhat less")
    memory_gib, memory_source = DRIVER_MEMORY.get(name, nominal)
    capability = int(gpu["sm_version"])
    sms, l2_mib = SMS_AND_L2[capability]
    flops = {"bfloat16": float(gpu["bfloat16_tc_flops"])}
    for key, dtype in (("fp8_tc_flops", "fp8"), ("fp4_tc_flops", "nvfp4")):
        if key in gpu:
            flops[dtype] = float(gpu[key])
    intra = float(node["intra_node_bw"])
    return Device(
        memory_bytes=round(memory_gib * GIB),
        memory_source=memory_source,
        hbm_bytes_per_s=float(gpu["mem_bw"]),
        flops_per_s=flops,
        sm_count=sms,
        l2_bytes=l2_mib * MIB,
        pcie_bytes_per_s=float(node["pcie_bw"]),
        nvlink_bytes_per_s=None if intra <= NO_NVLINK else intra,
        nic_bytes_per_s=float(node["inter_node_bw"]),
        gpus_per_node=int(node["num_gpus_per_node"]),
        compute_capability=f"{capability // 10}.{capability % 10}",
        power_watt=float(gpu["power"]),
        source=f"{source} of the kernel collection (vendor's figures, one direction); SMs and L2 from data sheets",
    )
