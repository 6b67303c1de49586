"""The promised accuracy, on the real kernel tables: whole shapes held out, and tables of other origin."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from calibration.collection import read_collection
from calibration.fit import fit_profile
from calibration.holdout import residuals
from calibration.tables import Table
from sim.profile import load_profile
from tests.calibration.kernel_rows import kernels_dir

MEDIAN, P90 = 0.05, 0.15
SYSTEMS = {
    "h100_sxm": "h100_sxm",
    "h200_sxm": "h200_sxm",
    "b200_sxm": "b200_sxm",
    "a100_sxm": "a100_sxm",
    "l40s": "l40s",
    "rtx_pro_6000": "rtx_pro_6000_server",
}
BARRED_GEMM = ("h100_sxm", "h200_sxm", "a100_sxm")


def of_interest(table: Table) -> Table:
    """16-bit GEMM and all attention: the terms with a bar."""
    return table.only(dtype="bfloat16") if table.name == "gemm" else table


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_promised_accuracy_is_recorded_in_the_shipped_profile(name):
    within_the_bars(name, load_profile(name).residuals)


def within_the_bars(name, found):
    barred = [one for one in found if one.term.startswith(("prefill_attention", "decode_attention"))]
    barred += [one for one in found if one.term == "gemm/bfloat16" and name in BARRED_GEMM]
    assert len(barred) >= 2
    for one in barred:
        assert one.median <= MEDIAN, one
        assert one.p90 <= P90, one
    for one in found:
        assert one.median < one.roofline_median, one


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100_sxm", "a100_sxm", "l40s"])
def test_shapes_held_out_are_met(name):
    """What the record says, found again: the others by `servetwin profile validate NAME --kernels DIR`."""
    rows = read_collection(kernels_dir(), SYSTEMS[name])
    for extra in ("moe", "allreduce"):
        rows.tables.pop(extra)
    rows.tables["gemm"] = of_interest(rows.tables["gemm"])
    within_the_bars(name, residuals(rows, fit_profile(rows)))


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_shipped_profile_is_the_fit_of_these_rows(name):
    """By its own record of rows and errors: a profile left behind by a change of the tables shows here."""
    rows = read_collection(kernels_dir(), SYSTEMS[name])
    shipped = load_profile(name)
    assert shipped.engine == rows.engine
    for dtype, curve in shipped.gemm.items():
        assert f"{len(rows.tables['gemm'].only(dtype=dtype))} rows" in curve.source
    gemm = rows.tables["gemm"].only(dtype="bfloat16")
    big = gemm.where((gemm.number("n") >= 512) & (gemm.number("k") >= 512))
    got = shipped.gemm_s("bfloat16", big.number("m"), big.number("n"), big.number("k"))
    assert np.median(np.abs(got / big.time_s - 1)) < 0.05


class TestAgainstAnotherProfiler:
    """RTX PRO 6000 as LLMServingSim measured it: vLLM 0.19, whole layers in eager mode."""

    @pytest.fixture
    def profile(self):
        return load_profile("rtx_pro_6000")

    @pytest.fixture
    def attention(self):
        path = kernels_dir() / "llmservingsim" / "RTXPRO6000" / "Llama-3.1-8B" / "tp1" / "attention.parquet"
        columns = pq.read_table(path).to_pydict()
        return {name: np.array(values, dtype=float) for name, values in columns.items()}

    def test_prefill_chunks_with_context(self, profile, attention):
        """No row of the fit has context: the form by equal work is judged here. Median 9 %, P90 25 %."""
        rows = (attention["n_decode"] == 0) & (attention["kv_prefill"] > 0)
        new, context = attention["prefill_chunk"][rows], attention["kv_prefill"][rows]
        got = profile.prefill_attention_s("bfloat16", 32, 8, 128, 0, new, context)
        error = np.abs(1e6 * got / attention["time_us"][rows] - 1)
        assert np.median(error) < 0.12
        assert np.quantile(error, 0.9) < 0.3

    def test_decode_needs_a_cache_read_from_hbm(self, profile, attention):
        """Its cache was not left in L2 between launches: P90 16 % from HBM, 42 % as in the collection."""
        rows = attention["prefill_chunk"] == 0
        seqs, context = attention["n_decode"][rows], attention["kv_decode"][rows]
        measured = attention["time_us"][rows]
        errors = {}
        for cold in (False, True):
            got = profile.decode_attention_s("bfloat16", 32, 8, 128, 0, seqs, seqs * context, from_hbm=cold)
            errors[cold] = np.abs(1e6 * got / measured - 1)
        assert np.median(errors[True]) < 0.08
        assert np.quantile(errors[True], 0.9) < 0.2 < np.quantile(errors[False], 0.9)

    @pytest.mark.parametrize(
        ("layer", "n", "k"),
        [
            ("qkv_proj", 6144, 4096),
            ("o_proj", 4096, 4096),
            ("gate_up_proj", 28672, 4096),
            ("down_proj", 4096, 14336),
        ],
    )
    def test_real_layers_off_the_grid(self, profile, layer, n, k):
        path = kernels_dir() / "llmservingsim" / "RTXPRO6000" / "Llama-3.1-8B" / "tp1" / "dense.parquet"
        rows = [row for row in pq.read_table(path).to_pylist() if row["layer"] == layer]
        got = profile.gemm_s("bfloat16", [row["tokens"] for row in rows], n, k)
        error = np.abs(1e6 * got / np.array([row["time_us"] for row in rows]) - 1)
        assert np.median(error) < 0.06
        assert np.quantile(error, 0.9) < 0.15

    def test_unequal_contexts_by_their_sum(self):
        """How wrong the sum of contexts is, by their own rows: an equal batch at the mean against the real one."""
        path = kernels_dir() / "llmservingsim" / "RTXPRO6000" / "Llama-3.1-8B" / "tp1" / "skew.parquet"
        rows = pq.read_table(path, columns=["t_mean_us", "t_skew_us"]).to_pydict()
        error = np.array(rows["t_mean_us"]) / np.array(rows["t_skew_us"]) - 1
        assert -0.06 < np.median(error) < 0
        assert np.quantile(np.abs(error), 0.9) < 0.3
