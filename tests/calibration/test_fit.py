"""Fits: known parameters are recovered, shapes never seen are predicted, unusable rows are refused."""

from pathlib import Path

import numpy as np
import pytest

from calibration.collection import read_collection
from calibration.fit import fit_profile
from calibration.fit_decode import fit_decode
from calibration.fit_gemm import fit_gemm, hidden_by_host
from calibration.holdout import residuals
from calibration.regression import despiked, fit_positive, smooth
from calibration.tables import Table, TableError, clean
from sim.curves.gemm import GemmCurve
from sim.curves.local import smoother
from tests.calibration.kernel_rows import HBM, PEAK, decode_rows, gemm_rows, write_collection


def as_table(rows, name):
    columns = dict(rows)
    seconds = 1e-6 * columns.pop("time_us")
    return clean(Path("rows"), name, columns, seconds)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return read_collection(write_collection(tmp_path_factory.mktemp("kernels") / "h100_sxm"))


class TestRecovery:
    def test_a_roofline_is_found_from_its_rows(self, collection):
        curve = fit_gemm(as_table(gemm_rows(), "gemm"), "bfloat16", collection.device)
        assert curve.bytes_per_s == pytest.approx(HBM, rel=0.05)
        assert curve.launch_s == pytest.approx(3e-6, rel=0.25)
        m, n, k = 4096, 6144, 5120
        assert float(curve.seconds(m, n, k)) == pytest.approx(3e-6 + 2 * m * n * k / PEAK, rel=0.06)

    def test_shapes_left_out_are_predicted(self, collection):
        table = as_table(gemm_rows(), "gemm")
        held = (table["n"] == 3072) & (table["k"] == 4096)
        curve = fit_gemm(table.where(~held), "bfloat16", collection.device)
        asked = table.where(held)
        wanted = asked.time_s
        got = curve.seconds(asked.number("m"), asked.number("n"), asked.number("k"))
        assert np.abs(got / wanted - 1).max() < 0.1

    def test_bandwidth_of_decode_is_found(self, collection):
        curve = fit_decode(as_table(decode_rows(), "attention_decode"), "bfloat16", collection.device)
        (regime,) = curve.regimes
        assert regime.bytes_per_s == pytest.approx(2.5e12, rel=0.02)
        assert regime.launch_s == pytest.approx(8e-6, rel=0.05)
        seconds = float(curve.seconds(24, 6, 128, 0, 48, 48 * 3000))
        assert seconds == pytest.approx(8e-6 + 4 * 128 * 6 * 48 * 3000 / 2.5e12, rel=0.04)

    def test_the_slow_region_of_hopper_stays(self, collection):
        rows = gemm_rows()
        rows["time_us"] = np.where(rows["m"] == 32, 1.3 * rows["time_us"], rows["time_us"])
        curve = fit_gemm(as_table(rows, "gemm"), "bfloat16", collection.device)
        quick, slow = curve.seconds([16, 32], 4096, 4096)
        assert slow / quick == pytest.approx(1.3, rel=0.05)

    def test_a_spike_does_not_move_its_neighbours(self, collection):
        rows = gemm_rows()
        spike = (rows["m"] == 64) & (rows["n"] == 4096) & (rows["k"] == 4096)
        truth = rows["time_us"][spike][0] * 1e-6
        rows["time_us"] = np.where(spike, 3 * rows["time_us"], rows["time_us"])
        curve = fit_gemm(as_table(rows, "gemm"), "bfloat16", collection.device)
        assert float(curve.seconds(64, 4096, 4096)) == pytest.approx(truth, rel=0.2)

    def test_rows_of_the_host_are_told_from_rows_of_the_kernel(self, collection):
        kernel = fit_gemm(as_table(gemm_rows(), "gemm"), "bfloat16", collection.device)
        rows = gemm_rows("fp8_block")
        rows["time_us"] = np.maximum(rows["time_us"], 50.0)
        table = as_table(rows, "gemm")
        hidden, _ = hidden_by_host(table, kernel)
        assert hidden[table.time_s < 51e-6].all()
        assert not hidden[table.time_s > 60e-6].any()
        curve = fit_gemm(table, "fp8_block", collection.device, stand_in=kernel)
        assert float(curve.seconds(1, 512, 512)) < 10e-6

    def test_a_whole_profile_says_how_good_it_is(self, collection):
        profile = fit_profile(collection, created="2026-01-01")
        found = residuals(collection, profile)
        assert [r.term for r in found] == [
            "gemm/bfloat16",
            "prefill_attention/bfloat16",
            "decode_attention/bfloat16",
        ]
        for residual in found:
            assert residual.median < 0.05
            assert residual.rows > 0


class TestTools:
    def test_positive_parameters_of_a_law(self):
        x = np.geomspace(1, 1e4, 200)
        measured = 2e-6 + x / 3e9
        low, start, high = np.array([1e-8, 1e6]), np.array([1e-5, 1e8]), np.array([1e-3, 1e12])
        found = fit_positive(lambda p: p[0] + x / p[1], measured, (low, start, high))
        assert found == pytest.approx([2e-6, 3e9], rel=1e-3)

    def test_local_regression_is_exact_on_a_plane_and_sums_to_one(self):
        rng = np.random.default_rng(0)
        points, asked = rng.uniform(0, 4, (200, 2)), rng.uniform(1, 3, (20, 2))
        plane = 1 + 0.3 * points @ [1.0, -2.0]
        assert smooth(points, plane, asked, np.ones(2)) == pytest.approx(
            1 + 0.3 * asked @ [1.0, -2.0], abs=0.02
        )
        assert smoother(points, asked, np.ones(2)).sum(axis=1) == pytest.approx(np.ones(20))

    def test_far_away_the_nearest_values_hold(self):
        points = np.arange(5.0)[:, None]
        assert smooth(points, points[:, 0], np.array([[50.0]]), np.ones(1))[0] == pytest.approx(4.0, abs=0.1)

    def test_a_planted_spike_is_found_alone(self):
        points = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
        values = np.tile(0.1 * points.sum(axis=1)[:, None], (1, 3))
        values[14, 1] += 0.9
        clean_values, spike = despiked(points, values, np.ones(2), 0.3)
        assert np.argwhere(spike).tolist() == [[14, 1]]
        assert clean_values[14, 1] == pytest.approx(0.1 * points[14].sum(), abs=0.05)


class TestRows:
    def test_repeats_are_merged_by_their_median(self):
        columns = {"gpus": np.array([2, 2, 2, 4]), "message_bytes": np.array([8, 8, 8, 8])}
        table = clean(Path("x"), "allreduce", columns, np.array([1.0, 9.0, 2.0, 5.0]))
        assert sorted(zip(table["gpus"], table.time_s, strict=True)) == [(2, 2.0), (4, 5.0)]
        assert table.merged == 2

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
    def test_times_that_are_none_are_refused_by_row(self, bad):
        columns = {"gpus": np.array([2, 4])}
        with pytest.raises(TableError, match=r"some\.parquet: row 2: time is .* must be positive"):
            clean(Path("some.parquet"), "allreduce", columns, np.array([1e-6, bad]))

    def test_an_empty_table_is_refused(self):
        with pytest.raises(TableError, match="no rows"):
            clean(Path("x"), "gemm", {"m": np.array([])}, np.array([]))

    def test_a_missing_column_is_named(self, tmp_path):
        rows = gemm_rows()
        rows.pop("k")
        write_collection(tmp_path / "h100_sxm", gemm=rows)
        with pytest.raises(TableError, match=r"gemm\.parquet: .*\bk\b"):
            read_collection(tmp_path / "h100_sxm")

    def test_a_file_that_is_no_table_is_one_line(self, tmp_path):
        folder = write_collection(tmp_path / "h100_sxm")
        (folder / "gemm.parquet").write_text("no parquet")
        with pytest.raises(TableError, match=r"gemm\.parquet") as caught:
            read_collection(folder)
        assert "\n" not in str(caught.value)

    def test_a_broken_system_description_is_one_line(self, tmp_path):
        folder = write_collection(tmp_path / "h100_sxm")
        (folder / "system.yaml").write_text("gpu: {mem_bw: 1}")
        with pytest.raises(TableError, match=r"system\.yaml: not a system description") as caught:
            read_collection(folder)
        assert "\n" not in str(caught.value)

    def test_several_systems_ask_which(self, tmp_path):
        write_collection(tmp_path / "h100_sxm")
        write_collection(tmp_path / "l40s")
        with pytest.raises(TableError, match=r"--system h100_sxm\|l40s"):
            read_collection(tmp_path)
        assert read_collection(tmp_path, "l40s").name == "l40s"


def test_a_bare_curve_needs_no_table(collection):
    curve = fit_gemm(as_table(gemm_rows(), "gemm"), "bfloat16", collection.device)
    bare = GemmCurve.model_validate(curve.model_dump() | {"table": None})
    m = np.array([1.0, 100.0])
    assert bare.seconds(m, 4096, 4096) == pytest.approx(curve.base(m, np.float64(4096), np.float64(4096)))


def test_tables_select_rows():
    table = Table("t", {"a": np.array([1, 2, 2])}, np.array([1.0, 2.0, 3.0]))
    assert table.only(a=2).time_s.tolist() == [2.0, 3.0]
