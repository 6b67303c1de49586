"""Layer tables: read into the axes of kernels, fitted, and judged on what was left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from calibration.collection import read_collection
from calibration.fit import fit_profile
from calibration.fit_layers import with_layers
from calibration.layer_residuals import layer_residuals
from calibration.layer_tables import read_layers
from calibration.predict import idle_blocks, predict_between_layers, predict_gemm, predict_shared
from calibration.tables import TableError
from sim.cli import run_command
from sim.curves.prefill import TILE
from sim.profile import load_profile
from tests.calibration.kernel_rows import kernels_dir

HBM, PEAK, LAUNCH, IDLE = 9e11, 1.5e14, 4e-6, 5e-9
HIDDEN, INTER, HEADS, KV_HEADS, DIM, VOCAB = 4096, 14336, 32, 8, 128, 128256  # of llama-3.1-8b
COUNTS = [1, 8, 64, 128, 256, 272, 1024, 2048]
CONTEXTS = [16, 128, 1024, 8192]


def product_s(tokens, n, k):
    return LAUNCH + np.maximum(2 * tokens * n * k / PEAK, 2 * n * k / HBM)


def decode_s(batch, context, heads=KV_HEADS):
    return LAUNCH + batch * context * 2 * 2 * heads * DIM / HBM


def chunk_s(new, past):
    return LAUNCH + 4 * HEADS * DIM * (new * past + new * (new + 1) / 2) / PEAK


def write_layers(folder):
    """One model's tables by a known law: beside a chunk every query head reads keys and values itself."""
    shapes = {"qkv_proj": (6144, HIDDEN), "o_proj": (HIDDEN, 4096)}
    shapes |= {"gate_up_proj": (2 * INTER, HIDDEN), "down_proj": (HIDDEN, INTER)}
    dense = [(name, count, product_s(count, *shape)) for name, shape in shapes.items() for count in COUNTS]
    widths = {"layernorm": 4 * HIDDEN, "final_layernorm": 4 * HIDDEN}
    widths |= {"rotary_emb": 2 * (HEADS + KV_HEADS) * DIM, "act_fn": 6 * INTER}
    dense += [(name, count, 2e-6 + count * size / HBM) for name, size in widths.items() for count in COUNTS]
    head = [("lm_head", count, product_s(count, VOCAB, HIDDEN)) for count in COUNTS[:5]]
    attention = [(0, 0, b, c, decode_s(b, c)) for b in COUNTS[:5] for c in CONTEXTS]
    attention += [(q, c, 0, 0, chunk_s(q, c)) for q in (16, 128, 512, 2048) for c in (0, *CONTEXTS)]
    for chunk in (16, 128, 512, 2048):
        idle = IDLE * HEADS * (-(-chunk // TILE) - 1)
        attention += [
            (chunk, 0, b, c, chunk_s(chunk, 0) + decode_s(b, c, HEADS) - LAUNCH + b * idle)
            for b in COUNTS[:5]
            for c in CONTEXTS
        ]
    _write(folder / "tp1" / "dense.parquet", dense, "layer", "tokens")
    _write(folder / "tp1" / "per_sequence.parquet", head, "layer", "sequences")
    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    _write(folder / "tp1" / "attention.parquet", attention, *axes)
    (folder / "meta.yaml").write_text("vllm_version: 0.19.0\n")


def _write(path, rows, *axes):
    path.parent.mkdir(parents=True, exist_ok=True)
    *columns, seconds = zip(*rows, strict=True)
    times = {"time_us": [1e6 * float(one) for one in seconds]}
    pq.write_table(pa.table(dict(zip(axes, columns, strict=True)) | times), path)


@pytest.fixture
def folder(tmp_path):
    gpu = tmp_path / "RTX4090"
    write_layers(gpu / "Llama-3.1-8B")
    return gpu


def test_a_known_law_is_found_again(folder):
    rows = read_collection(folder)
    assert (rows.name, rows.engine, rows.layers) == ("rtx_4090", "vLLM 0.19.0", True)
    profile = fit_profile(rows, created="2026-01-01")
    gemm = rows.tables["gemm"]
    assert len(gemm) == 4 * len(COUNTS) + 5
    assert np.allclose(predict_gemm(profile.gemm["bfloat16"], gemm), gemm.time_s, rtol=0.01)
    for heads, context in ((KV_HEADS, 1024), (KV_HEADS, 8192)):
        got = profile.decode_attention_s("bfloat16", HEADS, heads, DIM, 0, 64, 64 * context)
        assert got == pytest.approx(decode_s(64, context), rel=0.03)
    shared = profile.shared_attention["bfloat16"]
    assert shared.idle_block_s == pytest.approx(IDLE, rel=0.02)
    asked = rows.tables["attention_shared"]
    asked = asked.where(asked.number("kv_len") >= 128)
    assert np.abs(predict_shared(shared, asked) / asked.time_s - 1).max() < 0.05


def test_a_shared_launch_knows_its_chunk_alone(folder):
    table = read_layers(folder).tables["attention_shared"]
    assert np.allclose(table.number("chunk_s"), [chunk_s(new, 0) for new in table.number("chunk")])
    assert np.allclose(table.number("launch_s"), chunk_s(16, 0))  # as near to a launch as the tables come
    added = table.time_s - table.number("chunk_s") - IDLE * idle_blocks(table)
    assert np.allclose(added, decode_s(table.number("batch"), table.number("kv_len"), HEADS) - LAUNCH)
    assert not idle_blocks(table)[table.number("chunk") <= TILE].any()


def test_layers_correct_only_what_they_know(folder):
    profile, rows = load_profile("l40s"), read_layers(folder)
    more = with_layers(profile, rows)
    assert more.gemm == profile.gemm
    asked = ("bfloat16", HEADS, KV_HEADS, DIM, 0, 64, 64 * 1024)
    assert more.decode_attention_s(*asked) == profile.decode_attention_s(*asked)
    assert more.decode_attention_s(*asked, from_hbm=True) == pytest.approx(decode_s(64, 1024), rel=0.03)
    assert set(more.shared_attention) == {"bfloat16"}


def test_single_batches_are_held_out_where_there_is_one_layout(folder):
    rows = read_layers(folder)
    profile = fit_profile(rows, created="2026-01-01")
    (shared,) = layer_residuals(rows, profile)
    assert shared.term == "shared_attention/bfloat16"
    assert "(sequences, context)" in shared.held_out
    assert shared.median < 0.1


def test_chunks_beside_decodes_need_one_alone(folder):
    path = folder / "Llama-3.1-8B" / "tp1" / "attention.parquet"
    rows = pq.read_table(path)
    beside = pc.or_(pc.greater(rows["n_decode"], 0), pc.greater(rows["kv_prefill"], 0))
    pq.write_table(rows.filter(beside), path)
    with pytest.raises(TableError, match=r"attention\.parquet has no chunk alone without context"):
        read_layers(folder)


def test_layers_of_another_gpu_are_refused_before_anything_is_fitted(folder, tmp_path, capsys):
    other, out = tmp_path / "RTXPRO6000", tmp_path / "out.json"
    write_layers(other / "Llama-3.1-8B")
    asked = ["profile", "fit", "--kernels", str(folder), "--system", "rtx_4090", "--out", str(out)]
    assert run_command([*asked, "--layers", str(other)]) == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [
        f"servetwin: --layers {other}: tables of rtx_pro_6000, and {folder} has rtx_4090"
    ]
    assert not out.exists()


def test_what_is_wrong_with_a_folder_is_said(folder):
    empty = folder.parent / "RTXPRO6000"
    empty.mkdir()
    with pytest.raises(TableError, match="no layer tables"):
        read_layers(empty)
    (folder / "Llama-3.1-8B" / "meta.yaml").write_text("gpu: some\n")
    with pytest.raises(TableError, match=r"meta\.yaml: not the settings of a layer profile"):
        read_layers(folder)
    other = folder.rename(folder.parent / "RTX9999")
    with pytest.raises(TableError, match="unknown GPU; a folder is named RTX4090, RTXPRO6000"):
        read_layers(other)


class TestShipped:
    """RTX 4090 from its layers alone, RTX PRO 6000 corrected by them."""

    @pytest.mark.parametrize(("name", "folder"), [("rtx_4090", "RTX4090"), ("rtx_pro_6000", "RTXPRO6000")])
    def test_the_shipped_profile_is_near_its_rows(self, name, folder):
        rows, profile = read_layers(kernels_dir() / "llmservingsim" / folder), load_profile(name)
        decode = rows.tables["attention_decode"]
        error = np.abs(
            predict_between_layers(profile.decode_attention["bfloat16"], decode) / decode.time_s - 1
        )
        assert np.median(error) < 0.01
        shared = rows.tables["attention_shared"]
        error = np.abs(predict_shared(profile.shared_attention["bfloat16"], shared) / shared.time_s - 1)
        assert np.median(error) < 0.03
        assert np.quantile(error, 0.9) < 0.12

    @pytest.mark.parametrize("name", ["rtx_4090", "rtx_pro_6000"])
    def test_decodes_beside_chunks_that_no_fit_saw(self, name):
        """RTX 4090: whole batches held out, of one head layout; RTX PRO 6000: whole layouts of five."""
        (found,) = [one for one in load_profile(name).residuals if one.term == "shared_attention/bfloat16"]
        assert found.median < 0.06
        assert found.p90 < 0.35
        assert found.median < 0.3 * found.roofline_median

    def test_two_sources_agree_on_products(self):
        """Layers inside an engine (vLLM 0.19) against the shipped curve of single kernels (0.24): all in all 1%."""
        rows = read_layers(kernels_dir() / "llmservingsim" / "RTXPRO6000").tables["gemm"]
        ratio = predict_gemm(load_profile("rtx_pro_6000").gemm["bfloat16"], rows) / rows.time_s
        assert abs(np.median(ratio) - 1) < 0.04
        assert np.quantile(np.abs(ratio - 1), 0.9) < 0.2
