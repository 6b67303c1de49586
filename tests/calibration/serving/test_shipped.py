"""What shipped profiles add to their kernels: which runs it is fitted to, and what is taken over from where."""

from __future__ import annotations

import csv
import io
from functools import cache
from types import SimpleNamespace

import pytest

from calibration.serving import shipped
from calibration.serving.fit_overheads import ASKED, TERMS, Fit
from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import Prediction
from calibration.serving.shipped import (
    NOT_FITTED,
    ORIGIN,
    PER_STREAM_S,
    RECIPES,
    call_time,
    errors_csv,
    fit_system,
    kernels_alone,
    runs_of,
    taken_over,
    with_own_work,
    write_shipped,
)
from sim.profile import HostOverhead, PredictionError, load_profile, shipped_profiles
from sim.scenario.reading import load_scenario
from sim.served import Experts, Served
from tests.calibration.serving.client_files import SCENARIO
from tests.data import shared_data

DEFAULT_CALL_S = HostOverhead.model_fields["call_s"].default
OWN = {"host", "served"}
HOST = HostOverhead(
    base_s=1e-4,
    per_layer_s=2e-6,
    per_seq_s=3e-6,
    cpu_base_s=5e-4,
    cpu_per_seq_s=4e-5,
    piece_s=6e-6,
    call_s=21e-6,
    per_request_s=7e-3,
    per_stream_s=8e-6,
    source="runs of the origin",
)
SERVED = Served(
    compute=1.2,
    gemm_fixed=0.5,
    decode_fixed=0.7,
    prefill_attention=1.1,
    experts={"w4a16_mxfp4": Experts(few=0.6)},
    routing_s=1e-5,
    all_reduce=1.4,
    all_reduce_large=0.8,
    source="runs of the origin",
)
ERROR = PredictionError(
    metric="mean_tpot_ms", kind="dense", rows=4, curves=4, median=0.1, p90=0.2, low=0.8, high=1.2
)


@pytest.fixture(scope="module")
def origin():
    return load_profile(ORIGIN).with_host(HOST).with_served(SERVED)


@pytest.fixture(scope="module")
def another():
    """A profile with terms of its own."""
    host = HostOverhead(base_s=9e-4, per_seq_s=1e-6, cpu_base_s=1e-6, call_s=50e-6, source="its own")
    return load_profile("a100_sxm").with_host(host).with_served(Served(compute=1.3, source="its own"))


@cache
def fitted_runs(name):
    """Runs of a system among the measured data; read once."""
    return runs_of(shared_data(), name)


def of_the_gpu(profile):
    return profile.model_dump(exclude=OWN)


class TestCallTime:
    def test_it_is_a_small_all_reduce_without_a_graph(self):
        data = shared_data()
        assert call_time(data, "h100_sxm") == pytest.approx(20.6e-6, abs=1e-7)
        assert call_time(data, "a100_sxm") == pytest.approx(43.8e-6, abs=1e-7)

    def test_a_system_without_one_has_none(self):
        data = shared_data()
        assert call_time(data, "rtx_4090") is None
        assert call_time(data, "no_such_gpu") is None

    def test_shipped_profiles_have_it_but_where_it_was_fitted(self):
        data = shared_data()
        fitted = {name for name, recipe in RECIPES.items() if "host.call_s" in recipe.terms}
        assert fitted == {"b200_sxm"}
        for name in set(shipped_profiles()) - fitted:
            assert load_profile(name).host.call_s == (call_time(data, name) or DEFAULT_CALL_S)


class TestTakenOver:
    def test_overheads_come_from_the_origin_and_say_so(self, another, origin):
        profile = taken_over(another, origin, 43e-6)
        assert profile.host == HOST.model_copy(
            update={
                "call_s": 43e-6,
                "source": "taken over from h100_sxm, not measured here: runs of the origin",
            }
        )
        assert profile.served.source == profile.host.source

    def test_of_the_factors_those_of_the_engine_alone(self, another, origin):
        served = taken_over(another, origin, None).served
        assert (served.decode_fixed, served.all_reduce) == (0.7, 1.4)
        plain = Served(decode_fixed=0.7, all_reduce=1.4, source=served.source)
        assert served == plain  # nothing of its own is left either

    def test_what_is_the_gpus_stays(self, another, origin):
        profile = taken_over(another, origin, 43e-6)
        assert of_the_gpu(profile) == of_the_gpu(another)
        assert profile.content_hash not in (another.content_hash, origin.content_hash)

    def test_a_call_that_was_not_timed_takes_the_default_and_not_the_origins(self, another, origin):
        assert taken_over(another, origin, None).host.call_s == DEFAULT_CALL_S != HOST.call_s


class TestOwnWork:
    def test_only_the_hosts_own_work_comes_from_the_origin(self, another, origin):
        profile = with_own_work(another, origin)
        assert (profile.host.cpu_base_s, profile.host.cpu_per_seq_s) == (5e-4, 4e-5)
        assert "taken over from h100_sxm" in profile.host.notes
        changed = {"cpu_base_s", "cpu_per_seq_s", "notes"}
        assert profile.host.model_dump(exclude=changed) == another.host.model_dump(exclude=changed)
        assert profile.served == another.served
        assert of_the_gpu(profile) == of_the_gpu(another)
        assert profile.content_hash != another.content_hash

    def test_a_second_time_changes_nothing(self, another, origin):
        once = with_own_work(another, origin)
        assert with_own_work(once, origin).content_hash == once.content_hash


def test_kernels_alone_have_nothing_that_was_fitted_to_served_runs(origin):
    bare = kernels_alone(origin.with_errors([ERROR]))
    assert not any(
        bare.host.model_dump(
            include={name for name in HostOverhead.model_fields if name.endswith("_s")}
        ).values()
    )
    assert bare.served is None
    assert bare.errors == ()
    assert bare.model_dump(exclude={*OWN, "errors"}) == origin.model_dump(exclude={*OWN, "errors"})
    assert kernels_alone(bare).content_hash == bare.content_hash


class TestRecipes:
    def test_of_shipped_systems_with_terms_that_there_are(self):
        assert set(RECIPES) <= set(shipped_profiles())
        for recipe in RECIPES.values():
            assert set(recipe.terms) <= set(TERMS)
            assert len(set(recipe.terms)) == len(recipe.terms)
            assert "host.per_stream_s" not in recipe.terms  # held at what requests say of it
            assert ("host.call_s" in recipe.terms) == (recipe.call_s is not None)

    @pytest.mark.parametrize("name", RECIPES)
    def test_a_fit_starts_from_the_same_numbers_whatever_is_shipped(self, name, monkeypatch):
        data, asked = shared_data(), []

        def note(profile, runs, terms, *, source, log) -> Fit:
            asked.append((profile, runs, terms, source))

        monkeypatch.setattr(shipped, "fit_overheads", note)
        monkeypatch.setattr(shipped, "runs_of", lambda _, name: fitted_runs(name))
        fit_system(data, name)
        fitted = load_profile(name).with_host(HOST).with_served(SERVED).with_errors([ERROR])
        monkeypatch.setattr(shipped, "load_profile", lambda _: fitted)
        fit_system(data, name)
        (first, runs, terms, source), (second, *_) = asked
        assert first.content_hash == second.content_hash
        assert first.host.per_stream_s == PER_STREAM_S
        assert first.host.call_s == (RECIPES[name].call_s or call_time(data, name))
        assert terms == RECIPES[name].terms
        assert source.startswith(f"{len(runs)} served runs of ")
        assert source.endswith(f" on {name}, {len({run.curve for run in runs})} curves")

    @pytest.mark.parametrize("name", RECIPES)
    def test_runs_are_of_the_system_and_count(self, name):
        runs = fitted_runs(name)
        assert len({run.curve for run in runs}) >= 4  # fewer could not be left out in turn
        assert len({run.name for run in runs}) == len(runs)
        for run in runs:
            assert run.labels["system"] == name
            assert run.labels["model"] not in NOT_FITTED
            assert run.scenario.hardware.gpu == name
            assert any(part.apart is None and set(part.measured) & set(ASKED) for part in run.parts)

    def test_other_systems_have_none(self):
        for name in set(shipped_profiles()) - set(RECIPES):
            assert fitted_runs(name) == []


def test_what_is_taken_over_is_written_from_the_origin_in_the_folder(tmp_path, origin, capsys):
    data = shared_data()
    (tmp_path / f"{ORIGIN}.json").write_text(origin.to_json(), encoding="utf-8")
    write_shipped(data, ["rtx_4090", "a100_sxm"], tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a100_sxm", "h100_sxm", "rtx_4090"]
    said = capsys.readouterr().out.splitlines()
    for name, line in zip(("a100_sxm", "rtx_4090"), said, strict=True):
        written = load_profile(tmp_path / f"{name}.json")
        expected = taken_over(load_profile(name), origin, call_time(data, name))
        assert written.content_hash == expected.content_hash
        assert line == f"wrote {name}: {written.content_hash[:12]}"


def test_the_origin_is_written_first_whatever_the_order_asked_for(tmp_path, origin, monkeypatch, capsys):
    data = shared_data()
    monkeypatch.setattr(
        shipped,
        "fit_system",
        lambda _, name: SimpleNamespace(
            profile=origin if name == ORIGIN else load_profile(name).with_host(HOST)
        ),
    )
    monkeypatch.setattr(shipped, "left_out", lambda _: iter(()))
    write_shipped(data, ["a100_sxm", "b200_sxm", ORIGIN], tmp_path)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "wrote h100_sxm",
        "wrote b200_sxm",
        "wrote a100_sxm",
    ]
    written = {path.stem: load_profile(path) for path in tmp_path.iterdir()}
    assert written[ORIGIN].host == HOST
    assert written["b200_sxm"].host == with_own_work(load_profile("b200_sxm").with_host(HOST), origin).host
    assert written["a100_sxm"].host.source.endswith(HOST.source)
    assert all(profile.errors == () for profile in written.values())


def test_errors_of_a_fit_are_a_row_a_part_and_metric():
    labels = {"system": "h100_sxm", "model": "gpt-oss-120b", "data": "here"}
    parts = (
        Part({"mean_tpot_ms": 10.0, "mean_ttft_ms": 40.0}),
        Part({"mean_tpot_ms": 1.0}, apart="for a reason"),
        Part({"mean_tpot_ms": 20.0}),
    )
    scenario = load_scenario(
        SCENARIO
        | {"workload": {"input_tokens": 9, "output_tokens": 9, "num_requests": 1, "request_rate": 1.0}}
    )
    run = MeasuredRun("run", "curve", labels, scenario, parts)
    left_out, bare = (
        Prediction(run, tuple({"mean_tpot_ms": tpot, "mean_ttft_ms": 50.0} for tpot in values), "hash", 0)
        for values in ((11.0, 99.0, 19.0), (5.0, 99.0, 10.0))
    )
    rows = list(csv.DictReader(io.StringIO(errors_csv([left_out], [bare]))))
    known = {"system": "h100_sxm", "model": "gpt-oss-120b", "kind": "moe", "data": "here", "run": "run"}
    assert all(row.items() >= {**known, "curve": "curve"}.items() for row in rows)
    assert [(r["part"], r["metric"], float(r["left_out"]), float(r["kernels_alone"])) for r in rows] == [
        ("0", "mean_tpot_ms", 0.1, -0.5),
        ("0", "mean_ttft_ms", 0.25, 0.25),
        ("2", "mean_tpot_ms", -0.05, -0.5),
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_names_of_runs_fit_into_its_table(name):
    for run in fitted_runs(name):
        assert not set(',\n"') & set("".join([run.name, run.curve, *map(str, run.labels.values())]))


class TestShippedProfiles:
    @pytest.mark.parametrize("name", shipped_profiles())
    def test_each_has_overheads_of_its_host_with_their_source(self, name):
        profile = load_profile(name)
        assert profile.host.source
        assert profile.host.per_stream_s == PER_STREAM_S
        assert profile.served.source == profile.host.source

    @pytest.mark.parametrize("name", RECIPES)
    def test_of_measured_systems_the_terms_are_fitted_and_the_error_is_known(self, name):
        profile = load_profile(name)
        assert "served runs of" in profile.host.source
        assert f" on {name}, " in profile.host.source
        terms = [TERMS[path] for path in RECIPES[name].terms]
        sections = profile.model_dump(include=OWN)
        for term in terms:
            value = sections
            for part in term.path.split("."):
                value = value[part]
            assert term.low <= value <= term.high
        errors = {(error.metric, error.kind) for error in profile.errors}
        assert {("mean_tpot_ms", kind) for kind in ("dense", "moe")} <= errors
        assert len(errors) == len(profile.errors)
        for error in profile.errors:
            assert error.curves >= 4
            assert error.rows >= error.curves
            assert error.low < error.high
            assert error.median <= error.p90

    @pytest.mark.parametrize("name", sorted(set(shipped_profiles()) - set(RECIPES)))
    def test_of_others_they_are_taken_over_and_nothing_is_said_of_the_error(self, name):
        profile, origin = load_profile(name), load_profile(ORIGIN)
        again = taken_over(profile, origin, profile.host.call_s)
        assert again.content_hash == profile.content_hash
        assert profile.host.source.startswith("taken over from h100_sxm, not measured here: ")
        assert profile.errors == ()

    @pytest.mark.parametrize("name", sorted(set(RECIPES) - {ORIGIN}))
    def test_the_work_of_engines_that_schedule_in_turn_is_the_origins(self, name):
        profile = load_profile(name)
        assert with_own_work(profile, load_profile(ORIGIN)).content_hash == profile.content_hash
