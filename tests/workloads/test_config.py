"""The workload section: every field acts or is an error that names field, value and remedy."""

import math

import pytest
from pydantic import ValidationError

from workloads.config import WorkloadConfig, parse_workload
from workloads.errors import ConfigError

LENGTHS = {"input_tokens": 10, "output_tokens": 5}
OPEN = {**LENGTHS, "request_rate": 2.0, "num_requests": 10}

BAD = {
    # name: (section, the whole message or its beginning)
    "nothing": ({}, "workload.trace: nothing to run; give a trace, or input_tokens and output_tokens"),
    "unknown field": (
        {**OPEN, "num_request": 3},
        "workload.num_request: unknown field; did you mean num_requests?",
    ),
    "trace and lengths": (
        {"trace": "azure-conv", "input_tokens": 3},
        "workload.input_tokens: the trace 'azure-conv' has its own lengths; give one or the other",
    ),
    "half of the lengths": (
        {"input_tokens": 3},
        "workload.output_tokens: missing beside input_tokens; give both",
    ),
    "format alone": (
        {**OPEN, "format": "azure"},
        "workload.format: acts on a trace file only; give trace, or leave",
    ),
    "drop alone": (
        {**OPEN, "drop_failed": True},
        "workload.drop_failed: acts on a trace file only; give trace, or",
    ),
    "no arrivals": (
        {**LENGTHS, "num_requests": 5},
        "workload.request_rate: missing; give a rate in requests/s, a ramp, or max_concurrency (closed loop)",
    ),
    "no count": (
        {**LENGTHS, "request_rate": 1},
        "workload.num_requests: missing; give num_requests or duration_s",
    ),
    "no count in a closed loop": (
        {**LENGTHS, "max_concurrency": 4},
        "workload.num_requests: missing; give num_requests",
    ),
    "rate of zero": (
        {**OPEN, "request_rate": 0},
        "workload.request_rate: Input should be greater than 0 (found 0)",
    ),
    "rate in words": (
        {**OPEN, "request_rate": "fast"},
        "workload.request_rate: a number above 0, or \"inf\", is expected (found 'fast')",
    ),
    "rate nan": (
        {**OPEN, "request_rate": math.nan},
        "workload.request_rate: Input should be greater than 0",
    ),
    "count of zero": (
        {**OPEN, "num_requests": 0},
        "workload.num_requests: Input should be greater than or equal to 1",
    ),
    "count of a half": (
        {**OPEN, "num_requests": 2.5},
        "workload.num_requests: Input should be a valid integer",
    ),
    "count of true": (
        {**OPEN, "num_requests": True},
        "workload.num_requests: Input should be a valid integer",
    ),
    "length in words": (
        {**OPEN, "input_tokens": "long"},
        "workload.input_tokens: a whole number of tokens, {uniform: [low, high]}, {lognormal: {mean: .., sigma: ..}}",
    ),
    "two laws": (
        {**OPEN, "input_tokens": {"uniform": [1, 2], "quantiles": [1, 2]}},
        "workload.input_tokens: a whole number of tokens, {uniform",
    ),
    "length of zero": (
        {**OPEN, "output_tokens": 0},
        "workload.output_tokens: Input should be greater than or equal",
    ),
    "uniform upside down": (
        {**OPEN, "input_tokens": {"uniform": [5, 3]}},
        "workload.input_tokens.uniform: low 5 is above high 3; write [low, high]",
    ),
    "uniform of one": (
        {**OPEN, "input_tokens": {"uniform": [5]}},
        "workload.input_tokens.uniform: two bounds are expected, as [low, high]",
    ),
    "mean outside": (
        {**OPEN, "input_tokens": {"lognormal": {"mean": 5, "sigma": 1, "low": 6, "high": 9}}},
        "workload.input_tokens.lognormal: mean 5 is not between low 6 and high 9; it is the mean of the",
    ),
    "median of a lognormal": (
        {**OPEN, "input_tokens": {"lognormal": {"mean": 5, "sigma": 1, "median": 6}}},
        "workload.input_tokens.lognormal.median: unknown field",
    ),
    "quantiles that fall": (
        {**OPEN, "input_tokens": {"quantiles": [1, 5, 3]}},
        "workload.input_tokens.quantiles: 3 follows 5; quantiles must ascend",
    ),
    "half a ramp": (
        {**LENGTHS, "num_requests": 5, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1},
        "workload.ramp_up_end_rps: missing; a ramp needs ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps",
    ),
    "ramp and rate": (
        {**OPEN, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2},
        "workload.request_rate: 2 beside ramp_up_strategy, which sets the rate; give one",
    ),
    "ramp of a kind": (
        {**LENGTHS, "num_requests": 5, "ramp_up_strategy": "square"},
        "workload.ramp_up_strategy: Input should be 'linear' or 'exponential' (found 'square')",
    ),
    "ramp without count": (
        {
            **LENGTHS,
            "duration_s": 5,
            "ramp_up_strategy": "linear",
            "ramp_up_start_rps": 1,
            "ramp_up_end_rps": 2,
        },
        "workload.num_requests: missing; a ramp runs over a number of requests",
    ),
    "rate behind a limit": (
        {**OPEN, "max_concurrency": 4},
        "workload.max_concurrency: 4 beside request_rate 2; arrivals by rate behind a client limit are not offered",
    ),
    "duration of a closed loop": (
        {**LENGTHS, "max_concurrency": 4, "num_requests": 5, "duration_s": 9},
        "workload.duration_s: has no meaning in a closed loop (max_concurrency); leave one of them out",
    ),
    "burstiness of a burst": (
        {**OPEN, "request_rate": "inf", "burstiness": 2},
        "workload.burstiness: has no effect at an infinite request_rate; leave it out or give a finite rate",
    ),
    "two ends": (
        {**OPEN, "rescale_arrivals": True, "duration_s": 3},
        "workload.rescale_arrivals: sets the last arrival, and so does duration_s; give num_requests instead",
    ),
    "sessions of a trace": (
        {"trace": "azure-conv", "sessions": {}},
        "workload.sessions: the trace 'azure-conv' has its own; give input_tokens and output_tokens instead",
    ),
    "sessions at once": (
        {**OPEN, "request_rate": "inf", "sessions": {}},
        "workload.request_rate: sessions need a finite rate in requests/s",
    ),
    "sessions on a ramp": (
        {**LENGTHS, "num_requests": 5, "sessions": {}}
        | {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2},
        "workload.ramp_up_strategy: not offered together with sessions, which start at request_rate / turns",
    ),
    "endless": (
        {**LENGTHS, "request_rate": 1.0, "duration_s": 1e30},
        "workload.duration_s: Input should be less than or equal to 2000000000",
    ),
    "too many": (
        {**OPEN, "num_requests": 5_000_000_000},
        "workload.num_requests: Input should be less than or equal to 20000000 (found 5000000000)",
    ),
    "too rare": (
        {**OPEN, "request_rate": 1e-300},
        "workload.request_rate: a rate is at least 1e-09 and at most 1e+09 requests/s (found 1e-300)",
    ),
    "too bursty": (
        {**OPEN, "burstiness": 1e-300},
        "workload.burstiness: at least 0.0001 is expected (gaps of CV 100) (found 1e-300)",
    ),
    "too long": (
        {**OPEN, "input_tokens": 100_000_000_000},
        "workload.input_tokens: Input should be less than or equal to 1000000000 (found 100000000000)",
    ),
    "too long a quantile": (
        {**OPEN, "input_tokens": {"quantiles": [1, 99999999999999999999]}},
        "workload.input_tokens.quantiles.1: Input should be less than or equal to 1000000000",
    ),
    "too long a mean": (
        {**OPEN, "input_tokens": {"lognormal": {"mean": 1e30, "sigma": 1}}},
        "workload.input_tokens.lognormal.mean: Input should be less than or equal to 1000000000",
    ),
    "too long a session": (
        {**OPEN, "sessions": {"turn_gap_s": 1e300}},
        "workload.sessions.turn_gap_s: Input should be less than or equal to 2000000000",
    ),
    "too heavy a tenant": (
        {**OPEN, "tenants": {"a": {"weight": 1e308}}},
        "workload.tenants.a.weight: Input should be less than or equal to 1000000000",
    ),
    "no tenant": ({**OPEN, "tenants": {}}, "workload.tenants: names no tenant; give at least one, or leave"),
    "weightless tenant": (
        {**OPEN, "tenants": {"a": {"weight": 0}}},
        "workload.tenants.a.weight: Input should be greater than 0 (found 0)",
    ),
    "field of a tenant": (
        {**OPEN, "tenants": {"a": {"share": 1}}},
        "workload.tenants.a.share: unknown field",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_with_one_line(name):
    section, message = BAD[name]
    with pytest.raises(ConfigError) as caught:
        parse_workload(section)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_as_part_of_another_model_the_location_names_the_field():
    with pytest.raises(ValidationError) as caught:
        WorkloadConfig(input_tokens=3)
    (problem,) = caught.value.errors()
    assert problem["loc"] == ("output_tokens",)
    assert problem["msg"] == "missing beside input_tokens; give both"


@pytest.mark.parametrize(
    "section",
    [
        OPEN,
        {**OPEN, "request_rate": "inf"},
        {**OPEN, "burstiness": "inf", "rescale_arrivals": True},
        {"trace": "azure-conv"},
        {
            "trace": "x.csv",
            "format": "azure",
            "drop_failed": True,
            "max_concurrency": 3,
            "request_rate": "inf",
        },
        {**OPEN, "sessions": {"turns": {"uniform": [1, 4]}}, "tenants": {"a": {"priority": -1}}},
        {**OPEN, "input_tokens": {"lognormal": {"mean": 512, "sigma": 0.8, "low": 16, "high": 8192}}},
    ],
)
def test_written_down_and_read_again_it_is_the_same(section):
    config = parse_workload(section)
    again = parse_workload(config.model_dump(mode="json", exclude_none=True))
    assert again == config


def test_whole_numbers_may_be_written_as_floats():
    config = parse_workload({**OPEN, "num_requests": 1e3, "input_tokens": 2e2, "sessions": {"turns": 3.0}})
    assert (config.num_requests, config.input_tokens, config.sessions.turns) == (1000, 200, 3)
    assert all(type(value) is int for value in (config.num_requests, config.input_tokens))


def test_infinity_is_written_as_vllm_writes_it():
    assert parse_workload({**OPEN, "request_rate": "inf"}).model_dump(mode="json")["request_rate"] == "inf"


def test_it_is_frozen_and_has_a_schema():
    config = parse_workload(OPEN)
    with pytest.raises(ValidationError):
        config.num_requests = 3
    assert WorkloadConfig.model_json_schema()["properties"]["request_rate"]
