"""From `--vary` to arms; every mistake is one line that names it."""

from __future__ import annotations

import pytest

from sim.errors import ConfigError
from sim.studies.arms import build_arms, parse_vary
from tests.sim.studies.services import scenario


def names(*vary):
    return [arm.name for arm in build_arms(scenario(), vary)]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("engine.max_num_seqs=64,128", [64, 128]),
        ("policies.batcher=chunked, continuous", ["chunked", "continuous"]),
        (
            "policies.batcher={name: dynamic_chunked, target_tpot_ms: 30},chunked",
            [{"name": "dynamic_chunked", "target_tpot_ms": 30}, "chunked"],
        ),
        ("engine.cudagraph_capture_sizes=[1, 2],[1, 2, 4],null", [[1, 2], [1, 2, 4], None]),
        ("model='a,b',c", ["a,b", "c"]),
        ("engine.async_scheduling=true,false", [True, False]),
    ],
)
def test_values_are_yaml_and_commas_inside_do_not_split(option, values):
    assert list(parse_vary(option).values) == values


def test_names_say_what_differs():
    assert names("policies.batcher=chunked,{name: chunked, chunk_tokens: 64}") == [
        "chunked",
        "chunked(chunk_tokens=64)",
    ]
    assert names("engine.max_num_seqs=8,16") == ["max_num_seqs=8", "max_num_seqs=16"]
    assert names("policies.batcher.chunk_tokens=8,null") == ["chunk_tokens=8", "chunk_tokens=null"]


def test_several_give_all_combinations_the_first_of_each_first():
    arms = build_arms(scenario(), ["cluster.replicas=1,2", "policies.router=least_loaded,round_robin"])
    assert [arm.name for arm in arms] == [
        "replicas=1, least_loaded",
        "replicas=1, round_robin",
        "replicas=2, least_loaded",
        "replicas=2, round_robin",
    ]
    assert arms[3].set == {"cluster.replicas": 2, "policies.router": "round_robin"}
    assert arms[3].scenario.cluster.replicas == 2
    assert arms[3].scenario.policies.router.name == "round_robin"


def test_directories_are_plain_and_distinct():
    arms = build_arms(scenario(), ["model=/a/b.json,/A/b.json,a//b.json"])
    folders = [arm.directory for arm in arms]
    assert len({folder.lower() for folder in folders}) == 3
    assert not any("/" in folder for folder in folders)


def test_overrides_come_before_what_varies():
    arms = build_arms(
        scenario(), ["engine.max_num_seqs=8,32"], ["engine.max_num_seqs=4", "engine.block_size=8"]
    )
    assert [arm.scenario.engine.max_num_seqs for arm in arms] == [8, 32]
    assert {arm.scenario.engine.block_size for arm in arms} == {8}


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ([], "--vary: missing"),
        (["engine.max_num_seqs"], "write PATH=A,B"),
        (["=1,2"], "write PATH=A,B"),
        (["engine.max_num_seqs=64"], "one value; give at least two"),
        (["engine.max_num_seqs=64,"], "an empty value"),
        (["engine.max_num_seqs={a: 1,2"], "one value"),
        (["engine.max_num_seqs=64,[1"], "not YAML"),
        (["engine.max_num_sqs=64,128"], "did you mean max_num_seqs?"),
        (["engine.max_num_seqs=64,many"], "engine.max_num_seqs"),
        (["policies.batcher=chunked,chunkd"], "did you mean chunked?"),
        (["engine.max_num_seqs=64,64"], "the same scenario"),
        (["policies.batcher=chunked,{name: chunked}"], "the same scenario"),
        (["engine.max_num_seqs=8,9", "engine.max_num_seqs=10,11"], "given twice"),
        (["seed=1,2"], "--replications"),
        (["workload.request_rate=1,2"], "cannot be paired"),
        (["workload={trace: azure-conv},{trace: azure-code}"], "cannot be paired"),
        (["slo.ttft_ms=1,2"], "what counts as good"),
        (["simulation.fast_forward=true,false"], "never changes what comes out"),
        (["cluster.price_per_gpu_hour=1,2"], "changes no metric"),
    ],
)
def test_mistakes(vary, message):
    with pytest.raises(ConfigError, match=r"^--vary") as error:
        build_arms(scenario(), vary)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_mistakes_of_the_scenario_are_not_blamed_on_vary():
    with pytest.raises(ConfigError, match=r"^scenario: engine.max_num_seqs"):
        build_arms(scenario(engine={"max_num_seqs": 0}), ["cluster.replicas=1,2"])
