"""Kernel tables with a known truth, and the place of the real ones."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
HBM, PEAK = 3e12, 8e14

SYSTEM_YAML = """
gpu: {mem_bw: 3.35e+12, mem_capacity: 85899345920, bfloat16_tc_flops: 9.89e+14, fp8_tc_flops: 1.978e+15,
      power: 700, sm_version: 90}
node: {num_gpus_per_node: 8, inter_node_bw: 5.0e+10, intra_node_bw: 4.5e+11, pcie_bw: 6.4e+10}
"""


def kernels_dir() -> Path:
    """The real tables; skips the test where they are not."""
    data = Path(os.environ.get("SERVETWIN_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "kernels" / "h100_sxm" / "gemm.parquet").is_file():
        pytest.skip(f"no kernel tables under {data} (set SERVETWIN_DATA)")
    return data / "kernels"


def grid(**axes):
    """Every combination, as integer columns."""
    columns = np.meshgrid(*axes.values(), indexing="ij")
    return {name: column.ravel().astype(np.int64) for name, column in zip(axes, columns, strict=True)}


def gemm_rows(dtype="bfloat16"):
    """A pure roofline: 3 us, then the weights at 3 TB/s or the products at 800 TFLOP/s."""
    wide = [256, 512, 1024, 2048, 3072, 4096, 8192, 16384]
    rows = grid(m=[1, 16, 32, 64, 256, 1024, 4096], n=wide, k=wide)
    m, n, k = (rows[axis].astype(float) for axis in "mnk")
    seconds = 3e-6 + np.maximum(2 * m * n * k / PEAK, 2 * (n * k + m * (n + k)) / HBM)
    return {"dtype": np.full(len(m), dtype)} | rows | {"time_us": 1e6 * seconds}


_HEADS = ((8, 1), (8, 8), (16, 2), (16, 4), (32, 4), (32, 8), (64, 8))


def prefill_rows():
    rows = grid(layout=range(len(_HEADS)), batch=[1, 4, 16, 64], isl=[16, 64, 256, 1024, 4096])
    heads, kv_heads = np.array(_HEADS)[rows.pop("layout")].T
    isl = rows["isl"].astype(float)
    seconds = 8e-6 + 4 * rows["batch"] * heads * 128 * isl * (isl + 1) / 2 / 4e14
    return _attention(rows, heads, kv_heads) | {"past_kv": 0 * heads, "time_us": 1e6 * seconds}


def decode_rows():
    rows = grid(layout=range(len(_HEADS)), batch=[1, 4, 16, 64, 256], kv_len=[16, 128, 1024, 4096, 16384])
    heads, kv_heads = np.array(_HEADS)[rows.pop("layout")].T
    seconds = 8e-6 + 4.0 * 128 * kv_heads * rows["batch"] * rows["kv_len"] / 2.5e12
    return _attention(rows, heads, kv_heads) | {"time_us": 1e6 * seconds}


def _attention(rows, heads, kv_heads):
    fixed = {"kv_dtype": np.full(len(heads), "bfloat16"), "head_dim": 0 * heads + 128, "window": 0 * heads}
    return rows | fixed | {"heads": heads, "kv_heads": kv_heads}


def write_collection(folder, gemm=None):
    """The three tables that every fit needs, with their system.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "gemm": gemm or gemm_rows(),
        "attention_prefill": prefill_rows(),
        "attention_decode": decode_rows(),
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    (folder / "system.yaml").write_text(SYSTEM_YAML)
    return folder
