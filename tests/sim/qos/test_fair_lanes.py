"""Prompt tokens of steps, shared between tiers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.qos.tiers import Stepper, contracts, engine, tenants_trace, tier


@settings(deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 1)), min_size=60, max_size=150),
    share=st.sampled_from(["0.2", "0.5", "0.75"]),
    budget=st.integers(8, 100),
)
def test_backlogged_tiers_get_tokens_in_proportion(prompts, share, budget):
    """While both have prompts that could run: |W_a / w_a - W_b / w_b| <= L_a / w_a + L_b / w_b, over any span.

    W are tokens of prompts admitted, w weights, L the longest prompts (Goyal, Vin, Cheng 1996).
    """
    other = str(1 - float(share))
    what = contracts(tier("a", share), tier("b", other), hard=True)
    load = [(0, tokens, 1, tenant) for tokens, tenant in prompts]
    core = engine(tenants_trace(*load), what, seats=100_000, blocks=1_000_000, budget=100_000)
    core.limits = type(core.limits)(100_000, budget, core.limits.block_size)
    weights = [float(share), float(other)]
    admitted: list[tuple[int, int]] = []
    take = core.queue.served

    def served(lane, tokens):
        admitted.append((lane.index, tokens))
        take(lane, tokens)

    core.queue.served = served
    stepper = Stepper(core)
    longest = [max((n for n, t in prompts if t == lane), default=0) for lane in (0, 1)]
    bound = sum(most / weight for most, weight in zip(longest, weights, strict=True)) + 1e-6
    while stepper.step():
        pass
    left = [sum(t == lane for _, t in prompts) for lane in (0, 1)]
    work = [0.0, 0.0]
    lowest = highest = 0.0
    for lane, tokens in admitted:
        work[lane] += tokens / weights[lane]
        left[lane] -= 1
        ahead = work[0] - work[1]
        lowest, highest = min(lowest, ahead), max(highest, ahead)
        assert highest - lowest <= bound
        if 0 in left:
            break


def test_a_backlog_of_one_tenant_does_not_delay_another():
    """A hundred prompts of b wait; one of a arrives and is next, though it is the youngest."""
    load = [(0, 60, 1, 1)] * 100 + [(2000, 60, 1, 0)]
    what = contracts(tier("a", "0.5"), tier("b", "0.5"), hard=True)
    core = engine(tenants_trace(*load), what, seats=100, blocks=10_000, budget=100)
    stepper = Stepper(core)
    while 100 not in stepper.finished:
        stepper.step()
    assert stepper.now_ns == 3000  # the 40 tokens left of a prompt that was begun, and then its own 60


def test_a_tier_that_sat_idle_saves_nothing_up():
    """b ran alone for long; then both have prompts, and a gets its half, not all."""
    load = [(0, 50, 1, 1)] * 40 + [(10_000, 50, 1, tenant) for tenant in (0, 1) for _ in range(20)]
    what = contracts(tier("a", "0.5"), tier("b", "0.5"), hard=True)
    core = engine(tenants_trace(*load), what, seats=100, blocks=10_000, budget=100)
    stepper = Stepper(core)
    while len(stepper.finished) < 20 + 20:
        stepper.step()
    assert sum(index in range(40, 60) for index in stepper.finished[20:]) in (9, 10, 11)
