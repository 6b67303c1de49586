"""Seconds of pure decode, read from a run's log and requests, and the overhead fitted to them."""

from __future__ import annotations

import json

import pytest

from calibration.decode_ticks import DecodeRun, DecodeTick, read_decode_run
from calibration.host import fit_host_to_decodes
from sim.cost.build import compile_cost
from sim.model import load_model
from tests.sim.doubles import ClosedFormProfile
from workloads.errors import InputError


def write_run(folder):
    limits = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
    engine = {"model": "llama-3.1-8b", "vllm_version": "0.19.0", "engine_kwargs": limits}
    (folder / "engine.json").write_text(json.dumps(engine))
    (folder / "timeseries.csv").write_text(
        "t,prompt_throughput,gen_throughput,running\n"
        "1.0,900,50,10\n"  # a prompt was computed: no pure decode
        "2.0,0,500,10\n"
        "3.0,0,300,2\n"  # six on average: too few
    )
    rows = "".join("100,101,0.0,10.0\n" for _ in range(10))
    (folder / "measured_requests.csv").write_text(
        f"input_tokens,output_tokens,first_token_s,last_token_s\n{rows}"
    )


def test_a_tick_is_running_over_throughput(tmp_path):
    write_run(tmp_path)
    run = read_decode_run(tmp_path)
    # At t = 1.5 s of 10 s each of ten requests holds its 100 inputs and 15 of its tokens.
    assert run.ticks == (DecodeTick(num_seqs=10, context_tokens=1150, step_s=0.02),)
    assert (run.engine, run.max_num_seqs) == ("vLLM 0.19.0", 128)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"engine\.json: cannot be read"):
        read_decode_run(tmp_path)
    write_run(tmp_path)
    (tmp_path / "timeseries.csv").write_text("t,running\n1.0,3\n2.0,30\n")
    with pytest.raises(InputError, match="not a recorded run"):
        read_decode_run(tmp_path)


def test_overhead_of_decode_steps_is_recovered():
    profile = ClosedFormProfile()
    cost = compile_cost(load_model("llama-3.1-8b"), profile, max_num_batched_tokens=2048, max_num_seqs=128)
    ticks = tuple(
        DecodeTick(n, 500 * n, 1e-9 * cost.decode_ns(n, 500 * n, 0) + 2e-3 + 1e-5 * n)
        for n in (8, 16, 32, 64)
    )
    host = fit_host_to_decodes(profile, DecodeRun("llama-3.1-8b", "vLLM 0.19.0", 128, 2048, ticks))
    assert host.base_s == pytest.approx(2e-3, rel=0.01)
    assert host.per_seq_s == pytest.approx(1e-5, rel=0.01)
    assert host.source == "4 seconds of pure decode of llama-3.1-8b on closed-form, vLLM 0.19.0"
