"""Engines beside random flows and transfers: fast-forward is exact; bytes and waits are conserved."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.links.background import Background
from sim.links.report import link_report
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.exactness import assert_same_columns, assert_same_records
from tests.sim.moving import GB, HBM, PCIE, Moving, network_of

routes = st.sampled_from(["load", "offload", "copy", "disk_load", "disk_store"])
transfers = st.tuples(routes, st.integers(0, 3000), st.booleans())
backgrounds = st.lists(
    st.builds(
        Background,
        owner=st.sampled_from(["weights", "checkpoint"]),
        route=routes,
        num_bytes=st.integers(1, 5000),
        bytes_per_s=st.sampled_from([PCIE // 3, PCIE // 5]),
        start_ns=st.integers(0, 60).map(lambda t: t * 500),
        every_ns=st.sampled_from([None, 10_000, 12_345]),
        replica=st.sampled_from([None, 0]),
    ),
    max_size=3,
)
requests_of_runs = st.lists(
    st.tuples(st.integers(0, 60).map(lambda t: t * 1000), st.integers(1, 60), st.integers(1, 40)),
    min_size=1,
    max_size=15,
).map(sorted)
runs = {
    "requests": requests_of_runs,
    "cost": st.builds(
        AffineCost,
        base_ns=st.sampled_from([500, 1000]),
        per_context_ns=st.sampled_from([0, 3]),
        per_prefill_token_ns=st.sampled_from([0, 11]),
        step_bytes=st.sampled_from([0, 400, 1000]),
        bytes_per_context=st.sampled_from([0, 3]),
        compute_s=st.sampled_from([0.0, 4e-7]),
        slack_s=st.sampled_from([0.0, 1e-7]),
        hbm_bytes_per_s=st.just(0.9 * HBM),
    ),
    "at_steps": st.dictionaries(st.integers(1, 60), transfers, max_size=6),
    "chained": st.lists(transfers, max_size=4).map(tuple),
    "leaving": st.sampled_from([0, 0, 700]),
    "background": backgrounds,
    "latency_ns": st.sampled_from([0, 0, 1500]),
    "blocks": st.integers(25, 60),
    "replicas": st.integers(1, 2),
}


def outcome(requests, cost, at_steps, chained, leaving, background, latency_ns, blocks, replicas, *, fast):
    moving = Moving(at_steps, chained, leaving)
    network = network_of(*background, replicas=replicas, latency_ns=latency_ns, disk=PCIE / 2)
    done, logs = run(
        trace_of(*requests),
        cost,
        allocator=moving,
        network=network,
        replicas=replicas,
        usable_blocks=blocks,
        max_num_seqs=5,
        fast_forward=fast,
    )
    return done, logs, network, moving


@settings(max_examples=200, deadline=None)
@given(**runs)
def test_fast_forward_changes_nothing(**choices):
    done, logs, network, moving = outcome(**choices, fast=True)
    done_1, logs_1, network_1, moving_1 = outcome(**choices, fast=False)
    assert_same_records((done, logs), (done_1, logs_1))
    report, report_1 = link_report(network, logs), link_report(network_1, logs_1)
    assert report.summary == report_1.summary
    assert_same_columns(report.columns, report_1.columns)
    for made, other in zip(moving.made, moving_1.made, strict=True):
        assert [at for at, _ in made.told] == [at for at, _ in other.told]


@settings(max_examples=150, deadline=None)
@given(**runs)
def test_bytes_and_waits_are_conserved(**choices):
    """Links carry what steps and transfers move, no more; a step takes its price and its wait, no less."""
    done, logs, network, moving = outcome(**choices, fast=True)
    end_ns = network.env.now_ns
    assert end_ns == int(done.columns["last_token_ns"].max())
    for links, made, log in zip(network.replicas, moving.made, logs, strict=True):
        _, owners = network.fabric.use(links.machine.hbm)
        stepped = owners["step"].bytes_total if log.step_ns.size else 0
        assert stepped == sum(links.step_bytes)
        assert len(links.step_bytes) == log.step_ns.size
        assert links.wait_ns <= log.step_ns.sum()
        asked = dict.fromkeys(("prefetch", "demand", "offload", "swap_out"), 0)
        for transfer in made.asked:
            asked[transfer.owner] += transfer.num_bytes
        for name, link in links.machine.links.items():
            total, by_owner = network.fabric.use(link)
            assert total.bytes_total == sum(use.bytes_total for use in by_owner.values())
            if name != "hbm":  # a copy counts twice on HBM
                for owner, num_bytes in asked.items():
                    assert owner not in by_owner or by_owner[owner].bytes_total <= num_bytes
                assert total.bytes_total <= link.bytes_per_s * end_ns / GB + 1
        told = [transfer for _, transfer in made.told]
        assert len(told) == len(set(map(id, told))) <= len(made.asked)
