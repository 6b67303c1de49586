"""The CUDA sources compile for all architectures, and none spills registers: here the usual variants of each.

All of them take a minute: `python -m hwbackend.kernels.nvcc --all`, which is a step of CI.
"""

from __future__ import annotations

import pytest

from hwbackend.kernels import nvcc
from hwbackend.kernels.sources import SOURCES, kernel_names, source

NVCC = nvcc.find_nvcc()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


def assert_complete(resources, variants):
    """A report for each kernel of each variant and architecture; and no spills."""
    found = {(one.variant, one.kernel, one.architecture) for one in resources}
    assert found == {
        (variant, kernel, architecture)
        for variant in variants
        for kernel in kernel_names(variant.source)
        for architecture in nvcc.ARCHITECTURES
    }
    assert all(0 < one.registers <= 255 for one in resources)
    spilled = [one for one in resources if one.spills]
    assert not spilled, nvcc.format_table(spilled)


@needs_nvcc
def test_the_usual_variants_compile_and_do_not_spill():
    variants = nvcc.default_variants()
    assert {variant.source for variant in variants} == set(SOURCES)
    assert_complete(nvcc.compile_all(NVCC, variants, jobs=2), variants)


@needs_nvcc
def test_a_source_that_does_not_compile_is_named_with_its_macros():
    variant = nvcc.Variant(
        "decode_attention", (("ACT", 0), ("BLOCK_SIZE", 0), ("HEAD_DIM", 64), ("KV", 2), ("ROWS", 8))
    )
    with pytest.raises(
        nvcc.CompileError, match=r"decode_attention\.cu \[ACT=bf16 .*contiguous cache is of 16-bit"
    ):
        nvcc.compile_variant(NVCC, variant, ("sm_90",))


def test_the_report_of_ptxas_is_read():
    text = """
ptxas info    : Compiling entry function 'empty' for 'sm_80'
ptxas info    : Function properties for empty
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]
"""
    (one,) = nvcc._parse(nvcc.Variant("stream", ()), text)
    assert (one.kernel, one.architecture, one.registers) == ("empty", "sm_80", 40)
    assert (one.shared_bytes, one.stack_bytes, one.spill_bytes) == (1024, 8, 16)
    assert "40 (16)" in nvcc.format_table([one])


def a_compiler(path, report=""):
    """A script in place of nvcc, which prints a report and writes nothing."""
    script = path / "nvcc"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\n")
    script.chmod(0o755)
    return script


def report_on(variants, spilled_bytes):
    lines = [
        f"Compiling entry function '{kernel}' for '{architecture}'\n"
        f"    {spilled_bytes} bytes stack frame, {spilled_bytes} bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers"
        for name in {variant.source for variant in variants}
        for kernel in kernel_names(name)
        for architecture in nvcc.ARCHITECTURES
    ]
    return "\n".join(lines)


def test_a_kernel_without_a_report_is_an_error(tmp_path):
    with pytest.raises(nvcc.CompileError, match=r"stream\.cu \[\]: ptxas says nothing of .*sm_80"):
        nvcc.compile_variant(a_compiler(tmp_path), nvcc.Variant("stream", ()))


@pytest.mark.parametrize(
    ("spilled_bytes", "code", "words"), [(0, 0, "none spills"), (8, 1, "SPILL"), (None, 1, "says nothing")]
)
def test_the_command_fails_where_something_spills(tmp_path, monkeypatch, capsys, spilled_bytes, code, words):
    text = "" if spilled_bytes is None else report_on(nvcc.default_variants(), spilled_bytes)
    compiler = a_compiler(tmp_path, text)
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: compiler)
    assert nvcc.main([]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_without_nvcc_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    assert nvcc.main([]) == 2
    assert "not found" in capsys.readouterr().err


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_whole_without_headers(name):
    """NVRTC has no include path, so nothing may be left to include."""
    assert "#include" not in source(name)
    assert kernel_names(name)
