"""What the operating system says of the CPU: model, cores, caches, clocks, memory, who else is busy.

Linux files under /proc and /sys; what a machine does not tell (a virtual one hides its governor) is None.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

import numpy as np

from hwbackend.device import Condition, Identity, MemoryInfo
from hwbackend.devices import blas

_CPU: Final = Path("/sys/devices/system/cpu")
_CGROUP: Final = Path("/sys/fs/cgroup")
_DEFAULT_CACHE: Final = 32 * 2**20  # where the system tells of none: larger than most slices of an L3


def identity() -> Identity:
    """Describe the CPU that this process runs on."""
    cores, threads = num_cores(), blas.num_threads()
    return Identity(
        kind="cpu",
        name=_model_name(),
        compute_units=cores,
        cache_bytes=last_cache_bytes() or _DEFAULT_CACHE,
        memory=memory(),
        compute_capability="cpu",
        facts={
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "governor": _text(_CPU / "cpu0/cpufreq/scaling_governor"),
            "max_clock_mhz": _max_clock_mhz(),
            "caches": ", ".join(f"L{level} {size // 1024} KiB" for level, size in caches()),
            "blas_threads": threads,
            "version_blas": f"{_blas()}, {'unknown' if threads is None else threads} threads",
            "version_numpy": np.__version__,
            "version_python": platform.python_version(),
        },
    )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory() -> MemoryInfo:
    """Memory of the machine, or of the control group where that is less."""
    lines = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(Path("/proc/meminfo")) or "", re.MULTILINE))
    if not lines:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return MemoryInfo(total, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), "sysconf")
    total, free = 1024 * int(lines["MemTotal"]), 1024 * int(lines["MemAvailable"])
    limit, used = _group_memory()
    if limit is not None and limit < total:
        return MemoryInfo(limit, max(0, min(free, limit - used)), "memory limit of the control group")
    return MemoryInfo(total, free, "MemTotal of /proc/meminfo")


def condition() -> Condition:
    """Read what disturbs measurements here: other work on the cores, and a clock that was held back."""
    fields = (_text(Path("/proc/stat")) or "cpu 0 0 0 0").splitlines()[0].split()[1:]
    ticks = [int(value) for value in fields[:8]]  # user nice system idle iowait irq softirq steal
    busy = sum(ticks) - sum(ticks[3:5])
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    return Condition(
        wall_ns=perf_counter_ns(),
        busy_ns=busy * tick_ns,
        own_ns=process_time_ns(),
        throttle_events=_throttled(),
        clock_mhz=_clock_mhz(),
        max_clock_mhz=_max_clock_mhz(),
    )


def caches() -> list[tuple[int, int]]:
    """(level, bytes) of the data caches that core 0 sees, ascending."""
    found = []
    for index in sorted((_CPU / "cpu0/cache").glob("index*")):
        kind, level, size = (_text(index / name) for name in ("type", "level", "size"))
        if kind in ("Data", "Unified") and level and size:
            found.append((int(level), _size(size)))
    return sorted(found)


def last_cache_bytes() -> int | None:
    found = caches()
    return found[-1][1] if found else None


def _size(text: str) -> int:
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _model_name() -> str:
    text = _text(Path("/proc/cpuinfo")) or ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _group_memory() -> tuple[int | None, int]:
    """Limit and use [bytes] of the control group, version 2 or 1."""
    for limit, used in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        said = _text(limit)
        if said is not None and said.isdigit():
            return int(said), int(_text(used) or 0)
    return None, 0


def _throttled() -> int:
    counts = [_text(path) for path in _CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    group = re.search(r"^nr_throttled (\d+)$", _text(_CGROUP / "cpu.stat") or "", re.MULTILINE)
    return sum(int(count) for count in counts if count) + (int(group[1]) if group else 0)


def _clock_mhz() -> float | None:
    said = _text(_CPU / "cpu0/cpufreq/scaling_cur_freq")
    return int(said) / 1e3 if said else None


def _max_clock_mhz() -> float | None:
    said = _text(_CPU / "cpu0/cpufreq/cpuinfo_max_freq")
    return int(said) / 1e3 if said else None


def _blas() -> str:
    config: Any = np.show_config(mode="dicts")
    library = config.get("Build Dependencies", {}).get("blas", {})
    return f"{library.get('name', 'unknown')} {library.get('version', '')}".strip()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
