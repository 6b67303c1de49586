"""The fit of host overhead recovers what was put in, ignores outliers, and says where it comes from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from calibration.host import call_time, cross_validate, fit_host, kernel_time, transferred, with_own_work
from calibration.serving_rows import ServingRow, open_loop_rows, serving_rows
from sim.profile import HostOverhead, load_profile, shipped_profiles
from tests.data import shared_data
from tests.sim.doubles import ClosedFormProfile
from workloads.errors import InputError

PROFILE = ClosedFormProfile()
TRUE = HostOverhead(base_s=4e-4, per_layer_s=6e-6, per_seq_s=1.5e-5, source="put in")


def rows(overhead, *, own_work=0.0, models=("llama-3.1-8b", "llama-3.1-70b")):
    """Rows whose TPOT is the kernels' and exactly that overhead."""
    made = []
    for model, length, concurrency in product(models, (512, 4096), (4, 16, 64)):
        row = ServingRow(
            system="closed-form",
            source_class="inferencex",
            model=model,
            curve_id=f"{model}-{length}",
            tensor_parallel_size=1,
            weight_dtype="auto",
            kv_cache_dtype="auto",
            input_tokens=length,
            output_tokens=1024,
            concurrency=concurrency,
            decoding=0.9 * concurrency,
            tpot_s=1.0,
        )
        seen = kernel_time(PROFILE, row)
        extra = overhead.base_s + overhead.per_layer_s * seen.layers + overhead.per_seq_s * seen.sequences
        made.append(replace(row, tpot_s=seen.seconds + extra + own_work))
    return made


def test_known_overhead_is_recovered():
    host = fit_host(PROFILE, rows(TRUE))
    assert host.base_s == pytest.approx(TRUE.base_s, rel=0.02)
    assert host.per_layer_s == pytest.approx(TRUE.per_layer_s, rel=0.02)
    assert host.per_seq_s == pytest.approx(TRUE.per_seq_s, rel=0.02)
    assert "12 serving rows of llama-3.1-70b, llama-3.1-8b on closed-form, 4 curves" in host.source


def test_one_outlier_moves_little():
    measured = rows(TRUE)
    measured[3] = replace(measured[3], tpot_s=3 * measured[3].tpot_s)
    host = fit_host(PROFILE, measured)
    assert host.base_s + 32 * host.per_layer_s == pytest.approx(4e-4 + 32 * 6e-6, rel=0.1)


def test_one_number_of_layers_leaves_everything_to_the_base():
    host = fit_host(PROFILE, rows(TRUE, models=("llama-3.1-70b",)))
    assert host.per_layer_s == 0.0
    assert host.base_s == pytest.approx(4e-4 + 80 * 6e-6, rel=0.02)


def test_kernels_that_take_too_long_give_no_negative_overhead():
    fast = [replace(row, tpot_s=0.8 * row.tpot_s) for row in rows(HostOverhead(base_s=0.0, source="none"))]
    host = fit_host(PROFILE, fast)
    assert (host.base_s, host.per_layer_s, host.per_seq_s) == (0.0, 0.0, 0.0)


def test_own_work_is_what_rows_in_turn_take_longer():
    host = with_own_work(PROFILE, TRUE, rows(TRUE, own_work=7e-4))
    assert host.cpu_base_s == pytest.approx(7e-4, rel=0.02)
    assert host.cpu_per_seq_s == pytest.approx(0.0, abs=1e-7)
    assert host.base_s == TRUE.base_s


def test_errors_are_of_curves_left_out():
    errors = cross_validate(PROFILE, rows(TRUE))
    assert (errors.rows, errors.curves) == (12, 4)
    assert errors.kernels_median > 0.01
    assert errors.held_out_p90 < 1e-3


def test_a_transfer_says_so():
    host = transferred(TRUE, "h100_sxm")
    assert host.source == "taken over from h100_sxm, not measured here: put in"
    assert host.base_s == TRUE.base_s


def test_the_time_of_a_call_is_a_small_all_reduce_without_a_graph():
    data = shared_data()
    assert call_time(data, "h100_sxm") == pytest.approx(20.6e-6, abs=1e-7)
    assert call_time(data, "a100_sxm") == pytest.approx(43.8e-6, abs=1e-7)
    assert call_time(data, "rtx_4090") is None
    for name in shipped_profiles():
        expected = call_time(data, name) or HostOverhead(base_s=0.0, source="").call_s
        assert load_profile(name).host.call_s == expected


def test_no_rows_is_an_error():
    with pytest.raises(InputError, match="no serving rows"):
        fit_host(PROFILE, [])


def test_a_table_is_read_by_its_definitions(tmp_path):
    path = tmp_path / "rows.csv"
    header = "system,source_class,model,curve_id,tp,gemm_quant,isl,osl,concurrency,est_running_frac,tpot_ms"
    header += ",flag,in_kernel_scope"
    path.write_text(
        f"{header}\n"
        "h100_sxm,inferencex,llama-3.1-70b,c1,2,fp8,1000,2000,8,0.5,12.5,,True\n"
        "h100_sxm,inferencex,llama-3.1-70b,c1,2,fp8,1000,2000,8,0.5,12.5,repeat_disagree,True\n"
        "h100_sxm,nvidia_internal,qwen3-32b,c2,2,,1000,2000,8,0.5,12.5,,True\n"
    )
    (row,) = serving_rows(path, "h100_sxm")
    assert (row.input_tokens, row.output_tokens, row.decoding) == (900, 1800, 4)
    assert (row.tpot_s, row.weight_dtype, row.kv_cache_dtype) == (0.0125, "fp8", "fp8")
    (other,) = serving_rows(path, source_class="nvidia_internal")
    assert (other.input_tokens, other.kv_cache_dtype, other.async_scheduling) == (1000, "auto", False)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a table of serving rows"):
        serving_rows(path)


def test_stages_of_an_open_loop_are_steady_states(tmp_path):
    path = tmp_path / "stages.csv"
    header = "experiment,stage,model,tp,overloaded_in_source,rate_rps,e2e_ms_mean,ttft_ms_mean"
    header += ",itl_derived_ms_requested_outlen,prompt_len_mean,output_len_requested"
    path.write_text(
        f"{header}\n"
        "a,-1,meta-llama/Llama-2-7b-hf,1,0,,2000,30,8,590,247\n"
        "a,0,meta-llama/Llama-2-7b-hf,1,0,5,2030,30,8,590,247\n"
        "b,0,meta-llama/Llama-2-7b-hf,1,1,5,9030,30,8,590,247\n"
    )
    (row,) = open_loop_rows(path)
    assert (row.decoding, row.concurrency, row.tpot_s) == (10.0, 10, 0.008)  # Little: 5 / s x 2 s
    assert row.async_scheduling
    uncached = replace(row, cached_prompts=False)
    assert kernel_time(PROFILE, row).seconds < kernel_time(PROFILE, uncached).seconds
    path.write_text("a\n1\n")
    with pytest.raises(InputError, match="not a table of open-loop stages"):
        open_loop_rows(path)
