"""`servetwin trace`: one JSON document or tables, whole files or none, one line for bad input."""

import json

import numpy as np
import pytest

from workloads.cli import app
from workloads.errors import InputError
from workloads.model import SHIPPED
from workloads.readers import read_trace

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,5,6\n2.0,7,8\n4.0,9,10\n"
MOONCAKE = "\n".join(
    json.dumps({"timestamp": 10 * i, "input_length": 600, "output_length": 5, "hash_ids": [0, i]})
    for i in range(5)
)


@pytest.fixture
def run(capsys):
    def call(*args):
        app([str(arg) for arg in args], exit_on_error=False, result_action="return_value")
        out = capsys.readouterr()
        return json.loads(out.out) if "--json" in args else out.out

    return call


def refused(run, *args):
    with pytest.raises(InputError) as caught:
        run(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_info(run, put):
    figures = run("info", put("v.csv", VIDUR), "--json")
    assert figures["format"] == "vidur"
    assert (figures["requests"], figures["failed"]) == (3, 0)
    assert (figures["input_tokens"], figures["output_tokens"]) == (21, 24)
    assert (figures["duration_s"], figures["request_rate"]) == (4.0, 0.75)
    assert figures["warnings"] == []
    assert figures["quantiles"]["input_tokens"]["p50"] == 7
    assert figures["prefix"] is None
    assert "requests" in run("info", put("v.csv", VIDUR))


def test_info_of_prefix_blocks(run, put):
    prefix = run("info", put("m.jsonl", MOONCAKE), "--json")["prefix"]
    assert prefix == {"block_tokens": 512, "blocks": 10, "unique_blocks": 5, "infinite_cache_hit_rate": 0.5}


def test_info_counts_failures_and_says_so(run, put):
    path = put("v.csv", VIDUR + "5.0,5,0\n")
    figures = run("info", path, "--json")
    assert (figures["requests"], figures["failed"]) == (3, 1)
    assert figures["warnings"] == [
        "1 failed requests are left out of these figures; to run it, use --drop-failed"
    ]
    assert run("info", path, "--drop-failed", "--json")["warnings"] == []


def test_info_of_lengths_only_and_of_one_request(run, put):
    figures = run("info", put("w.csv", "num_prefill_tokens,num_decode_tokens\n5,6\n"), "--json")
    assert figures["duration_s"] is None
    assert figures["request_rate"] is None
    assert figures["length_correlation"] is None
    run("info", put("w.csv", "num_prefill_tokens,num_decode_tokens\n5,6\n"))


@pytest.mark.parametrize("name", ["azure-conv", "arxiv-summarization", "mooncake-conv"])
def test_info_of_a_shipped_model(run, name):
    figures = run("info", name, "--json")
    assert figures["format"] == "model"
    assert figures["requests"] > 8000


def test_convert_there_and_back(run, put, tmp_path):
    source = put("v.csv", VIDUR)
    done = run("convert", source, tmp_path / "a.parquet", "--json")
    assert (done["from"], done["to"], done["requests"], done["lost"]) == ("vidur", "parquet", 3, [])
    run("convert", tmp_path / "a.parquet", tmp_path / "b.jsonl")
    run("convert", tmp_path / "b.jsonl", tmp_path / "c.csv", "--to", "azure")
    run("convert", tmp_path / "c.csv", tmp_path / "d.csv", "--to", "vidur")
    last = read_trace(tmp_path / "d.csv")
    assert last.arrival_ns.tolist() == [0, 2 * 10**9, 4 * 10**9]
    assert last.output_tokens.tolist() == [6, 8, 10]


def test_convert_block_size(run, put, tmp_path):
    run("convert", put("m.jsonl", MOONCAKE), tmp_path / "a.parquet", "--block-tokens", "16")
    hashes = read_trace(tmp_path / "a.parquet").hashes
    assert hashes.block_tokens == 16
    assert np.diff(hashes.offsets).tolist() == [38] * 5
    message = refused(run, "convert", put("v.csv", VIDUR), tmp_path / "b.parquet", "--block-tokens", "16")
    assert message.endswith("v.csv has no prefix blocks; leave it out")


def test_convert_refuses_to_lose_unless_told(run, put, tmp_path):
    source, target = put("m.jsonl", MOONCAKE), tmp_path / "a.csv"
    message = refused(run, "convert", source, target, "--to", "vidur")
    assert message == f"{target}: vidur cannot hold prefix blocks; --allow-loss writes it without"
    assert not target.exists()
    assert run("convert", source, target, "--to", "vidur", "--allow-loss", "--json")["lost"] == [
        "prefix blocks"
    ]
    lengths = put("w.csv", "num_prefill_tokens,num_decode_tokens\n5,6\n")
    message = refused(run, "convert", lengths, tmp_path / "z.csv", "--to", "azure")
    assert message.endswith("azure needs arrival times, and the trace has lengths only; use vidur")


def test_convert_of_failed_requests(run, put, tmp_path):
    source = put("v.csv", VIDUR + "5.0,5,0\n")
    assert "--drop-failed" in refused(run, "convert", source, tmp_path / "a.parquet")
    assert run("convert", source, tmp_path / "a.parquet", "--drop-failed", "--json")["failed"] == 1
    assert run("info", tmp_path / "a.parquet", "--json")["failed"] == 1


def test_files_are_whole_or_absent(run, put, tmp_path):
    source = put("v.csv", VIDUR)
    target = tmp_path / "a.parquet"
    run("convert", source, target)
    before = target.read_bytes()
    assert refused(run, "convert", source, target) == f"{target}: exists already; --force replaces it"
    run("convert", source, target, "--force")
    assert target.read_bytes() == before
    assert refused(run, "convert", source, tmp_path / "no" / "a.parquet").endswith("make it first")
    assert refused(run, "convert", source, tmp_path, "--to", "vidur").endswith(
        "is a directory; give a file name"
    )
    bad = put("bad.csv", VIDUR + "1.0,1,1\n")
    refused(run, "convert", bad, tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()
    assert leftovers(tmp_path) == []


def test_a_write_that_fails_half_way_leaves_nothing(run, put, tmp_path, monkeypatch):
    from workloads import writers

    def broken(_):
        yield "half a row"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writers, "_vidur", broken)
    target = put("old.csv", "precious")
    with pytest.raises(InputError, match=r"old\.csv: cannot be written: No space left on device"):
        run("convert", put("v.csv", VIDUR), target, "--to", "vidur", "--force")
    assert target.read_text() == "precious"
    assert leftovers(tmp_path) == []


def test_formats_to_write(run, put, tmp_path):
    source = put("v.csv", VIDUR)
    message = refused(run, "convert", source, tmp_path / "a.csv")
    assert message.endswith("a.csv does not say its format; give one of parquet, azure, mooncake, vidur")
    message = refused(run, "convert", source, tmp_path / "a.csv", "--to", "burstgpt")
    assert message == "--to: 'burstgpt' cannot be written; give one of parquet, azure, mooncake, vidur"


def test_generate(run, tmp_path):
    options = ("--input-tokens", "{uniform: [1, 9]}", "--output-tokens", "5", "--request-rate", "4")
    one, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    assert run("generate", one, *options, "--num-requests", "50", "--seed", "3", "--json")["requests"] == 50
    run("generate", other, *options, "--set", "num_requests=50", "--seed", "3")
    assert one.read_bytes() == other.read_bytes()
    run("generate", other, *options, "--num-requests", "50", "--seed", "4", "--force")
    assert one.read_bytes() != other.read_bytes()


def test_generate_from_a_scenario_with_changes(run, put, tmp_path):
    scenario = put("s.yaml", "model: x\nworkload: {trace: v.csv, request_rate: 2}\n")
    put("v.csv", VIDUR)
    run("generate", tmp_path / "a.parquet", "--workload", scenario, "--set", "tenants.a.priority=3")
    trace = read_trace(tmp_path / "a.parquet")
    assert trace.tenant_names == ("a",)
    assert trace.priority.tolist() == [3, 3, 3]
    assert trace.duration_ns == 1.5e9


def test_generate_from_a_shipped_model(run, tmp_path):
    done = run("generate", tmp_path / "a.jsonl", "--trace", "mooncake-conv", "--num-requests", "40", "--json")
    assert done["requests"] == 40
    assert read_trace(tmp_path / "a.jsonl").hashes.block_tokens == 512


def test_what_generate_refuses(run, put, tmp_path):
    target = tmp_path / "a.parquet"
    lengths = ("--input-tokens", "5", "--output-tokens", "5")
    for args, message in [
        ((), "workload.trace: nothing to run; give a trace, or input_tokens and output_tokens"),
        (("--set", "rate"), "--set: 'rate' is not FIELD=VALUE, as request_rate=8"),
        (("--input-tokens", "{uniform"), "--input-tokens: '{uniform' is not YAML; quote it"),
        (
            ("--set", "trace.x=1", "--trace", "azure-conv"),
            "--set: trace is 'azure-conv', which has no field x",
        ),
        (
            ("--workload", tmp_path / "no.yaml"),
            f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory",
        ),
        (("--workload", put("l.yaml", "[1]")), f"{tmp_path / 'l.yaml'}: no workload section; a mapping with"),
        (("--workload", put("b.yaml", "a: [")), f"{tmp_path / 'b.yaml'}:1: not YAML: "),
        (
            (*lengths, "--set", "max_concurrency=3", "--num-requests", "5"),
            "workload.max_concurrency: a trace file has no closed loop; give request_rate instead",
        ),
        (
            (*lengths, "--request-rate", "1", "--num-requests", "5", "--seed", "-1"),
            "--seed: -1 is negative; give 0 or more",
        ),
    ]:
        assert refused(run, "generate", target, *args).startswith(message)
        assert not target.exists()


def test_fit_and_its_model(run, tmp_path):
    source, model = tmp_path / "a.parquet", tmp_path / "model.json"
    run("generate", source, "--trace", "azure-code", "--num-requests", "2000")
    done = run("fit", source, "--out", model, "--name", "mine", "--licence", "ours", "--json")
    assert {row["family"] for row in done["gaps_s"]} == {"exponential", "gamma", "weibull"}
    distances = [row["ks"] for row in done["input_tokens"]]
    assert distances == sorted(distances)
    assert done["model"] == str(model)
    run("generate", tmp_path / "b.parquet", "--trace", model, "--num-requests", "100")
    assert "exists already" in refused(run, "fit", source, "--out", model)
    text = run("fit", source)
    assert "weibull" in text
    assert "p-values are asymptotic" in text


def test_fit_of_what_does_not_vary(run, put):
    rows = "".join(f"{i}.5,5,{i + 1}\n" for i in range(30))
    done = run("fit", put("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows), "--json")
    assert done["input_tokens"] is None
    assert done["gaps_s"] is None
    assert done["output_tokens"]


def test_fit_of_nothing_that_varies_is_refused(run, put):
    head = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    assert refused(run, "fit", put("three.csv", head + "1,5,5\n" * 3)).endswith(
        "three.csv: 3 requests are too few to fit; at least 20 are needed"
    )
    assert refused(run, "fit", put("same.csv", head + "1,5,5\n" * 30)).endswith(
        "same.csv: input_tokens, output_tokens and gaps are the same in all 30 requests; "
        "a fit needs values that differ"
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_figures_are_shown_whole(run, name):
    text = run("info", name)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_options_are_numbers_as_in_a_scenario(run, tmp_path):
    options = (
        "--input-tokens",
        "1e2",
        "--output-tokens",
        "5",
        "--request-rate",
        "1e3",
        "--num-requests",
        "1e1",
    )
    assert run("generate", tmp_path / "a.parquet", *options, "--json")["input_tokens"] == 1000


def test_who_interrupts_the_figures_finds_no_file(run, tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("workloads.cli.summarise", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):  # cyclopts exits with 130
        run("generate", tmp_path / "a.parquet", "--trace", "azure-code", "--num-requests", "20")
    assert list(tmp_path.iterdir()) == []


SESSIONS = (
    *("--input-tokens", "90", "--output-tokens", "30", "--request-rate", "5", "--num-requests", "200"),
    *("--set", "sessions={turns: 4, system_prompt_tokens: 64, turn_gap_s: 1}"),
)


def test_sessions_that_wait_are_kept_by_parquet_and_named_as_lost_elsewhere(run, tmp_path):
    done = run("generate", tmp_path / "s.parquet", *SESSIONS, "--json")
    waiting = done["waiting"]
    assert done["lost"] == []
    assert 120 < waiting["requests"] < 160
    assert waiting["mean_think_s"] == pytest.approx(1, rel=0.3)
    assert run("info", tmp_path / "s.parquet", "--json")["waiting"] == waiting
    assert "waiting for answers: requests" in run("info", tmp_path / "s.parquet")
    message = refused(run, "convert", tmp_path / "s.parquet", tmp_path / "s.jsonl")
    assert "mooncake cannot hold waits for answers; --allow-loss" in message
    run("convert", tmp_path / "s.parquet", tmp_path / "s.jsonl", "--allow-loss")
    assert run("info", tmp_path / "s.jsonl", "--json")["waiting"] is None


def test_a_file_says_what_its_blocks_do_not_show(run, tmp_path):
    """A window that moves leaves prompts that begin alike and repeat no answer: the blocks alone cannot tell."""
    options = (*SESSIONS, "--set", "sessions.waits_for_answer=false", "--set", "sessions.block_tokens=512")
    window = ("--set", "sessions.context_policy={name: sliding_window, window_turns: 0}")
    assert "which answers" not in run("generate", tmp_path / "a.jsonl", *options)
    message = refused(run, "generate", tmp_path / "b.jsonl", *options, *window)
    assert "mooncake cannot hold which answers are repeated; --allow-loss" in message


def test_another_rate_for_requests_that_wait_is_refused(run, tmp_path):
    run("generate", tmp_path / "s.parquet", *SESSIONS)
    for option in ("--request-rate", "--burstiness"):
        message = refused(
            run, "generate", tmp_path / "t.parquet", "--trace", tmp_path / "s.parquet", option, "2"
        )
        assert message.startswith(f"workload.{option[2:].replace('-', '_')}: requests of ")
        assert "wait for answers, so no rate is theirs" in message
    assert (
        run(
            "generate",
            tmp_path / "t.parquet",
            "--trace",
            tmp_path / "s.parquet",
            "--num-requests",
            50,
            "--json",
        )["requests"]
        == 50
    )
