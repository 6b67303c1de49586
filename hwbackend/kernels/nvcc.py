"""Do all kernels compile, and what do they take of a multiprocessor? `python -m hwbackend.kernels.nvcc` prints it."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hwbackend.kernels.sources import DTYPE_CODES, SOURCES, kernel_names, options, source

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100")
_INSTALLED: Final = Path("/usr/local/cuda/bin/nvcc")
_ENTRY: Final = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILLS: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


class CompileError(Exception):
    """nvcc refused a source: which, compiled with what, and its words."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One source and the macros it is compiled with."""

    source: str
    defines: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        named = {
            ("KV", 0): "bf16",
            ("KV", 1): "fp16",
            ("KV", 2): "int8",
            ("KV", 3): "fp8",
            ("ACT", 0): "bf16",
            ("ACT", 1): "fp16",
            ("BLOCK_SIZE", 0): "none",
        }
        return " ".join(f"{name}={named.get((name, value), value)}" for name, value in self.defines)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as ptxas reports it; `shared_bytes` is the static part."""

    variant: Variant
    kernel: str
    architecture: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int

    @property
    def spills(self) -> bool:
        """Whether it keeps in memory what belongs into registers."""
        return self.spill_bytes > 0 or self.stack_bytes > 0


def find_nvcc() -> Path | None:
    """Find it in CUDA_HOME, on the search path, or where the toolkit installs it."""
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    candidates += [Path(found)] if found else []
    return next((path for path in (*candidates, _INSTALLED) if path.is_file()), None)


def default_variants() -> tuple[Variant, ...]:
    """Each source as Llama's shapes need it: bf16, heads of 128, KV blocks of 16."""
    return tuple(variant for variant in all_variants() if _is_default(variant))


def all_variants() -> tuple[Variant, ...]:
    """Every combination that the launching code can ask for, at two block sizes and without blocks."""
    return tuple(itertools.chain.from_iterable(_variants(name) for name in SOURCES))


def compile_variant(
    nvcc: Path, variant: Variant, architectures: Sequence[str] = ARCHITECTURES
) -> list[Resources]:
    """Compile for all architectures at once and read what ptxas says of each kernel on each."""
    targets = [f"-gencode=arch=compute_{name[3:]},code={name}" for name in architectures]
    with tempfile.TemporaryDirectory() as directory:
        code = Path(directory) / f"{variant.source}.cu"
        code.write_text(source(variant.source), encoding="utf-8")
        flags = [
            *options(dict(variant.defines)),
            *targets,
            "-fatbin",
            "-Xptxas",
            "-v",
            "-Werror",
            "all-warnings",
        ]
        command = [str(nvcc), *flags, str(code), "-o", str(code.with_suffix(".fatbin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise CompileError(f"{variant.source}.cu [{variant}]: {done.stdout}{done.stderr}".strip())
    found = list(_parse(variant, done.stdout + done.stderr))
    silent = set(itertools.product(kernel_names(variant.source), architectures))
    silent -= {(one.kernel, one.architecture) for one in found}
    if silent:
        raise CompileError(f"{variant.source}.cu [{variant}]: ptxas says nothing of {sorted(silent)}")
    return found


def compile_all(
    nvcc: Path, variants: Sequence[Variant], architectures: Sequence[str] = ARCHITECTURES, jobs: int = 1
) -> list[Resources]:
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda variant: compile_variant(nvcc, variant, architectures), variants)
        return list(itertools.chain.from_iterable(found))


def format_table(resources: Sequence[Resources]) -> str:
    """One line a kernel and variant, with the architectures side by side: registers, static shared memory, spills."""
    lines: dict[tuple[str, str], dict[str, Resources]] = {}
    for one in resources:
        lines.setdefault((one.kernel, str(one.variant)), {})[one.architecture] = one
    columns = sorted({one.architecture for one in resources}, key=lambda name: int(name[3:]))
    text = [
        f"{'kernel':<18} {'compiled with':<46} {'shared B':>8}  registers (spill bytes) {' / '.join(columns)}"
    ]
    for (kernel, variant), found in sorted(lines.items()):
        registers = " / ".join(
            f"{found[name].registers}" + (f" ({found[name].spill_bytes})" if found[name].spills else "")
            for name in columns
        )
        shared = max(one.shared_bytes for one in found.values())
        text.append(f"{kernel:<18} {variant:<46} {shared:>8}  {registers}")
    return "\n".join(text)


def _variants(name: str) -> Iterator[Variant]:
    acts = (DTYPE_CODES["bfloat16"], DTYPE_CODES["float16"])
    narrow = (DTYPE_CODES["int8"], DTYPE_CODES["fp8"])
    if name in ("blocks", "stream"):
        yield Variant(name, ())
        return
    for act in acts:
        if name == "elementwise":
            yield Variant(name, (("ACT", act),))
            continue
        if name == "quantise":
            for head_dim, kv in itertools.product((64, 128), narrow):
                yield Variant(name, (("ACT", act), ("HEAD_DIM", head_dim), ("KV", kv)))
            continue
        for head_dim, kv, block_size in itertools.product((64, 128), (act, *narrow), (0, 16, 32)):
            shape = (("ACT", act), ("BLOCK_SIZE", block_size), ("HEAD_DIM", head_dim), ("KV", kv))
            if name != "decode_attention":
                if block_size:
                    yield Variant(name, shape)
            elif block_size or kv == act:
                yield from (Variant(name, (*shape, ("ROWS", rows))) for rows in (8, 16))


def _is_default(variant: Variant) -> bool:
    usual = {"ACT": (0,), "HEAD_DIM": (128,), "BLOCK_SIZE": (16,), "ROWS": (8,), "KV": (0, 2)}
    return all(value in usual[name] for name, value in variant.defines)


def _parse(variant: Variant, text: str) -> Iterator[Resources]:
    for part in text.split("Compiling entry function ")[1:]:
        entry = _ENTRY.search("Compiling entry function " + part)
        spills, registers, shared = _SPILLS.search(part), _REGISTERS.search(part), _SHARED.search(part)
        if entry is None or spills is None or registers is None:
            raise CompileError(f"{variant.source}.cu [{variant}]: cannot read the report of ptxas: {part}")
        yield Resources(
            variant=variant,
            kernel=entry[1],
            architecture=entry[2],
            registers=int(registers[1]),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(spills[1]),
            spill_bytes=int(spills[2]) + int(spills[3]),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where something spills or does not compile, 2 where there is no nvcc."""
    parser = argparse.ArgumentParser(prog="python -m hwbackend.kernels.nvcc", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every variant, not only the usual shapes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(argv)
    nvcc = find_nvcc()
    if nvcc is None:
        print("nvcc: not found in CUDA_HOME, on the search path or in /usr/local/cuda", file=sys.stderr)
        return 2
    variants = all_variants() if chosen.all else default_variants()
    try:
        resources = compile_all(nvcc, variants, jobs=chosen.jobs)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    print(format_table(resources))
    spilled = [one for one in resources if one.spills]
    said = f"{len(spilled)} SPILL:\n{format_table(spilled)}" if spilled else "none spills"
    print(f"{len(variants)} variants of {len(SOURCES)} sources, {len(resources)} kernels; {said}")
    return int(bool(spilled))


if __name__ == "__main__":
    raise SystemExit(main())
