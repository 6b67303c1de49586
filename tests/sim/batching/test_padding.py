"""Padded batches: against a rectangle worked out request by request."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.static_batch import StaticBatch
from sim.metrics import padding
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of, with_prefixes
from tests.sim.strategies import steep_costs

loads = st.lists(st.tuples(st.just(0), st.integers(1, 40), st.integers(1, 25)), min_size=1, max_size=20)


def rectangles(load, size, budget, cost):
    """All requests are there at the start and KV is plenty: (start, first token, last token) of each, tokens padded."""
    times, padded, now, at = [], 0, 0, 0
    while at < len(load):
        batch = [load[at]]
        while at + len(batch) < len(load) and len(batch) < size:
            longest = max(prompt for _, prompt, _ in [*batch, load[at + len(batch)]])
            if longest * (len(batch) + 1) > budget:
                break
            batch.append(load[at + len(batch)])
        rows, longest, steps = len(batch), max(p for _, p, _ in batch), max(o for _, _, o in batch)
        start = now
        now += cost.mixed_ns(0, 0, 0, [(longest, 0)] * rows)
        ends = [now]
        for step in range(1, steps):
            context = longest + step
            window = min(context, cost.sliding_window) if cost.sliding_window else 0
            now += cost.decode_ns(rows, rows * context, rows * window)
            ends.append(now)
        times += [(start, ends[0], ends[output - 1]) for _, _, output in batch]
        padded += sum(longest - prompt + steps - output for _, prompt, output in batch)
        at += rows
    return times, padded


@settings(max_examples=200, deadline=None)
@given(load=loads, size=st.integers(1, 6), budget=st.integers(64, 150), cost=steep_costs, fast=st.booleans())
def test_a_padded_batch_is_a_rectangle(load, size, budget, cost, fast):
    requests, logs = run(
        trace_of(*load),
        cost,
        batcher=StaticBatch(batch_size=size, padding=True),
        max_num_batched_tokens=budget,
        fast_forward=fast,
    )
    times, padded = rectangles(load, size, budget, cost)
    c = requests.columns
    assert list(zip(c["scheduled_ns"], c["first_token_ns"], c["last_token_ns"], strict=True)) == times
    own = sum(prompt + output - 1 for _, prompt, output in load)
    assert padding(logs) == {"padded_tokens": padded, "share": padded / (padded + own)}
    (log,) = logs
    assert log.decodes @ log.steps == sum(
        output - 1 for _, _, output in load
    )  # only tokens of requests are told


@given(
    load=loads, seats=st.integers(1, 5), blocks=st.integers(18, 40), group=st.sampled_from(["none", "length"])
)
def test_all_is_computed_though_kv_runs_short(load, seats, blocks, group):
    requests, (log,) = run(
        trace_of(*load),
        constant_cost(10),
        batcher=StaticBatch(padding=True, group_by=group),
        max_num_seqs=seats,
        usable_blocks=blocks,
    )
    assert requests.completed.all()
    resumed = log.resumed_gaps_ns.size
    assert log.decodes @ log.steps + resumed == sum(output - 1 for _, _, output in load)
    assert log.padded_tokens >= 0


def test_a_prefix_that_every_row_has_is_not_computed():
    """Rows of 12 and 9 tokens, 8 and 4 of them cached: 2 rows of 12 - 4 = 8 tokens, of which 4 and 5 are their own."""
    first = [(0, 8, 1), (0, 4, 1)]
    later = [(100, 12, 1), (100, 9, 1)]
    trace = with_prefixes(trace_of(*first, *later), [[1, 2], [5], [1, 2], [5]], 4)
    cost = AffineCost(base_ns=1, per_prefill_token_ns=1)
    requests, logs = run(trace, cost, batcher=StaticBatch(padding=True), prefix_caching=True)
    assert requests.columns["cached_tokens"].tolist() == [0, 0, 8, 4]
    assert logs[0].step_ns.tolist() == [1 + 2 * 8, 1 + 2 * 8]
    assert logs[0].padded_tokens == 4 + (16 - 9)


def test_batches_of_similar_lengths_have_less_padding():
    rng = np.random.default_rng(3)
    load = [(0, int(n), int(n)) for n in rng.lognormal(3.5, 0.8, 300).clip(1, 400)]
    shares = {}
    for group in ("none", "length"):
        batcher = StaticBatch(batch_size=8, padding=True, group_by=group)
        requests, logs = run(
            trace_of(*load),
            AffineCost(base_ns=100, per_seq_ns=10, per_prefill_token_ns=1),
            batcher=batcher,
            max_num_batched_tokens=8192,
        )
        shares[group] = (padding(logs)["share"], requests.duration_ns)
    assert shares["length"][0] < shares["none"][0] / 2
    assert shares["length"][1] < shares["none"][1]
