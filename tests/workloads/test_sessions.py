"""Sessions and tenants: who shares which prefix."""

import itertools

import numpy as np
import pytest

from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.errors import ConfigError

SEED = np.random.SeedSequence(3)
BASE = {"input_tokens": {"uniform": [20, 90]}, "output_tokens": {"uniform": [5, 60]}, "request_rate": 5.0}


def build(seed=SEED, **fields):
    return build_workload(parse_workload({**BASE, **fields}), seed).trace


def test_prompts_grow_and_repeat_the_talk_so_far():
    trace = build(num_requests=2000, sessions={"turns": 4, "system_prompt_tokens": 40, "system_prompts": 2})
    for session in range(50):
        turns = np.flatnonzero(trace.session == session)
        for before, after in itertools.pairwise(turns):
            said = trace.input_tokens[before] + trace.output_tokens[before]
            assert 20 <= trace.input_tokens[after] - said <= 90
            full = trace.input_tokens[before] // 16
            assert trace.hashes.of(after)[:full].tolist() == trace.hashes.of(before)[:full].tolist()


def test_only_the_system_prompt_is_shared_between_sessions():
    trace = build(num_requests=500, sessions={"turns": 1, "system_prompt_tokens": 40, "system_prompts": 3})
    heads = {tuple(trace.hashes.of(i)[:2].tolist()) for i in range(500)}
    tails = [block for i in range(500) for block in trace.hashes.of(i)[2:].tolist()]
    assert len(heads) == 3
    assert len(set(tails)) == len(tails)


def test_a_partial_last_block_is_never_shared():
    trace = build(num_requests=1000, sessions={"turns": 5})
    last = [int(trace.hashes.of(i)[-1]) for i in range(1000) if trace.input_tokens[i] % 16]
    ids, counts = np.unique(trace.hashes.ids, return_counts=True)
    assert counts[np.isin(ids, last)].max() == 1


def test_requests_come_at_the_rate_in_the_long_run():
    trace = build(num_requests=20_000, sessions={"turns": {"uniform": [1, 7]}, "turn_gap_s": 2.0})
    late = trace.arrival_ns[5000:]
    assert (late.size - 1) / (late[-1] - late[0]) * 1e9 == pytest.approx(5, rel=0.05)


def test_long_prompts_end_sessions_and_the_rate_stays():
    sessions = {"turns": 20, "turn_gap_s": 1.0, "max_input_tokens": 600}
    trace = build(num_requests=20_000, sessions=sessions)
    assert trace.input_tokens.max() <= 600
    late = trace.arrival_ns[5000:]
    assert (late.size - 1) / (late[-1] - late[0]) * 1e9 == pytest.approx(5, rel=0.05)
    with pytest.raises(
        ConfigError, match=r"workload.sessions.max_input_tokens: a first prompt has \d+ tokens"
    ):
        build(num_requests=10, sessions={"max_input_tokens": 30})


def test_duration_and_count_agree_on_the_same_sessions():
    sessions = {"turns": 3, "turn_gap_s": 5.0}
    by_count = build(num_requests=400, sessions=sessions)
    by_time = build(duration_s=60, sessions=sessions)
    shorter = min(len(by_count), len(by_time))
    assert shorter > 100
    assert np.array_equal(by_count.arrival_ns[:shorter], by_time.arrival_ns[:shorter])
    assert np.array_equal(by_count.input_tokens[:shorter], by_time.input_tokens[:shorter])
    assert by_time.arrival_ns[-1] < 60 * 10**9


def test_tenants_share_by_weight_and_keep_sessions_together():
    tenants = {"chat": {"weight": 3}, "batch": {"weight": 1, "priority": 5}}
    trace = build(num_requests=20_000, sessions={"turns": 4, "system_prompt_tokens": 64}, tenants=tenants)
    assert trace.tenant_names == ("chat", "batch")
    assert np.mean(trace.tenant == 0) == pytest.approx(0.75, abs=0.02)
    assert set(zip(trace.tenant.tolist(), trace.priority.tolist(), strict=True)) == {(0, 0), (1, 5)}
    for session in range(100):
        assert np.unique(trace.tenant[trace.session == session]).size <= 1


def test_tenants_share_no_prefix():
    tenants = {"a": {}, "b": {}}
    trace = build(num_requests=1000, sessions={"turns": 4, "system_prompt_tokens": 64}, tenants=tenants)
    owners = np.repeat(trace.tenant, np.diff(trace.hashes.offsets))
    assert not set(trace.hashes.ids[owners == 0]) & set(trace.hashes.ids[owners == 1])
    assert trace.hashes.is_chained()


def test_tenants_do_not_touch_lengths_and_arrivals():
    plain, shared = build(num_requests=300), build(num_requests=300, tenants={"a": {}, "b": {}})
    for column in ("arrival_ns", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(plain, column), getattr(shared, column))
