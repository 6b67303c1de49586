"""Drift: a profile against fresh measurements, and against a later profile."""

import json

import pytest

from calibration.compare_profiles import changes
from calibration.fit import fit_profile
from calibration.fresh import judge_fresh
from calibration.points import Extent
from hwbackend.device import open_device
from sim.cli import run_command
from sim.profile import load_profile
from tests.calibration.known_law import collection, law

EXTENT = Extent(512, 32, 2048)
TERMS = {"gemm/float32", "prefill_attention/float32", "decode_attention/float32", "elementwise"}


@pytest.fixture(scope="module")
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def profiles(device, tmp_path_factory):
    """Of a device, and of the same when everything takes half as long again."""
    folder = tmp_path_factory.mktemp("profiles")
    made = [
        fit_profile(collection(folder / name, law(slower=slower), device))
        for name, slower in (("then", 1.0), ("now", 1.5))
    ]
    for name, profile in zip(("then", "now"), made, strict=True):
        (folder / f"{name}.json").write_text(profile.to_json())
    return folder, *made


def test_a_profile_holds_for_the_device_that_it_was_fitted_to(profiles):
    _, then, _ = profiles
    judged = judge_fresh(then, law(), EXTENT, 0.15)
    assert {one.term for one in judged} == TERMS
    for one in judged:
        assert not one.drifted
        assert one.lowest <= one.change <= one.highest
        assert one.median_error < 0.03
        assert one.points >= 10


def test_a_device_that_has_become_slower_has_drifted_by_as_much(profiles):
    _, then, _ = profiles
    for one in judge_fresh(then, law(slower=1.5), EXTENT, 0.15):
        assert one.drifted
        assert one.change == pytest.approx(0.5, abs=0.05)
    assert not any(one.drifted for one in judge_fresh(then, law(slower=1.5), EXTENT, 0.6))


def test_two_profiles_of_a_small_device_are_compared_at_its_own_shapes(profiles, capsys):
    folder, then, now = profiles
    found = {one.term: one for one in changes(then, now)}
    assert set(found) == TERMS
    for one in found.values():
        assert one.drifted
        assert one.median == pytest.approx(0.5, abs=0.05)
    assert found["gemm/float32"].highest < 1.0  # far outside its shapes it could be anything
    assert not any(one.drifted for one in changes(then, then))
    assert run_command(["profile", "diff", str(folder / "then.json"), str(folder / "now.json")]) == 0
    assert capsys.readouterr().out.count("drifted") == len(TERMS)


def test_the_command_measures_and_answers(profiles, tmp_path, capsys):
    """What it measures depends on this machine; that a law of another one does not hold here is its answer."""
    folder, *_ = profiles
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 64,
                "intermediate_size": 96,
                "max_position_embeddings": 64,
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "num_key_value_heads": 2,
                "vocab_size": 128,
            }
        )
    )
    fresh = ["profile", "validate", str(folder / "then.json"), "--fresh", "--device", "cpu"]
    code = run_command([*fresh, "--model", str(config), "--budget", "0.1", "--tolerance", "0.001", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {one["term"] for one in document["terms"]} == TERMS
    assert code == 1
    assert document["drifted"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["h100_sxm"], "give either --kernels DIR or --fresh"),
        (["h100_sxm", "--fresh", "--kernels", "."], "give either --kernels DIR or --fresh"),
        (["h100_sxm", "--fresh", "--device", "cpu"], "of a device of compute capability 9.0, and this one"),
    ],
)
def test_refusals_are_one_line(arguments, message, capsys):
    assert run_command(["profile", "validate", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_shipped_profiles_are_still_compared_at_the_standard_shapes():
    found = {one.term: one for one in changes(load_profile("h100_sxm"), load_profile("a100_sxm"))}
    assert found["gemm/bfloat16"].shapes == 56
    assert found["decode_attention/bfloat16"].shapes == 64
    assert found["gemm/bfloat16"].drifted
