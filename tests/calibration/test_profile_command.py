"""`servetwin profile`: what it prints, writes and refuses."""

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.cli import profile
from calibration.tables import TableError
from sim.profile import HostOverhead, load_profile
from tests.calibration.kernel_rows import SYSTEM_YAML, decode_rows, gemm_rows, prefill_rows, write_collection
from workloads.errors import InputError

RAW_NAMES = {
    "dtype": "gemm_dtype",
    "kv_dtype": "kv_cache_dtype",
    "batch": "batch_size",
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "window": "window_size",
    "past_kv": "step",
    "kv_len": "step",
}


def run(*arguments):
    return profile(list(map(str, arguments)), result_action="return_value")


def document(capsys):
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("kernels") / "h100_sxm").parent


@pytest.fixture(scope="module")
def fitted(kernels, tmp_path_factory):
    path = tmp_path_factory.mktemp("fitted") / "mine.json"
    run("fit", "--kernels", kernels, "--system", "h100_sxm", "--out", path, "--json")
    return path


def write_package(root):
    """The same rows as aiconfigurator-core lays them out: other names, milliseconds, tokens cached as `step`."""
    data = root / "systems" / "data" / "h100_sxm"
    tables = {
        "gemm/vllm/0.24.0/gemm_perf": gemm_rows(),
        "gemm/vllm/0.9.0/gemm_perf": gemm_rows() | {"time_us": 100 * gemm_rows()["time_us"]},
        "attention/vllm/0.24.0/context_attention_perf": prefill_rows(),
        "attention/vllm/0.24.0/generation_attention_perf": decode_rows(),
    }
    for name, rows in tables.items():
        if "kv_len" in rows:
            rows["kv_len"] = rows["kv_len"] - 1
        columns = {RAW_NAMES.get(column, column): values for column, values in rows.items()}
        columns["latency"] = columns.pop("time_us") * 1e-3
        path = data / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
    (root / "systems" / "h100_sxm.yaml").write_text(SYSTEM_YAML)
    return root


def test_list_names_all_shipped_profiles(capsys):
    run("list", "--json")
    found, _ = document(capsys)
    names = [one["name"] for one in found["profiles"]]
    assert {"h100_sxm", "a100_sxm", "rtx_pro_6000"} <= set(names)
    run("list")
    assert "h100_sxm" in capsys.readouterr().out


def test_show_gives_sources_and_residuals(capsys):
    run("show", "h200_sxm", "--json")
    found, _ = document(capsys)
    assert found["content_hash"] == load_profile("h200_sxm").content_hash
    assert "gemm rows of dtype bfloat16" in found["sources"]["gemm/bfloat16"]
    assert {"median", "p90", "roofline_p90", "spike_share"} <= set(found["residuals"][0])
    run("show", "h200_sxm")
    assert "held out" in capsys.readouterr().out


def test_fit_writes_a_profile_that_knows_the_rows(fitted):
    mine = load_profile(fitted)
    assert mine.name == "h100_sxm"
    assert {r.term for r in mine.residuals} == {
        "gemm/bfloat16",
        "prefill_attention/bfloat16",
        "decode_attention/bfloat16",
    }
    assert float(mine.gemm_s("bfloat16", 1, 8192, 8192)) == pytest.approx(3e-6 + 2 * 8192**2 / 3e12, rel=0.05)


def test_fit_prints_one_document_and_progress_beside_it(kernels, tmp_path, capsys):
    run("fit", "--kernels", kernels, "--system", "h100_sxm", "--out", tmp_path, "--json")
    found, progress = document(capsys)
    assert [one["file"] for one in found["written"]] == [str(tmp_path / "h100_sxm.json")]
    assert "gemm bfloat16" in progress


def test_a_file_is_replaced_only_by_force_and_keeps_its_host_overhead(kernels, fitted, tmp_path):
    path = tmp_path / "h100_sxm.json"
    path.write_text(load_profile(fitted).with_host(HostOverhead(base_s=1e-3, source="t")).to_json())
    with pytest.raises(InputError, match="--force"):
        run("fit", "--kernels", kernels, "--system", "h100_sxm", "--out", path)
    run("fit", "--kernels", kernels, "--system", "h100_sxm", "--out", path, "--force")
    assert load_profile(path).host.base_s == 1e-3


def test_validate_refits_without_whole_shapes(kernels, fitted, capsys):
    run("validate", fitted, "--kernels", kernels, "--json")
    found, _ = document(capsys)
    gemm = next(one for one in found["residuals"] if one["term"] == "gemm/bfloat16")
    assert gemm["median"] < 0.05
    assert gemm["roofline_median"] < 0.02  # the rows are a roofline
    run("validate", fitted, "--kernels", kernels)
    assert "roofline" in capsys.readouterr().out


def test_validate_judges_the_tables_that_are_there_and_names_the_others(kernels, tmp_path, capsys):
    path = tmp_path / "full.json"
    moe = load_profile("h100_sxm").moe
    reduce = load_profile("h100_sxm").all_reduce
    run("fit", "--kernels", kernels, "--system", "h100_sxm", "--out", path)
    own = load_profile(path)
    update = {
        "moe": moe,
        "all_reduce": reduce,
        "gemm": own.gemm | {"fp8": load_profile("h100_sxm").gemm["fp8"]},
    }
    path.write_text(own.model_copy(update=update).to_json())
    capsys.readouterr()
    run("validate", path, "--kernels", kernels, "--json")
    found, said = document(capsys)
    assert {one["term"].split("/")[0] for one in found["residuals"]} == {
        "gemm",
        "prefill_attention",
        "decode_attention",
    }
    lines = said.splitlines()
    assert "no moe.parquet" in lines[0]
    assert "no allreduce.parquet" in lines[1]
    assert "no rows of fp8 in gemm.parquet" in lines[2]


def test_import_reads_the_package_by_definition(fitted, tmp_path, capsys):
    package = write_package(tmp_path / "package")
    path = tmp_path / "imported.json"
    run("import", "h100_sxm", "--package", package, "--out", path)
    mine, theirs = load_profile(fitted), load_profile(path)
    assert theirs.engine == "vLLM 0.24.0"
    m = np.array([1.0, 100.0, 4000.0])
    assert theirs.gemm_s("bfloat16", m, 3000, 5000) == pytest.approx(
        mine.gemm_s("bfloat16", m, 3000, 5000), rel=1e-3
    )
    for term, layout in (("decode_attention_s", (16, 5000)), ("prefill_attention_s", (900, 300))):
        theirs_s, mine_s = (getattr(p, term)("bfloat16", 32, 8, 128, 0, *layout) for p in (theirs, mine))
        assert float(theirs_s) == pytest.approx(float(mine_s), rel=1e-3)
    run("import", "h100_sxm", "--package", package, "--version", "0.9.0", "--out", path, "--force")
    assert load_profile(path).engine == "vLLM 0.9.0"
    assert float(load_profile(path).gemm_s("bfloat16", 1, 4096, 4096)) > 1e-4


def test_import_names_the_systems_of_the_package_and_the_extra(tmp_path, monkeypatch):
    package = write_package(tmp_path / "package")
    with pytest.raises(TableError, match="must be one of h100_sxm, not tpu"):
        run("import", "tpu", "--package", package, "--out", tmp_path / "x.json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(TableError, match=r"servetwin\[silicon\]"):
        run("import", "h100_sxm", "--out", tmp_path / "x.json")


def test_diff_says_how_much_longer_the_second_takes(capsys):
    run("diff", "h100_sxm", "a100_sxm", "--json")
    found, _ = document(capsys)
    gemm = next(one for one in found["changes"] if one["term"] == "gemm/bfloat16")
    assert gemm["median"] > 0.5
    assert "gemm/fp8" in found["missing"]
    run("diff", "h100_sxm", "h100_sxm", "--json")
    found, _ = document(capsys)
    assert found["same"]
    assert all(one["lowest"] == one["highest"] == 0 for one in found["changes"])
    run("diff", "h100_sxm", "a100_sxm")
    assert "only in one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "h1000"], "no profile h1000"),
        (["validate", "h100_sxm", "--kernels", "nowhere"], "nowhere: no such directory"),
        (["fit", "--kernels", ".", "--out", "x.json"], "no kernel tables"),
        (["fit", "--kernels", "nowhere", "--out", "x.json"], "nowhere: no such directory"),
        (["import", "h100_sxm", "--package", "nowhere", "--out", "x.json"], "nowhere: no such directory"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
