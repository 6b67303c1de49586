"""The scheduler against step logs of a real vLLM: every step identical; and a log that is not, noticed."""

from __future__ import annotations

import json

import pytest

from calibration.step_log import read_step_log
from calibration.validate_steps import compare_steps
from sim.cli import run_command
from tests.data import shared_data
from workloads.errors import InputError

RUNS = ["A_chunk256_load40", "A_chunk256_load70", "A_chunk256_load70_rep2", "D_smallkv128_load70"]


@pytest.mark.parametrize("run", RUNS)
def test_every_step_is_the_engines(run):
    comparison = compare_steps(read_step_log(shared_data("vllm_cpu_engine", run)))
    assert comparison.first_mismatch is None
    assert comparison.matching == comparison.steps > 1000
    assert set(comparison.matching_by_field.values()) == {comparison.steps}  # contexts, queues, KV usage too


def test_prefix_look_ups_block_reuse_and_cached_tokens_are_the_engines():
    comparison = compare_steps(read_step_log(shared_data("vllm_cpu_engine", "C_prefix_multiturn")))
    assert comparison.first_mismatch is None
    assert set(comparison.matching_by_field.values()) == {comparison.steps}
    cached = comparison.cached_tokens
    assert (cached.engine, cached.servetwin) == (41_056, 41_056)
    assert cached.requests_equal == cached.requests == 109


HEADER = (
    "step,t_start_s,iter_s,n_prefill_tokens,n_decode_seqs,decode_ctx_tokens,n_preempted,n_running,n_waiting,"
    "kv_usage,prefill_detail\n"
)


def tiny_run(folder, steps: str | None = None, **engine_args: object) -> None:
    """Budget 8, blocks of 4, 7 usable: prompt of 10 in two chunks, then two decodes beside a prompt of 3."""
    folder.mkdir(exist_ok=True)
    args = {
        "enable_prefix_caching": False,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
        "max_model_len": 100,
        **engine_args,
    }
    meta = {
        "run": "tiny",
        "engine": "vllm",
        "version": "0",
        "engine_args": args,
        "num_kv_blocks": 8,
        "block_size": 4,
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.csv").write_text(
        "request_id,arrival_s,prompt_tokens,output_tokens,admit_s\na,0.0,10,3,0.0\nb,0.15,3,1,0.2\n"
    )
    rows = (
        "0,0.0,0.1,8,0,0,0,1,0,0.2857,a:0+8\n"
        "1,0.1,0.1,2,0,0,0,1,0,0.4286,a:8+2\n"
        "2,0.2,0.1,3,1,10,0,2,0,0.5714,b:0+3\n"
        "3,0.3,0.1,0,1,11,0,1,0,0.4286,\n"
    )
    (folder / "steps.csv").write_text(HEADER + (steps or rows))


def test_a_small_log_by_hand(tmp_path, capsys):
    tiny_run(tmp_path / "tiny")
    assert run_command(["validate", "steps", str(tmp_path / "tiny"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["steps"], document["matching"], document["first_mismatch"]) == (4, 4, None)
    assert set(document["matching_by_field"].values()) == {4}


def test_a_step_that_differs_is_named_and_exits_1(tmp_path, capsys):
    tiny_run(tmp_path / "tiny", "0,0.0,0.1,7,0,0,0,1,0,0.2857,a:0+7\n1,0.1,0.1,2,0,0,0,1,0,0.4286,a:8+2\n")
    assert run_command(["validate", "steps", str(tmp_path / "tiny"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["matching"] == 1
    assert document["first_mismatch"]["step"] == 0
    assert document["first_mismatch"]["engine"]["prefill_tokens"] == 7
    assert document["first_mismatch"]["servetwin"]["prefill_tokens"] == 8


@pytest.mark.parametrize(
    ("file", "content", "where"),
    [
        ("meta.json", "{", "meta.json:1: not JSON"),
        ("meta.json", "{}", "'engine_args' is missing"),
        ("meta.json", "[]", "not the meta data"),
        ("meta.json", None, "cannot be read"),
        ("steps.csv", "step\n0\n", "column 't_start_s' is missing"),
        ("steps.csv", None, "cannot be read"),
        ("requests.csv", "request_id,arrival_s,prompt_tokens,output_tokens,admit_s\n", "has no rows"),
        (
            "requests.csv",
            "request_id,arrival_s,prompt_tokens,output_tokens,admit_s\na,0,x,1,0\n",
            "requests.csv:2",
        ),
        (
            "steps.csv",
            HEADER + "0,0.0,nan,8,0,0,0,1,0,0.2,\n",
            "steps.csv:2: not a row of this table: iter_s is nan",
        ),
        ("steps.csv", HEADER + "0,0.0,0.1,-8,0,0,0,1,0,0.2,\n", "steps.csv:2: not a row"),
        ("steps.csv", HEADER + "0,0.0,0.1\n", "steps.csv:2: not a row"),
        (
            "requests.csv",
            "request_id,arrival_s,prompt_tokens,output_tokens,admit_s\na,0,3,1,inf\n",
            "requests.csv:2: not a row of this table: admit_s is inf",
        ),
        *(
            (name, b"\x80\x03\xff\x00", f"{name}: not ")
            for name in ("steps.csv", "requests.csv", "meta.json")
        ),
    ],
)
def test_a_broken_log_is_one_line(tmp_path, file, content, where):
    tiny_run(tmp_path / "tiny")
    if content is None:
        (tmp_path / "tiny" / file).unlink()
    else:
        (tmp_path / "tiny" / file).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        read_step_log(tmp_path / "tiny")
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_log_at_all(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        read_step_log(tmp_path / "none")
