"""The profile: laws of its terms, its file, what it refuses."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.curves.comm import CommCurve
from sim.curves.prefill import causal_area
from sim.curves.table import LogTable
from sim.profile import HostOverhead, Profile, load_profile, shipped_profiles
from workloads.errors import ConfigError

SHIPPED = ("a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s", "rtx_pro_6000")
LAYOUT = (32, 8, 128, 0)
HOST_SECONDS = [name for name in HostOverhead.model_fields if name.endswith("_s")]


@pytest.fixture(params=SHIPPED)
def profile(request):
    return load_profile(request.param)


@pytest.fixture
def h100():
    return load_profile("h100_sxm")


def test_six_devices_are_shipped():
    assert set(SHIPPED) <= set(shipped_profiles())


class TestTerms:
    def test_all_times_are_positive_and_finite(self, profile):
        tokens = np.array([1, 7, 17, 33, 100, 1000, 8192, 40000])
        parts = [profile.elementwise_s(tokens, 8192)]
        parts += [
            profile.gemm_s(d, tokens, n, k) for d in profile.gemm for n, k in ((128256, 4096), (24, 64))
        ]
        parts += [
            profile.prefill_attention_s(d, *LAYOUT, tokens, context)
            for d in profile.prefill_attention
            for context in (0, 100_000)
        ]
        parts += [
            profile.decode_attention_s(d, *LAYOUT[:3], window, 300, 300 * tokens, from_hbm=cold)
            for d in profile.decode_attention
            for window in (0, 128, 4096)
            for cold in (False, True)
        ]
        parts += [profile.moe_s(d, tokens, 4096, 14336, 2, 8, 2) for d in profile.moe]
        parts += [profile.all_reduce_s(gpus, tokens * 8192.0) for gpus in (2, 4, 8)]
        times = np.concatenate(parts)
        assert np.isfinite(times).all()
        assert (times > 1e-7).all()

    def test_an_array_gives_what_its_entries_give(self, h100):
        tokens = np.array([1, 16, 17, 500, 8192])
        whole = h100.gemm_s("bfloat16", tokens, 6144, 4096)
        assert whole == pytest.approx([float(h100.gemm_s("bfloat16", m, 6144, 4096)) for m in tokens])
        contexts = np.array([64, 6400, 64000])
        whole = h100.decode_attention_s("fp8", *LAYOUT, 64, contexts)
        each = [float(h100.decode_attention_s("fp8", *LAYOUT, 64, c)) for c in contexts]
        assert whole == pytest.approx(each)

    @pytest.mark.parametrize("num_seqs", [1, 3, 32, 300])
    def test_decode_never_gets_faster_by_more_context(self, profile, num_seqs):
        contexts = num_seqs * np.geomspace(2, 131072, 60)
        for kv_dtype in profile.decode_attention:
            for cold in (False, True):
                times = profile.decode_attention_s(kv_dtype, *LAYOUT, num_seqs, contexts, from_hbm=cold)
                assert (times[1:] > 0.97 * times[:-1]).all()

    def test_a_cache_beyond_l2_streams_below_the_vendors_bandwidth(self, profile):
        tokens = 8 * profile.device.l2_bytes / (2 * 8 * 128 * 2)
        seconds = float(profile.decode_attention_s("bfloat16", *LAYOUT, 64, tokens))
        achieved = 8 * profile.device.l2_bytes / seconds
        assert 0.5 * profile.device.hbm_bytes_per_s < achieved < profile.device.hbm_bytes_per_s

    def test_no_gemm_beats_the_vendors_peak(self, profile):
        m, n, k = 8192, 28672, 8192
        seconds = float(profile.gemm_s("bfloat16", m, n, k))
        peak = profile.device.flops_per_s["bfloat16"]
        assert 0.5 * peak < 2.0 * m * n * k / seconds < 1.05 * peak

    def test_a_gemm_of_one_token_reads_its_weights_once(self, profile):
        seconds = float(profile.gemm_s("bfloat16", 1, 28672, 4096))
        achieved = 2.0 * 28672 * 4096 / seconds
        assert 0.6 * profile.device.hbm_bytes_per_s < achieved < 1.02 * profile.device.hbm_bytes_per_s

    def test_gemm_is_smooth_between_measured_shapes(self, profile):
        """Real layer widths are not on the measured grid: 14,336, 28,672, 128,256, 152,064, 201,088."""
        widths = np.unique(
            [*np.geomspace(1024, 262144, 60).round(-1), 11008, 14336, 22016, 28672, 128256, 201088]
        )
        for m in (1, 32, 256, 4096):
            along_n = profile.gemm_s("bfloat16", m, widths, 4096)
            along_k = profile.gemm_s("bfloat16", m, 4096, widths[widths < 65536])
            for times in (along_n, along_k):
                assert (times >= 0.8 * np.maximum.accumulate(times)).all()
                assert (np.diff(np.log(times)) < 0.75).all()

    def test_hopper_is_slow_at_a_few_dozen_tokens(self, h100):
        """Measured at 17 to 33 tokens, and seen in served TPOT at 32 sequences."""
        quick, slow = h100.gemm_s("bfloat16", [16, 24], 6144, 4096)
        assert slow > 1.05 * quick

    def test_prefill_of_a_chunk_costs_by_area(self, h100):
        """2,048 tokens on 30,720 of context do 15 times the pairs of a fresh 2,048 + 2,048."""
        first = h100.prefill_attention_s("bfloat16", *LAYOUT, 2048, [0, 2048, 30720])
        assert first[0] < first[1] < first[2]
        whole = float(h100.prefill_attention_s("bfloat16", *LAYOUT, 16384, 0))
        chunks = h100.prefill_attention_s("bfloat16", *LAYOUT, 2048, 2048 * np.arange(8))
        assert chunks.sum() == pytest.approx(whole, rel=0.15)

    def test_equal_sequences_in_one_launch_cost_no_more_than_apart(self, profile):
        one = float(profile.prefill_attention_s("bfloat16", *LAYOUT, 256, 0))
        many = float(profile.prefill_attention_s("bfloat16", *LAYOUT, 256, 0, num_seqs=16))
        assert one < many < 16 * one

    def test_launch_is_part_of_every_launch(self, profile):
        for phase in ("prefill", "decode"):
            assert 0 < profile.attention_launch_s("bfloat16", *LAYOUT, phase=phase) < 5e-5

    def test_sequences_that_a_kernel_takes_one_by_one_cost_so_much_each(self, h100):
        curve = h100.prefill_attention["bfloat16"]
        slower = tuple(fit.model_copy(update={"sequence_s": 1e-3, "table": None}) for fit in curve.regimes)
        plain = tuple(fit.model_copy(update={"table": None}) for fit in curve.regimes)
        layout, counts = (32, 8, 128, 0), np.array([1, 2, 7])
        apart = curve.model_copy(update={"regimes": slower}).seconds(*layout, 100, 0, counts)
        together = curve.model_copy(update={"regimes": plain}).seconds(*layout, 100, 0, counts)
        np.testing.assert_allclose(apart - together, 1e-3 * counts)

    def test_a_window_bounds_the_cost_of_context(self, h100):
        near, far = h100.decode_attention_s("bfloat16", *LAYOUT[:3], 4096, 32, [32 * 8192, 32 * 65536])
        assert far == pytest.approx(near)

    def test_unequal_load_costs_more_than_balanced(self, h100):
        args = ([512], 4096, 14336, 2, 8, 1)
        assert h100.moe_s("bfloat16", *args) > h100.moe_s("bfloat16", *args, distribution="balanced")


class TestRefusals:
    def test_unknown_curves_are_named_with_those_there(self, h100):
        with pytest.raises(ConfigError, match=r"h100_sxm.*nvfp4.*bfloat16, fp8"):
            h100.gemm_s("nvfp4", 1, 128, 128)
        with pytest.raises(ConfigError, match="2, 4, 8 GPUs, not for 3"):
            h100.all_reduce_s(3, 1024)
        with pytest.raises(ConfigError, match=r"distribution zipf; it has balanced"):
            h100.moe_s("bfloat16", 1, 4096, 14336, 2, 8, 1, distribution="zipf")

    def test_extrapolation_is_named_by_axis_and_range(self, h100):
        said = h100.outside("gemm", dtype="bfloat16", m=[1, 50000], n=4096, k=4096)
        assert said == "gemm: m = 50000 outside the measured 1 to 32768"
        assert h100.outside("gemm", dtype="bfloat16", m=[1, 8192], n=14336, k=4096) is None
        assert "new_tokens" in h100.outside("prefill_attention", kv_dtype="fp8", new_tokens=100_000)
        assert "context_tokens" in h100.outside("prefill_attention", kv_dtype="fp8", context_tokens=4096)
        assert h100.outside("all_reduce", gpus=2, message_bytes=8192) is None

    def test_unknown_names_list_the_shipped_ones(self):
        with pytest.raises(ConfigError, match="no profile h1000; shipped are a100_sxm"):
            load_profile("h1000")


class TestFile:
    def test_each_is_small_and_carries_its_provenance(self, profile):
        text = profile.to_json()
        assert len(text) <= 300_000
        assert profile.engine.startswith("vLLM 0.")
        terms = {residual.term for residual in profile.residuals}
        assert {"gemm/bfloat16", "prefill_attention/bfloat16", "decode_attention/bfloat16"} <= terms

    def test_writing_and_reading_changes_nothing(self, profile, tmp_path):
        path = tmp_path / "copy.json"
        path.write_text(profile.to_json())
        again = load_profile(path)
        assert again.to_json() == profile.to_json()
        assert again.content_hash == profile.content_hash

    def test_the_hash_follows_the_content_but_not_the_date(self, h100):
        later = h100.model_copy(update={"created": "2031-01-01"})
        assert Profile.model_validate_json(later.to_json()).content_hash == h100.content_hash
        other = h100.with_host(HostOverhead(base_s=1e-3, source="test"))
        assert other.content_hash != h100.content_hash
        assert other.host.base_s == 1e-3

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda d: d.pop("device"), "device: Field required"),
            (lambda d: d.update(schema=2), "schema: Input should be 1"),
            (lambda d: d.update(colour="blue"), "colour: Extra inputs are not permitted"),
            (lambda d: d["gemm"]["bfloat16"].update(launch_s=-1), "gemm.bfloat16.launch_s"),
            (lambda d: d["gemm"]["bfloat16"].update(launch_s="fast"), "gemm.bfloat16.launch_s"),
            (lambda d: d["gemm"]["bfloat16"]["table"].update(packed="????"), "gemm.bfloat16.table"),
            (lambda d: d["gemm"]["bfloat16"]["table"]["axes"].update(m=[0, 1]), "gemm.bfloat16.table"),
            (lambda d: d["gemm"]["bfloat16"]["table"]["axes"].update(m=[1, 0]), "nodes must increase"),
            (lambda d: d["device"].update(memory_bytes=0), "device.memory_bytes"),
            (
                lambda d: d["decode_attention"]["bfloat16"].update(regimes=[]),
                "decode_attention.bfloat16.regimes",
            ),
            (lambda d: d["all_reduce"]["time_s"].pop("2"), "all_reduce"),
            (lambda d: d["all_reduce"]["time_s"].update({"2": [1e300] * 23}), "all_reduce.time_s.2.0"),
            (lambda d: d["gemm"]["bfloat16"].update(launch_s=1e300), "gemm.bfloat16.launch_s"),
            (lambda d: d["gemm"]["bfloat16"].update(bytes_per_s=1e-300), "gemm.bfloat16.bytes_per_s"),
            (lambda d: d["gemm"]["bfloat16"].update(tiles=[]), "gemm.bfloat16.tiles"),
            (lambda d: d["gemm"]["bfloat16"]["table"].update(step=1e300), "gemm.bfloat16.table.step"),
            (
                lambda d: d["gemm"]["bfloat16"]["fitted"].update(m=[-1, 9]),
                "gemm.bfloat16: Value error, fitted.m",
            ),
            (lambda d: d["gemm"]["bfloat16"]["fitted"].update(m=[0, 9]), "fitted.m: 0 to 9 is no range"),
            (lambda d: d["gemm"]["bfloat16"]["fitted"].update(m=[9, 1]), "fitted.m: 9 to 1 is no range"),
            (lambda d: d["gemm"]["bfloat16"]["table"]["axes"]["m"].__setitem__(0, -1), "axes.m: nodes are"),
            (lambda d: d["elementwise"].update(launch_s=1e300), "elementwise.launch_s"),
            (lambda d: d["moe"]["bfloat16"].update(pad_rows=1e300), "moe.bfloat16.pad_rows"),
            *((lambda d, f=f: d["host"].update({f: 1e300}), f"host.{f}") for f in HOST_SECONDS),
        ],
    )
    def test_a_malformed_file_gives_one_line_with_file_and_field(self, h100, tmp_path, change, said):
        content = json.loads(h100.to_json())
        change(content)
        path = tmp_path / "broken.json"
        path.write_text(json.dumps(content))
        with pytest.raises(ConfigError) as caught:
            load_profile(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert said in message
        assert "\n" not in message

    @pytest.mark.parametrize("text", ["", "[]", "{", "\x00\xff"])
    def test_what_is_no_profile_at_all_gives_one_line(self, tmp_path, text):
        path = tmp_path / "broken.json"
        path.write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"broken\.json") as caught:
            load_profile(path)
        assert "\n" not in str(caught.value)

    def test_a_missing_file_gives_one_line(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_profile(tmp_path / "none.json")


class TestTables:
    @given(st.lists(st.floats(-1.5, 1.5), min_size=12, max_size=12))
    def test_packing_keeps_logarithms_within_half_a_step(self, values):
        axes = {"a": np.arange(3.0), "b": np.arange(4.0)}
        table = LogTable.pack(axes, np.reshape(values, (3, 4)))
        assert np.abs(table.values - np.reshape(values, (3, 4))).max() <= 0.51 * table.step
        assert table.log_factor(np.array(2.0), np.array(1.0)) == pytest.approx(table.values[2, 1])

    def test_a_bilinear_function_is_met_between_nodes_and_held_beyond(self):
        axes = {"a": np.array([0.0, 1.0, 3.0]), "b": np.array([0.0, 2.0])}
        values = 0.15 * axes["a"][:, None] - 0.3 * axes["b"][None, :]
        table = LogTable.pack(axes, values)
        a, b = np.array([0.5, 2.0, 9.0]), np.array([1.0, 0.5, -4.0])
        wanted = 0.15 * np.minimum(a, 3) - 0.3 * np.maximum(b, 0)
        assert table.log_factor(a, b) == pytest.approx(wanted, abs=0.02)
        mixed = [float(table.log_factor(np.array(x), np.array(1.0))) for x in a]
        assert table.log_factor(a, np.array(1.0)) == pytest.approx(mixed)

    @given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 30))
    def test_area_counts_the_pairs(self, new, context, window):
        seen = [min(context + i, window or 10**9) for i in range(1, new + 1)]
        assert causal_area(np.float64(new), np.float64(context), window) == sum(seen)

    def test_messages_between_sizes_follow_a_power_law_and_beyond_them_the_bandwidth(self):
        curve = CommCurve(source="t", message_bytes={2: (100.0, 10000.0)}, time_s={2: (1e-6, 4e-6)})
        assert curve.seconds(2, [1, 100, 1000, 10000, 30000]) == pytest.approx(
            [1e-6, 1e-6, 2e-6, 4e-6, 12e-6]
        )
