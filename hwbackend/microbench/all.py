"""All microbenchmarks by name."""

from __future__ import annotations

from typing import Final

from hwbackend.microbench.all_reduce import AllReduce
from hwbackend.microbench.allocation import Allocation
from hwbackend.microbench.bench import Benchmark
from hwbackend.microbench.contention import Contention
from hwbackend.microbench.decode_attention import DecodeAttention
from hwbackend.microbench.device_memory import DeviceMemory
from hwbackend.microbench.elementwise import Elementwise
from hwbackend.microbench.first_launch import FirstLaunch
from hwbackend.microbench.gemm import Gemm
from hwbackend.microbench.kv_blocks import KvBlocks
from hwbackend.microbench.launch import Launch
from hwbackend.microbench.prefill_attention import PrefillAttention
from hwbackend.microbench.quantise import Quantise
from hwbackend.microbench.transfer import Transfer
from hwbackend.microbench.weights import Weights

_ALL: tuple[Benchmark, ...] = (
    DeviceMemory(),
    Transfer(),
    Contention(),
    Gemm(),
    PrefillAttention(),
    DecodeAttention(),
    Elementwise(),
    KvBlocks(),
    Quantise(),
    Launch(),
    FirstLaunch(),
    Allocation(),
    Weights(),
    AllReduce(),
)
BENCHMARKS: Final[dict[str, Benchmark]] = {benchmark.name: benchmark for benchmark in _ALL}
