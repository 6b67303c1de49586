"""`profile fit --engine-log`: a known engine is found again, and the steps of a real one are predicted."""

import json

import numpy as np
import pytest

from calibration.engine_log import read_engine_log
from calibration.engine_log_errors import errors_on, step_seconds
from calibration.fit_engine_log import cross_validate, fit_engine_log
from calibration.slower_curves import slower_decode, slower_elementwise, slower_gemm, slower_prefill
from sim.cli import run_command
from sim.cost.build import compile_cost
from sim.model import load_model
from sim.profile import HostOverhead, load_profile
from tests.data import shared_data
from workloads.errors import ConfigError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
HEADER = (
    "step,t_start_s,iter_s,n_prefill_tokens,n_decode_seqs,decode_ctx_tokens,n_preempted,n_running,n_waiting,"
    "kv_usage,prefill_detail"
)


def write_run(folder, profile, *, seed=0, noise=0.0, steps=120, enforce_eager=True, cpu=None, most_chunks=1):
    """A run whose steps take what the simulator's own price list says of `profile`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    args = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    meta = {
        "run": folder.name,
        "engine": "vllm",
        "version": "0",
        "model": CONFIG,
        "engine_args": args | {"enforce_eager": enforce_eager},
        "num_kv_blocks": 4096,
        "block_size": 16,
    } | ({} if cpu is None else {"cpu": cpu})
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.csv").write_text(
        "request_id,arrival_s,prompt_tokens,output_tokens,admit_s\na,0.0,10,3,0.0\n"
    )
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "enforce_eager": enforce_eager}
    cost = compile_cost(load_model(folder / "config.json"), profile, **limits)
    random, rows, now = np.random.default_rng(seed), [HEADER], 0.0
    for number in range(steps):
        decodes = int(random.integers(0, 65))
        mixed = random.random() < 0.5 or not decodes
        count = int(random.integers(1, most_chunks + 1)) if mixed else 0
        chunks = tuple(
            (int(random.integers(1, 1024 // count)), int(random.integers(0, 2048))) for _ in range(count)
        )
        chunk = sum(new for new, _ in chunks)
        context = int(decodes * random.integers(16, 4096))
        seconds = 1e-9 * cost.mixed_ns(decodes, context + decodes, context + decodes, chunks)
        seconds *= float(np.exp(noise * random.standard_normal()))
        detail = ";".join(f"a:{before}+{new}" for new, before in chunks)
        rows.append(f"{number},{now:.9f},{seconds:.9f},{chunk},{decodes},{context},0,1,0,0.1,{detail}")
        now += seconds
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    return folder


HOST = HostOverhead(base_s=2e-3, per_seq_s=2e-5, per_token_s=1e-6, call_s=0.0, source="known")


@pytest.fixture(scope="module")
def known():
    """H100 with slower kernels and a known host."""
    base = load_profile("h100_sxm")
    return base.model_copy(
        update={
            "gemm": {d: slower_gemm(c, 1.3) for d, c in base.gemm.items()},
            "decode_attention": {d: slower_decode(c, 2.0) for d, c in base.decode_attention.items()},
            "prefill_attention": {d: slower_prefill(c, 0.7) for d, c in base.prefill_attention.items()},
            "host": HOST,
        }
    )


def test_slower_curves_multiply_every_step(tmp_path):
    """Of an engine whose host costs nothing: all curves slower by a factor, all steps longer by it."""
    free = HostOverhead(base_s=0.0, call_s=0.0, source="test")
    plain = load_profile("h100_sxm").model_copy(update={"host": free})
    slow = plain.model_copy(
        update={
            "gemm": {d: slower_gemm(c, 3.0) for d, c in plain.gemm.items()},
            "decode_attention": {d: slower_decode(c, 3.0) for d, c in plain.decode_attention.items()},
            "prefill_attention": {d: slower_prefill(c, 3.0) for d, c in plain.prefill_attention.items()},
            "elementwise": slower_elementwise(plain.elementwise, 3.0),
        }
    )
    log = read_engine_log([write_run(tmp_path / "run", plain)])
    np.testing.assert_allclose(
        step_seconds(slow, log.model, log.runs[0]),
        3.0 * step_seconds(plain, log.model, log.runs[0]),
        rtol=1e-9,
    )


@pytest.mark.parametrize("enforce_eager", [True, False])
def test_steps_are_priced_as_the_simulator_prices_them(known, tmp_path, enforce_eager):
    log = read_engine_log([write_run(tmp_path / "run", known, enforce_eager=enforce_eager)])
    ours = step_seconds(known, log.model, log.runs[0])
    assert np.abs(ours / log.runs[0].duration_s - 1).max() < 2e-3  # the price list interpolates


def test_factors_of_a_base_profile_and_the_host_are_found_again(known, tmp_path):
    log = read_engine_log([write_run(tmp_path / f"run{i}", known, seed=i, noise=0.02) for i in range(3)])
    fitted = fit_engine_log(log, "mine", load_profile("h100_sxm"))
    for asked in ((1, 4096, 4096), (512, 28672, 4096)):
        assert fitted.gemm_s("bfloat16", *asked) == pytest.approx(known.gemm_s("bfloat16", *asked), rel=0.08)
    layout = ("bfloat16", 32, 8, 128, 0)
    for seqs, context in ((8, 8 * 2048), (64, 64 * 4096)):
        theirs = known.decode_attention_s(*layout, seqs, context)
        assert fitted.decode_attention_s(*layout, seqs, context) == pytest.approx(theirs, rel=0.15)
    assert fitted.host.base_s == pytest.approx(HOST.base_s, rel=0.4)
    assert fitted.host.call_s == 0.0
    assert max(error.median for error in errors_on(fitted, log)) < 0.03
    judged = cross_validate(log, "mine", load_profile("h100_sxm"))
    assert [error.run for error in judged] == ["run0", "run1", "run2"]
    for error in judged:
        assert error.median < 0.03
        assert abs(error.total) < 0.02


def test_a_single_run_is_judged_by_its_own_fifths(known, tmp_path):
    log = read_engine_log([write_run(tmp_path / "run", known)])
    judged = cross_validate(log, "mine", load_profile("h100_sxm"))
    assert len(judged) == 5
    assert sum(error.steps for error in judged) == len(log.runs[0])
    assert max(error.p90 for error in judged) < 0.05


def test_without_a_base_the_log_gives_rooflines_that_hold(known, tmp_path):
    log = read_engine_log([write_run(tmp_path / f"run{i}", known, seed=i) for i in range(2)])
    fitted = fit_engine_log(log, "mine")
    assert max(error.median for error in errors_on(fitted, log)) < 0.08
    assert set(fitted.gemm) == {"bfloat16"}
    assert fitted.gemm["bfloat16"].table is None


def test_blocks_of_rows_and_the_cost_of_each_prompt_are_found_again(known, tmp_path):
    """A CPU's products take whole blocks of rows, and its attention takes prompts one by one."""
    cpu = "Xeon (AVX512-BF16)"
    start = fit_engine_log(read_engine_log([write_run(tmp_path / "any", known, cpu=cpu)]), "any")
    (regime,) = start.prefill_attention["bfloat16"].regimes
    slow = regime.model_copy(update={"sequence_s": 2e-4, "flops_per_s": 1e12})
    (tile,) = start.gemm["bfloat16"].tiles
    blocks = start.gemm["bfloat16"].model_copy(
        update={"tiles": (tile.model_copy(update={"flops_per_s": 1e12}),), "bytes_per_s": 1e13}
    )
    engine = start.model_copy(
        update={
            "gemm": {"bfloat16": blocks},
            "host": HOST.model_copy(update={"per_token_s": 0.0}),
            "prefill_attention": {
                "bfloat16": start.prefill_attention["bfloat16"].model_copy(update={"regimes": (slow,)})
            },
        }
    )
    runs = [write_run(tmp_path / f"cpu{i}", engine, seed=i, cpu=cpu, most_chunks=12) for i in range(2)]
    log = read_engine_log(runs)
    assert log.row_block == 6
    fitted = fit_engine_log(log, "mine")
    one, six, seven = fitted.gemm_s("bfloat16", [1, 6, 7], 4096, 4096)
    assert (one, seven) == (pytest.approx(six, rel=1e-3), pytest.approx(2 * six, rel=1e-3))
    assert fitted.prefill_attention["bfloat16"].regimes[0].sequence_s == pytest.approx(2e-4, rel=0.05)
    assert fitted.gemm["bfloat16"].tiles[0].flops_per_s == pytest.approx(1e12, rel=0.05)
    assert max(error.p90 for error in errors_on(fitted, log)) < 0.02


def test_a_log_of_a_gpu_has_no_blocks_of_rows(known, tmp_path):
    assert read_engine_log([write_run(tmp_path / "run", known)]).row_block == 1


def test_a_base_of_another_kind_of_device_is_refused(known, tmp_path):
    slow = known.model_copy(update={"gemm": {d: slower_gemm(c, 1000.0) for d, c in known.gemm.items()}})
    log = read_engine_log([write_run(tmp_path / "run", slow)])
    with pytest.raises(ConfigError, match="another kind of device; leave --base out"):
        fit_engine_log(log, "mine", load_profile("h100_sxm"))


def test_the_steps_of_a_real_engine_are_predicted(tmp_path, capsys):
    """vLLM on a CPU: fitted to its calibration sweeps, asked about a served load of another day's speed."""
    folders = {
        run: shared_data("vllm_cpu_engine", run)
        for run in ("calib_prefill", "calib_decode", "A_chunk256_load40")
    }
    logs = [part for run in ("calib_prefill", "calib_decode") for part in ("--engine-log", str(folders[run]))]
    out = tmp_path / "vllm.json"
    held = ["--held-out", str(folders["A_chunk256_load40"])]
    assert run_command(["profile", "fit", *logs, *held, "--out", str(out), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["steps"] == 1710
    assert run["median"] < 0.10  # measured: 7.4%; batch-1 decode alone wanders between 13 and 23 ms
    assert abs(run["total"]) < 0.05  # measured: -3.6%
    profile = load_profile(out)
    assert profile.residuals[0].term == "engine steps"
    assert 0.010 < profile.host.base_s < 0.020  # about 15 ms in the data's own notes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --kernels DIR or --engine-log DIR"),
        (["--kernels", ".", "--engine-log", "."], "give either --kernels DIR or --engine-log DIR"),
        (
            ["--kernels", ".", "--base", "h100_sxm"],
            "--held-out, --base, --model and --scenario go with --engine-log",
        ),
        (["--engine-log", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_refusals_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["profile", "fit", *arguments, "--out", "x.json"]) == 2
    assert message in capsys.readouterr().err


def test_a_log_without_a_model_or_without_work_says_so(known, tmp_path):
    run = write_run(tmp_path / "run", known, steps=3)
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps({**meta, "model": "some name"}))
    with pytest.raises(ConfigError, match="no model config under 'model'; name one with --model"):
        read_engine_log([run])
    assert read_engine_log([run], "llama-3.1-8b").model.name == "llama-3.1-8b"
    (run / "steps.csv").write_text(f"{HEADER}\n0,0.0,0.1,0,0,0,0,0,0,0.0,\n")
    with pytest.raises(ConfigError, match="no step in which a token was computed"):
        read_engine_log([run], "llama-3.1-8b")
