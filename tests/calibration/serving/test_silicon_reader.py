"""Tables of closed-loop runs: which rows are read, which are scored apart and why, and what scenario a row is."""

from __future__ import annotations

import csv

import pytest

from calibration.serving.readers.silicon import (
    IMPOSSIBLE,
    KV_FLAG,
    KV_LIMITED,
    NOT_MONOTONE,
    OTHER_IMAGE,
    read,
    recognises,
)
from tests.data import shared_data
from workloads.errors import InputError

ROW = {
    "row_id": "first",
    "curve_id": "curve",
    "source_class": "inferencex",
    "source": "a client",
    "image": "v1",
    "backend": "vllm",
    "system": "h100_sxm",
    "model": "llama-3.1-8b",
    "model_path": "meta-llama/Llama-3.1-8B",
    "precision": "bf16",
    "gemm_quant": "",
    "in_kernel_scope": "True",
    "isl": "1000",
    "osl": "500",
    "concurrency": "4",
    "tp": "1",
    "attn_dp": "1",
    "moe_tp": "1",
    "moe_ep": "1",
    "ttft_ms": "100",
    "tpot_ms": "12",
    "flag": "",
}


@pytest.fixture
def table(tmp_path):
    """Write a table of runs, each the usual one but for what is said; gives its path."""

    def write(*rows, columns=tuple(ROW), name="table.csv"):
        path = tmp_path / name
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**ROW, **row} for row in rows)
        return path

    return write


def apart(path):
    """Why each row is scored apart, by its name."""
    return {run.name: run.parts[0].apart for run in read(path)}


def at(concurrency, tpot, name=None, **more):
    return {
        "row_id": name or f"c{concurrency}",
        "concurrency": str(concurrency),
        "tpot_ms": str(tpot),
        **more,
    }


class TestNotMonotone:
    def test_a_row_slower_than_at_twice_its_concurrency(self, table):
        path = table(at(4, 12), at(8, 20), at(16, 15), at(32, 30))
        assert apart(path) == {"c4": None, "c8": NOT_MONOTONE, "c16": None, "c32": None}

    def test_the_order_of_rows_does_not_matter(self, table):
        rows = [at(4, 12), at(8, 20), at(16, 15), at(32, 30)]
        assert apart(table(*reversed(rows))) == apart(table(*rows))

    def test_equal_times_and_other_steps_are_none_of_it(self, table):
        assert set(apart(table(at(4, 12), at(8, 12), at(24, 10))).values()) == {None}

    def test_another_curve_is_no_witness(self, table):
        assert set(apart(table(at(4, 20), at(8, 10, curve_id="other"))).values()) == {None}

    def test_a_row_that_is_not_read_is_no_witness(self, table):
        assert apart(table(at(4, 20), at(8, 10, flag="repeats disagree"))) == {"c4": None}


class TestOtherImage:
    def test_what_is_unlike_the_rest_of_its_curve(self, table):
        path = table(at(4, 12), at(8, 13, image="v2"), at(16, 14), at(32, 15, curve_id="other", image="v2"))
        assert apart(path) == {"c4": None, "c8": OTHER_IMAGE, "c16": None, "c32": None}

    def test_of_as_many_of_each_the_first_by_name_is_usual(self, table):
        rows = [at(4, 12, image="v2"), at(8, 13, image="v1")]
        for ordered in (rows, rows[::-1]):
            assert apart(table(*ordered)) == {"c4": OTHER_IMAGE, "c8": None}


def least_s(row):
    """The least that a request can take at this load, worked out for Llama-3.1-8B in 16 bits on one H100.

    8.03e9 parameters, 128 KiB of KV a token; 989.5 TFLOP/s and 3.35 TB/s by the vendor. Known clients draw nine tenths
    of the nominal lengths, and have KV in 8 bits.
    """
    known = row["source_class"] == "inferencex"
    seats, kv = int(row["concurrency"]), 65536 if known else 131072
    isl, osl = (int(row[name]) * (0.9 if known else 1.0) for name in ("isl", "osl"))
    prompts = seats * isl * 2 * 8.03e9 / 989.5e12
    steps = osl * (2 * 8.03e9 + seats * (isl + osl / 2) * kv) / 3.35e12
    return prompts + steps


class TestImpossible:
    ROW = at(16, 0, source_class="nvidia_internal", source="odd")

    def tpot(self, share, **change):
        """TPOT [ms] with which a request takes that share of the least it can, TTFT included."""
        row = {**ROW, **self.ROW, **change}
        tokens = int(row["osl"]) * (0.9 if row["source_class"] == "inferencex" else 1.0)
        return str((1e3 * share * least_s(row) - float(row["ttft_ms"])) / (tokens - 1))

    @pytest.mark.parametrize("source_class", ["nvidia_internal", "inferencex"])
    @pytest.mark.parametrize("seats", ["16", "128"])
    def test_sooner_than_prompts_and_steps_take_on_the_vendors_figures(self, table, source_class, seats):
        row = {**self.ROW, "source_class": source_class, "concurrency": seats}
        for share, reason in ((1.01, None), (0.99, IMPOSSIBLE)):
            tpot = self.tpot(share, source_class=source_class, concurrency=seats)
            assert apart(table({**row, "tpot_ms": tpot})) == {"c16": reason}

    def test_nothing_of_its_source_is_trusted(self, table):
        odd = {**self.ROW, "tpot_ms": self.tpot(0.9)}
        fine = at(4, 12, source="odd", curve_id="another", model="qwen3-8b")
        other = at(4, 12, "other", source="a client", curve_id="third")
        assert apart(table(odd, fine, other)) == {"c16": IMPOSSIBLE, "c4": IMPOSSIBLE, "other": None}

    def test_models_with_experts_are_not_judged(self, table):
        row = at(4, 0.001, model="gpt-oss-120b", ttft_ms="0.001")
        assert apart(table(row)) == {"c4": None}
        assert apart(table({**row, "model": "llama-3.1-8b"})) == {"c4": IMPOSSIBLE}

    def test_a_system_without_a_profile_is_not_judged(self, table):
        """It is read, so that a profile can be given for it."""
        (run,) = read(table(at(4, 1e-6, system="another_gpu", ttft_ms="0.001")))
        assert run.parts[0].apart is None
        assert run.scenario.hardware.gpu == "another_gpu"

    def test_more_gpus_are_faster(self, table):
        row = {**self.ROW, "tpot_ms": self.tpot(0.6)}
        assert apart(table(row)) == {"c16": IMPOSSIBLE}
        assert apart(table({**row, "tp": "2"})) == {"c16": None}


def test_rows_limited_by_kv_memory(table):
    assert apart(table(at(4, 12), at(8, 13, flag=KV_FLAG))) == {"c4": None, "c8": KV_LIMITED}


def test_one_reason_a_row_the_weightiest_first(table):
    """What was measured of nothing real; then load; then the engine; then noise."""
    odd = {"flag": KV_FLAG, "image": "v2"}
    rows = [at(4, 12, image="v1"), at(8, 99, **odd), at(16, 20), at(32, 30, image="v1")]
    assert apart(table(*rows))["c8"] == KV_LIMITED
    assert apart(table(*[row | {"flag": ""} for row in rows]))["c8"] == OTHER_IMAGE
    assert apart(table(*[row | {"flag": "", "image": "v1"} for row in rows]))["c8"] == NOT_MONOTONE
    impossible = at(2, 1e-6, ttft_ms="0.001", curve_id="elsewhere")
    assert set(apart(table(*rows, impossible)).values()) == {IMPOSSIBLE}


class TestRowsLeftOut:
    @pytest.mark.parametrize(
        "change",
        [
            {"in_kernel_scope": "False"},
            {"flag": "repeats disagree"},
            {"concurrency": ""},
            {"attn_dp": "2"},
            {"moe_ep": "2"},
            {"model": "gpt-oss-120b", "tp": "2", "moe_tp": "1"},
        ],
    )
    def test_what_cannot_be_simulated_or_trusted(self, table, change):
        path = table({"row_id": "kept"}, {"row_id": "left", **change})
        assert list(apart(path)) == ["kept"]

    @pytest.mark.parametrize("change", [{"model": "gpt-oss-120b", "tp": "2", "moe_tp": "2"}, {"tp": "2"}])
    def test_tensor_parallelism_is_read(self, table, change):
        """A dense model has no experts to share out, whatever its row says of them."""
        (run,) = read(table(change))
        assert run.scenario.hardware.tensor_parallel_size == 2

    def test_no_rows_are_no_runs(self, table):
        assert read(table()) == []


class TestScenario:
    def test_of_a_known_client(self, table):
        (run,) = read(table(at(8, 12)))
        load, engine = run.scenario.workload, run.scenario.engine
        assert load.input_tokens.uniform == (800, 1000)
        assert load.output_tokens.uniform == (400, 500)
        assert (load.max_concurrency, load.num_requests) == (8, 80)
        assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len) == (8, 8192, 1756)
        assert engine.async_scheduling
        assert (run.name, run.curve, run.workload, run.caveats) == ("c8", "curve", None, ())
        assert dict(run.parts[0].measured) == {"mean_tpot_ms": 12.0, "mean_ttft_ms": 100.0}
        assert run.labels["concurrency"] == 8
        assert run.labels["model"] == "llama-3.1-8b"

    def test_of_a_client_that_is_not_known_tpot_alone_is_taken(self, table):
        (run,) = read(table({"source_class": "nvidia_internal"}))
        load, engine = run.scenario.workload, run.scenario.engine
        assert (load.input_tokens, load.output_tokens) == (1000, 500)
        assert not engine.async_scheduling
        assert engine.kv_cache_dtype == "auto"
        assert dict(run.parts[0].measured) == {"mean_tpot_ms": 12.0}
        assert run.caveats == ("what the client did is not known: TPOT alone is scored",)

    def test_seats_never_exceed_the_budget_of_tokens(self, table):
        (run,) = read(table(at(10000, 12, ttft_ms="1e9")))
        assert (run.scenario.engine.max_num_seqs, run.scenario.engine.max_num_batched_tokens) == (
            10000,
            10000,
        )

    @pytest.mark.parametrize(
        ("system", "source_class", "seats", "mode"),
        [
            ("b200_sxm", "inferencex", 512, "full_decode_only"),
            ("b200_sxm", "nvidia_internal", 512, "full_and_piecewise"),
            ("h100_sxm", "inferencex", 4, "full_and_piecewise"),
            ("h200_sxm", "nvidia_internal", 4, "full_and_piecewise"),
        ],
    )
    def test_graphs_and_seats_by_system(self, table, system, source_class, seats, mode):
        (run,) = read(table({"system": system, "source_class": source_class}))
        assert run.scenario.hardware.gpu == system
        assert (run.scenario.engine.max_num_seqs, run.scenario.engine.cudagraph_mode) == (seats, mode)

    @pytest.mark.parametrize(
        ("system", "model", "dtype"),
        [
            ("h100_sxm", "llama-3.1-8b", "fp8"),
            ("h100_sxm", "gpt-oss-120b", "auto"),
            ("b200_sxm", "gpt-oss-120b", "fp8"),
            ("b200_sxm", "llama-3.1-70b", "fp8"),
        ],
    )
    def test_kv_in_8_bits_where_the_benchmark_scripts_ask_for_it(self, table, system, model, dtype):
        (run,) = read(table({"system": system, "model": model}))
        assert run.scenario.engine.kv_cache_dtype == dtype

    @pytest.mark.parametrize(
        ("model", "path", "quantised", "dtype"),
        [
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "", "auto"),
            ("llama-3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "fp8"),
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "fp8_block", "fp8_block"),
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "nvfp4", "nvfp4"),
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "bfloat16", "bfloat16"),
            ("gpt-oss-120b", "openai/gpt-oss-120b", "bfloat16", "auto"),
            ("qwen3-32b", "Qwen/Qwen3-32B", "fp8", "fp8"),
            ("qwen3-32b", "Qwen/Qwen3-32B-FP8", "fp8", "fp8_block"),
        ],
    )
    def test_weights_as_the_row_or_the_checkpoint_has_them(self, table, model, path, quantised, dtype):
        (run,) = read(table({"model": model, "model_path": path, "gemm_quant": quantised}))
        assert run.scenario.hardware.weight_dtype == dtype


class TestBadTables:
    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(InputError, match=r"none\.csv: cannot be read \(No such file"):
            read(tmp_path / "none.csv")
        assert not recognises(tmp_path / "none.csv")

    @pytest.mark.parametrize(
        "column", ["in_kernel_scope", "concurrency", "curve_id", "tpot_ms", "isl", "source"]
    )
    def test_a_column_that_is_not_there(self, table, column):
        path = table({}, columns=[name for name in ROW if name != column])
        with pytest.raises(InputError, match=rf"table\.csv: no column {column}$"):
            read(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tpot_ms": "fast"}, "fast"),
            ({"concurrency": "four"}, "four"),
            ({"tpot_ms": "nan"}, r"table\.csv: row first: tpot_ms is 'nan'; a number above 0"),
            ({"tp": "0"}, r"table\.csv: row first: tp is '0'; a whole number, 1 or more"),
            ({"gemm_quant": "int3"}, "gemm_quant is 'int3'; known are fp8"),
            ({"model": "no-such-model"}, "no-such-model"),
        ],
    )
    def test_a_value_that_cannot_be(self, table, change, message):
        with pytest.raises(InputError, match=message):
            read(table(change))

    def test_which_tables_are_its_own(self, table):
        assert recognises(table({}))
        assert not recognises(table({"backend": "another"}))
        assert not recognises(table())
        assert not recognises(table({}, columns=[name for name in ROW if name != "source_class"]))


@pytest.mark.parametrize("name", ["dense_vllm.csv", "moe_vllm.csv"])
def test_the_measured_tables(name):
    path = shared_data("silicon_e2e", name)
    assert recognises(path)
    runs = read(path)
    assert len({run.name for run in runs}) == len(runs) > 50
    reasons = {run.parts[0].apart for run in runs}
    assert None in reasons
    assert reasons <= {None, IMPOSSIBLE, KV_LIMITED, OTHER_IMAGE, NOT_MONOTONE}
    assert sum(run.parts[0].apart is None for run in runs) > len(runs) / 2
