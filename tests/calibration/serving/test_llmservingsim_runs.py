"""The recorded runs on RTX 4090 and RTX PRO 6000: read as they are, and predicted within what is asked.

Nothing of these runs enters what predicts them. Prices come from tables of kernels and layers; the host's overhead
is that of an H100's served runs; the RTX 4090 run tells its count of KV blocks, which the memory model gives as well.
"""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from calibration.serving.predict import predict
from calibration.serving.readers import llmservingsim
from sim.service import build_service
from tests.data import shared_data
from workloads.errors import InputError

RTX_4090, RTX_PRO_6000 = "rtx4090_llama-3.1-8b_tp1", "rtxpro6000_llama-3.1-8b_tp1"
QWEN_32B, QWEN_30B = "rtxpro6000_qwen3-32b_tp2", "rtxpro6000_qwen3-30b-a3b_dp2_ep2"
ASKED = {
    "mean_e2el_ms": 0.04,
    "p99_e2el_ms": 0.08,
    "mean_ttft_ms": 0.08,
    "request_throughput": 0.03,
    "output_throughput": 0.03,
}
"""Relative errors that are asked for."""


@pytest.fixture(scope="module")
def folder():
    return shared_data("real_runs_llmservingsim")


@pytest.fixture(scope="module")
def runs(folder):
    return {run.name: run for run in llmservingsim.read(folder)}


def test_four_runs_two_of_them_measured(runs, folder):
    assert set(runs) == {RTX_4090, RTX_PRO_6000, QWEN_32B, QWEN_30B}
    assert {name for name, run in runs.items() if run.parts} == {RTX_4090, RTX_PRO_6000}
    assert llmservingsim.recognises(folder)
    assert llmservingsim.recognises(folder / QWEN_32B)
    assert not llmservingsim.recognises(folder.parent)
    for run in runs.values():
        assert len(run.workload.trace) == 300
        assert run.scenario.engine.enable_prefix_caching


@pytest.mark.parametrize("name", [RTX_4090, RTX_PRO_6000])
def test_measured_as_the_record_says_it(runs, folder, name):
    """Their own summary, by our definitions; its time runs from the first arrival to the last token as well."""
    summary = json.loads((folder / name / "measured_summary.json").read_text())
    measured = runs[name].parts[0].measured
    for ours, theirs in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("e2el", "e2e_ms")):
        for statistic, key in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99")):
            assert measured[f"{statistic}_{ours}_ms"] == pytest.approx(summary[theirs][key], rel=1e-5)
    assert measured["output_throughput"] == pytest.approx(summary["output_tok_per_s"], rel=1e-5)


@pytest.mark.parametrize("name", [RTX_4090, RTX_PRO_6000])
def test_within_what_is_asked(runs, name):
    run = runs[name]
    said = predict(run)
    assert said.refused == 0
    errors = {key: said.parts[0][key] / run.parts[0].measured[key] - 1 for key in ASKED}
    assert {key: error for key, error in errors.items() if abs(error) > ASKED[key]} == {}


def test_the_engines_count_of_blocks_is_the_memory_models(runs):
    """2,588 in the engine's log; one constant of the model, of captured graphs, was taken from this log."""
    run = runs[RTX_4090]
    recorded = run.scenario.engine.num_gpu_blocks_override
    free = run.scenario.engine.model_copy(update={"num_gpu_blocks_override": None})
    service = build_service(run.scenario.model_copy(update={"engine": free}))
    assert service.capacity.num_gpu_blocks == pytest.approx(recorded, rel=0.01)


def test_decodes_beside_chunks_are_what_the_shared_launch_is_for(runs):
    """Without that term RTX PRO 6000 is served too fast by far."""
    run = runs[RTX_PRO_6000]
    profile = build_service(run.scenario).profile
    without = predict(run, profile.model_copy(update={"shared_attention": {}})).parts[0]
    assert without["mean_e2el_ms"] / run.parts[0].measured["mean_e2el_ms"] - 1 < -0.05


def test_ranks_that_share_experts_are_one_engine_on_all_their_gpus(runs):
    run = runs[QWEN_30B]
    assert run.scenario.hardware.tensor_parallel_size == 2
    assert run.scenario.engine.max_num_seqs == 256
    assert run.scenario.cluster.replicas == 1
    assert "expert parallelism" in run.caveats[-1]
    assert not any("expert parallelism" in said for said in runs[QWEN_32B].caveats)


@pytest.mark.parametrize("name", [QWEN_32B, QWEN_30B])
def test_blind_runs_are_predicted_whole(runs, name):
    said = predict(dataclasses.replace(runs[name]))
    assert said.refused == 0
    (part,) = said.parts
    assert all(np.isfinite(value) and value > 0 for value in part.values())


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        ("engine.json", lambda text: text[:-2], "engine.json: not JSON"),
        (
            "engine.json",
            lambda text: text.replace("engine_kwargs", "kwargs"),
            "not the options of a recorded run",
        ),
        (
            "workload.jsonl",
            lambda text: text.replace('"input_tokens": 2361', '"input_tokens": 99'),
            r"jsonl:1: prefix_block_ids must be 6 whole numbers",
        ),
        ("workload.jsonl", lambda text: text + "{}\n", r"jsonl:301: input_tokens is missing"),
    ],
)
def test_broken_records_are_named(folder, tmp_path, file, change, complaint):
    copy = shutil.copytree(folder / QWEN_32B, tmp_path / QWEN_32B)
    copy.chmod(0o755)
    path = copy / file
    path.chmod(0o644)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=complaint):
        llmservingsim.read(copy)


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no recorded run; a folder with workload\.jsonl and engine\.json"):
        llmservingsim.read(tmp_path)
