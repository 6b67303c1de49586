"""Laws that every run keeps: requests and tokens are conserved, nothing happens before its cause, room suffices."""

from __future__ import annotations

import numpy as np

from sim.engine.records import Status
from sim.simulation import Result
from workloads.build import Workload


def check_laws(result: Result, load: Workload) -> None:
    requests, trace = result.requests, load.trace
    columns, done = requests.columns, requests.completed
    assert set(columns["status"].tolist()) <= set(Status)  # each is done or refused, and says so once
    assert result.summary["completed"] + result.summary["failed"] == len(trace)
    assert (columns["arrival_ns"] >= trace.arrival_ns).all()
    if trace.turns is not None:
        follows = np.flatnonzero(trace.turns.predecessor >= 0)
        before = trace.turns.predecessor[follows]
        refused = np.maximum(columns["queued_ns"], columns["arrival_ns"])[
            before
        ]  # by the engine, or before it
        ready = np.maximum(columns["last_token_ns"][before], refused)
        assert np.array_equal(columns["arrival_ns"][follows], ready + trace.turns.think_ns[follows])
    stages = requests.stages_ns
    assert all((values >= 0).all() for values in stages.values())
    assert np.array_equal(sum(stages.values()), requests.e2el_ns)
    assert (columns["cached_tokens"][done] < columns["input_tokens"][done]).all()
    _check_tokens(result)
    for index, log in enumerate(result.replicas):
        _check_steps(result, index)
        usable = result.service.capacity.usable_blocks
        for used in (log.first_used_blocks, log.last_used_blocks):
            assert ((used >= 0) & (used <= usable)).all()
        assert (log.running <= result.service.limits.max_num_seqs).all()
    own = result.summary["sim"]
    if "links" in own:
        assert all(0 <= use["utilization"] <= 1 + 1e-6 for name, use in own["links"].items() if name != "hbm")
    if "kv_tiers" in own:
        block_gib = result.service.capacity.block_bytes / 2**30
        most = own["kv_tiers"]["host_blocks"] * block_gib
        assert own["kv_tiers"]["host_used_gib_peak"] <= most * (1 + 1e-9)
    if load.max_concurrency is not None and trace.turns is None:
        assert result.summary["max_concurrent_requests"] <= load.max_concurrency


def _check_tokens(result: Result) -> None:
    """Every token was sampled in one step, and what was computed is what was asked for and not found."""
    requests, logs = result.requests, result.replicas
    sampled = sum(int(log.decodes @ log.steps) + log.resumed_ns.size for log in logs) + int(
        requests.completed.sum()
    )
    assert sampled == requests.output_tokens.sum()
    computed = sum(int(log.prefill_tokens.sum()) for log in logs)
    if result.scenario.engine.enable_prefix_caching:
        asked = sum(log.prefix_queries - log.prefix_hits for log in logs)
        asked += sum(log.preempted_queries - log.preempted_hits for log in logs)
        assert computed <= asked
        if not result.summary["sim"]["preemptions"]:
            assert computed == asked
    elif not result.summary["sim"]["preemptions"]:
        assert computed == requests.input_tokens.sum()
    else:
        assert computed >= requests.input_tokens.sum()


def _check_steps(result: Result, index: int) -> None:
    """Steps of a replica follow each other, and each request that ran there ended with one of them."""
    log, requests = result.replicas[index], result.requests
    assert (log.step_ns > 0).all()
    ends = log.step_ends_ns()
    assert (np.diff(ends) >= log.step_ns[1:]).all()
    here = requests.completed & (requests.columns["replica"] == index)
    for name in ("first_token_ns", "last_token_ns"):
        assert np.isin(requests.columns[name][here], ends).all()
    assert (requests.columns["scheduled_ns"][here] >= requests.columns["arrival_ns"][here]).all()
