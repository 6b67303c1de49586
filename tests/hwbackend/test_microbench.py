"""Microbenchmarks: each point runs or says why not, its declared work is right, and samples come back from disk."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hwbackend.device import open_device
from hwbackend.harness import Measurement, Rules, Summary, Work
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Result, run_point, turns
from hwbackend.microbench.decode_attention import mixed_lengths
from hwbackend.microbench.fragmentation import Probe, probe
from hwbackend.microbench.kv_pool import make_kv
from hwbackend.samples import SampleStore, middle, read_samples
from sim.kv.allocators.paged import Paged
from sim.kv.replay.allocation_replay import as_recorded, build_for, replay
from workloads.errors import ConfigError, InputError

QUICK = Rules(min_samples=2, max_samples=3, budget_s=0.01, least_sample_s=1e-6)
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 16}
DECODE = {"kv_dtype": "float32", "batch": 3, "kv_len": 20, "block_size": 8, **HEADS}
WIDTHS = {"dtype": "float32", "tokens": 5, "hidden": 64, "inter": 96, **HEADS}
BLOCKS = {"count": 3, "kv_dtype": "float32", "kv_heads": 2, "head_dim": 16, "block_size": 8}

RUN = [
    *(("device_memory", {"op": op, "num_bytes": 4096}) for op in ("copy", "read", "write")),
    *(
        ("transfer", {"direction": way, "num_bytes": 8192, "memory": memory})
        for way in ("load", "offload", "both")
        for memory in ("pinned", "pageable")
    ),
    *(
        ("contention", {"direction": way, "num_bytes": 1 << 16, "measured": what})
        for way in ("load", "offload")
        for what in ("copy", "kernel")
    ),
    ("gemm", {"dtype": "float32", "m": 3, "n": 32, "k": 64}),
    *(
        ("prefill_attention", {"kv_dtype": "float32", "isl": 9, "past_kv": past, "block_size": 8, **HEADS})
        for past in (0, 13)
    ),
    *(
        ("decode_attention", {**DECODE, "layout": layout, "lengths": lengths})
        for layout in ("paged", "contiguous")
        for lengths in ("uniform", "mixed")
    ),
    ("decode_attention", {**DECODE, "kv_dtype": "int8", "layout": "paged", "lengths": "uniform"}),
    *(("elementwise", {"op": op, **WIDTHS}) for op in ("rms_norm", "rope", "append_kv", "silu_mul", "layer")),
    *(("kv_blocks", {"op": op, **BLOCKS}) for op in ("append", "copy", "copy_on_write", "gather", "scatter")),
    *(
        ("quantise", {"op": op, "dtype": "float32", "tokens": 7, "kv_heads": 2, "head_dim": 16})
        for op in ("quantise", "dequantise")
    ),
    *(("launch", {"op": op, "calls": 2}) for op in ("call", "stream_switch")),
    ("allocation", {"source": "pool", "num_bytes": 4096}),
    *(("weights", {"num_bytes": 9 << 20, "overlap": overlap}) for overlap in ("no", "yes")),
]
SKIP = [
    ("gemm", {"dtype": "int8", "m": 1, "n": 8, "k": 8}, "without BLAS"),
    ("gemm", {"dtype": "bfloat16", "m": 1, "n": 8, "k": 8}, "multiply float32, not bfloat16"),
    (
        "decode_attention",
        {**DECODE, "kv_dtype": "fp8", "layout": "paged", "lengths": "uniform"},
        "no 8-bit floats",
    ),
    (
        "decode_attention",
        {**DECODE, "kv_dtype": "int8", "layout": "contiguous", "lengths": "uniform"},
        "is paged",
    ),
    ("launch", {"op": "graph_capture", "calls": 2}, "no graphs"),
    ("launch", {"op": "graph_replay", "calls": 2}, "no graphs"),
    ("first_launch", {"kernels": 2}, "compiles nothing"),
    ("allocation", {"source": "driver", "num_bytes": 4096}, "no pool"),
    ("all_reduce", {"message_bytes": 4096, "gpus": 2}, "nothing to reduce among"),
    ("device_memory", {"op": "copy", "num_bytes": 1 << 50}, "GB are free"),
]


@pytest.fixture(scope="module")
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


@pytest.mark.parametrize(("name", "axes"), RUN, ids=lambda value: value if isinstance(value, str) else None)
def test_a_point_has_times_and_work(device, name, axes):
    found = run_point(device, BENCHMARKS[name], axes, QUICK)
    assert found.skipped is None
    assert found.axes == axes
    assert len(found.measurement.samples_s) >= QUICK.min_samples
    assert all(0 < seconds < 60 for seconds in found.measurement.samples_s)
    assert found.work.num_bytes > 0 or name in ("launch", "allocation")


@pytest.mark.parametrize(("name", "axes", "why"), SKIP)
def test_what_makes_no_sense_says_why(device, name, axes, why):
    found = run_point(device, BENCHMARKS[name], axes, QUICK)
    assert found.measurement is None
    assert why in found.skipped


def test_every_benchmark_is_tried_and_axes_are_checked(device):
    assert {name for name, *_ in [*RUN, *SKIP]} == set(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
    with pytest.raises(ValueError, match="axes are op, num_bytes"):
        run_point(device, BENCHMARKS["device_memory"], {"op": "copy"}, QUICK)


def test_work_is_that_of_the_arithmetic():
    gemm = BENCHMARKS["gemm"].work({"dtype": "float32", "m": 2, "n": 3, "k": 5})
    assert (gemm.flops, gemm.num_bytes) == (2 * 2 * 3 * 5, 4 * (3 * 5 + 2 * 3 + 2 * 5))
    axes = {"kv_dtype": "float32", "isl": 3, "past_kv": 4, "block_size": 8, **HEADS}
    pairs = sum(4 + i for i in (1, 2, 3))  # keys that each of the three queries sees
    assert BENCHMARKS["prefill_attention"].work(axes).flops == 4 * 4 * 16 * pairs
    uniform = {**DECODE, "layout": "paged", "lengths": "uniform"}
    decode = BENCHMARKS["decode_attention"].work(uniform)
    assert decode.num_bytes == 2 * 4 * 2 * 16 * 3 * 20 + 2 * 4 * 3 * 4 * 16
    assert BENCHMARKS["decode_attention"].work({**uniform, "lengths": "mixed"}).flops == pytest.approx(
        decode.flops, rel=0.05
    )
    lengths = mixed_lengths({**uniform, "lengths": "mixed", "batch": 9, "kv_len": 100})
    assert (lengths.min(), lengths.mean(), lengths.max()) == (25, 100, 175)


def test_tables_hand_out_every_block_once_and_outgrow_the_cache(device):
    kv = make_kv(device, np.array([20, 1]), block_size=8, kv_heads=2, head_dim=16, dtype="float32")
    used = np.concatenate([np.concatenate([table[0, :3], table[1, :1]]) for table in kv.tables])
    assert len(used) == len(set(used.tolist())) == kv.pool.num_blocks
    assert len(kv.tables) == turns(device, 4 * 8 * 2 * 2 * 16 * 4)
    cache = device.identity.cache_bytes
    assert turns(device, cache) * cache >= 2 * cache


def test_the_probe_of_the_allocator_replays_through_the_simulators(device):
    found = probe(device, allocations=60, mean_bytes=1 << 14, held=8)
    again = probe(device, allocations=60, mean_bytes=1 << 14, held=8)
    assert found.trace.num_bytes.tolist() == again.trace.num_bytes.tolist()
    assert found.fragmentation is None
    assert "pages from anywhere" in found.reason
    assert 0 < (~found.trace.is_alloc).sum() < 60
    assert as_recorded(found.trace, None) is not None
    paged = replay(found.trace, build_for(Paged(), found.trace, 2 * found.trace.peak_bytes, 512)).summary()
    assert paged["failed"] == 0
    assert paged["peak_used_bytes"] >= found.trace.peak_bytes


def test_fragmentation_is_what_the_largest_piece_leaves_out():
    """3,250 MB free of which 890 are in one piece [K5]."""
    assert Probe(None, 3250, 890).fragmentation == pytest.approx(0.7262, abs=1e-4)


def timed(benchmark, axes, *samples):
    summary = Summary(
        len(samples), float(np.median(samples)), min(samples), max(samples), 0.5, 1, "noise", False, 0.0
    )
    return Result(benchmark, axes, Work(8.0, 2.0), Measurement(samples, summary))


def test_samples_come_back_as_they_were_and_only_ever_more(tmp_path):
    first = timed("gemm", {"m": 1}, 1e-3, 2e-3, 3e-3)
    skipped = Result("launch", {"op": "graph_capture"}, Work(0.0), skipped="no graphs")
    store = SampleStore(tmp_path / "raw", "this machine")
    store.add([first, skipped])
    assert read_samples(tmp_path / "raw") == [first, skipped]
    with pytest.raises(InputError, match="--resume adds to them"):
        SampleStore(tmp_path / "raw", "this machine")
    with pytest.raises(ConfigError, match="measured on this machine, and this is another"):
        SampleStore(tmp_path / "raw", "another", resume=True)
    again = SampleStore(tmp_path / "raw", "this machine", resume=True)
    assert (len(again), again.times("gemm", {"m": 1}), again.times("gemm", {"m": 2})) == (2, 1, 0)
    again.add([timed("gemm", {"m": 1}, 9e-3)])
    assert again.times("gemm", {"m": 1}) == 2
    assert len(list((tmp_path / "raw").glob("*.parquet"))) == 2
    assert read_samples(tmp_path / "raw")[0] == first  # of two the faster


def test_a_point_stands_for_its_middle_measurement():
    passes = [timed("gemm", {"m": 1}, seconds) for seconds in (5e-3, 1e-3, 2e-3)]
    assert middle(passes) is passes[2]
    assert middle(passes[:2]) is passes[1]
    none = Result("gemm", {"m": 1}, Work(0.0), skipped="why")
    assert middle([none]) is none


@pytest.mark.parametrize(("content", "what"), [(b"", "cannot be read"), (None, "no samples")])
def test_folders_that_hold_no_samples(tmp_path, content, what):
    if content is not None:
        (tmp_path / "samples-0001.parquet").write_bytes(content)
    with pytest.raises(InputError, match=what):
        read_samples(tmp_path)


def test_products_leave_a_core_to_copies_unless_the_environment_says_otherwise():
    code = (
        "import json, numpy\nfrom hwbackend.device import open_device\nfrom hwbackend.devices import blas, host_facts\n"
        "before = blas.num_threads(); d = open_device('cpu'); during = blas.num_threads(); d.close()\n"
        "print(json.dumps([before, during, blas.num_threads(), host_facts.num_cores()]))"
    )
    before, during, after, cores = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    if before is None:
        pytest.skip("the BLAS of this NumPy is not OpenBLAS")
    assert after == before
    assert during in (max(1, cores - 1), before)
