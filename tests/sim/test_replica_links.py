"""Links wired into replicas: stretched steps, transfers and their waits, background flows, and the account of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.clock import Clock
from sim.engine.cluster import EngineSetup
from sim.engine.replica import Replica
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.kv.allocators.paged import PagedAllocator
from sim.kv.build import KvSetup
from sim.kv.transfer import Transfer
from sim.links.background import Background
from sim.links.history import Points
from sim.links.network import Network
from sim.links.report import MOST_POINTS, bounded, link_report
from sim.metrics import serving_metrics
from sim.scenario.reading import load_scenario
from sim.simulation import simulate
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of

GB = 10**9
HBM, PCIE = GB, GB // 10  # 1 byte and 0.1 bytes a nanosecond
DEVICE = SimpleNamespace(
    hbm_bytes_per_s=HBM, pcie_bytes_per_s=PCIE, nvlink_bytes_per_s=None, nic_bytes_per_s=None
)


def network_of(*background: Background, replicas: int = 1, latency_ns: int = 0, **measured: float) -> Network:
    return Network(Clock(), DEVICE, replicas, measured=measured, latency_ns=latency_ns, background=background)


@dataclass
class Moving:
    """An allocator that asks for transfers at given steps, when sequences finish or are displaced, and in chains.

    at_steps   transfers as (route, bytes, blocking) by the step at whose start they are asked for
    chained    what is asked for when one has landed, one after the other
    leaving    the bytes that a sequence that leaves writes to the host; 0: none
    """

    at_steps: dict[int, tuple[str, int, bool]] = field(default_factory=dict)
    chained: tuple[tuple[str, int, bool], ...] = ()
    leaving: int = 0
    made: list[MovingAllocator] = field(default_factory=list)
    name = "moving"

    def build(self, num_blocks, block_size, max_model_len, block_bytes):
        self.made.append(MovingAllocator(num_blocks, block_size, self))
        return self.made[-1]


class MovingAllocator(PagedAllocator):
    def __init__(self, num_blocks, block_size, moving):
        super().__init__(num_blocks, block_size)
        self.moving = moving
        self.chained = list(moving.chained)
        self.asked: list[Transfer] = []
        self.told: list[tuple[int, Transfer]] = []
        self.count = 0

    def ask(self, owner, route, num_bytes, blocking):
        self.asked.append(Transfer(owner, route, num_bytes, blocking))
        self.transfers.append(self.asked[-1])

    def grow(self, steps):
        super().grow(steps)
        self.count += steps
        if self.count in self.moving.at_steps:  # the first step of a plan: windows end before
            self.ask("prefetch", *self.moving.at_steps[self.count])

    def growth_limit(self, steps):
        due = [step - self.count - 1 for step in self.moving.at_steps if step > self.count]
        return min([super().growth_limit(steps), *due])

    def landed(self, transfer):
        self.told.append((self.now_ns, transfer))
        if self.chained:
            self.ask("demand", *self.chained.pop())

    def release(self, holding):
        super().release(holding)
        if self.moving.leaving:
            self.ask("offload", "offload", self.moving.leaving, False)

    def preempt(self, holding):
        super().release(holding)
        if self.moving.leaving:
            self.ask("swap_out", "offload", self.moving.leaving, True)


# Steps beside flows, in closed form.


def step_times(cost, network, output_tokens=20, **options):
    _, (log,) = run(trace_of((0, 1, output_tokens)), cost, network=network, **options)
    return log.step_ns.tolist()


BUSY_PCIE = Background("weights", "load", num_bytes=100 * GB, bytes_per_s=PCIE)


def test_a_step_that_is_bound_by_memory_slows_by_what_flows_take():
    """A tenth of the HBM goes to a flow over PCIe: 1 ms becomes 1 / 0.9 ms."""
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    assert step_times(cost, network_of(BUSY_PCIE)) == [1_111_111] * 20
    assert step_times(cost, network_of()) == step_times(cost, None) == [1_000_000] * 20


def test_a_step_that_is_bound_by_compute_or_by_the_host_does_not():
    compute = AffineCost(base_ns=1_000_000, step_bytes=900_000, compute_s=1e-3, hbm_bytes_per_s=HBM)
    assert step_times(compute, network_of(BUSY_PCIE)) == [1_000_000] * 20
    waits = AffineCost(base_ns=1_000_000, step_bytes=900_000, slack_s=1e-4, hbm_bytes_per_s=HBM)
    assert step_times(waits, network_of(BUSY_PCIE)) == [1_000_000] * 20


def test_two_directions_of_pcie_take_two_tenths():
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    offload = Background("checkpoint", "offload", 100 * GB, PCIE)
    assert step_times(cost, network_of(BUSY_PCIE, offload)) == [1_250_000] * 20


def test_a_copy_and_the_engine_share_max_min_fairly():
    """Reading and writing, a copy counts twice on HBM: each of the three thirds is a third."""
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    copies = Background("copies", "copy", 100 * GB, HBM // 2)
    assert step_times(cost, network_of(copies)) == [3_000_000] * 20


def test_traffic_that_grows_with_the_context():
    """Each step reads a token more: alone c, beside a flow that takes a tenth round(c / 9) longer."""
    cost = AffineCost(base_ns=1, per_context_ns=1000, bytes_per_context=1000, hbm_bytes_per_s=HBM)
    alone = step_times(cost, network_of())
    beside = step_times(cost, network_of(BUSY_PCIE))
    assert alone[1:] == [1 + 1000 * context for context in range(2, 21)]
    moved = 1000.0 * np.arange(2, 21)
    longer = np.rint(1e9 * (moved / HBM / 0.9 - moved / HBM))
    assert beside[1:] == (alone[1:] + longer).tolist()


def test_a_step_in_progress_keeps_its_price_and_the_next_one_has_another():
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    short = Background("weights", "load", 300_000, PCIE, start_ns=2_500_000)  # 3 ms long
    assert step_times(cost, network_of(short), 8) == [10**6] * 3 + [1_111_111] * 3 + [10**6] * 2


def test_repeated_flows_come_again_but_never_pile_up():
    once = Background("weights", "load", 200_000, PCIE, start_ns=0, every_ns=3_000_000)  # 2 of every 3 ms
    network = network_of(once)
    step_times(AffineCost(base_ns=1_000_000), network, 9)
    assert network.env.now_ns == 9_000_000
    use, _ = network.fabric.use(network.fabric.links["0.pcie_h2d"])
    assert (use.bytes_total, use.busy_s) == (600_000, 6e-3)
    slow = Background(
        "copies", "copy", 1_000_000, HBM // 2, every_ns=2_000_000
    )  # takes 3 ms beside the engine
    network = network_of(slow)
    step_times(AffineCost(base_ns=1_000_000), network, 9)
    _, owners = network.fabric.use(network.fabric.links["0.hbm"])
    assert owners["copies"].bytes_total == 6_000_000


# Transfers.


def test_one_two_and_more_overlapping_transfers_end_when_shares_say():
    """n loads of one size share PCIe and end together; of sizes 1, 2, ..., n the k-th ends after sum min(i, k)."""
    for n in (1, 2, 5):
        for sizes in ([1000] * n, [1000 * (i + 1) for i in range(n)]):
            network = network_of()
            ended: list[tuple[int, int]] = []
            core = GatedCore([Transfer("reload", "load", size) for size in sizes], network.env, ended)
            Replica(network.env, 0, core, AffineCost(), lambda *_: None, links=network.replicas[0])
            network.env.run(until=10**9)
            assert sorted(size for _, size in ended) == sizes
            for at_ns, size in ended:
                assert at_ns == 10 * sum(min(other, size) for other in sizes)


class GatedCore:
    """An engine with one request of one token, which it may run once these transfers have landed."""

    def __init__(self, transfers, env, ended):
        self.env, self.ended = env, ended
        self.asked = list(transfers)
        self.left = len(transfers)
        self.scheduled: list[int] = []
        self.committed: list[int] = []
        limits = EngineLimits(max_num_seqs=1, max_num_batched_tokens=8, block_size=4)
        self.engine = EngineSetup(limits, Chunked(), KvSetup(10, 4, 100)).build(
            RequestTable(trace_of((0, 1, 1))), AffineCost()
        )
        self.engine.submit(0)

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def schedule(self, now_ns):
        self.scheduled.append(now_ns)
        return None if self.left else self.engine.schedule(now_ns)

    def take_transfers(self):
        asked, self.asked = self.asked, []
        return asked

    def landed(self, transfer):
        self.left -= 1
        self.ended.append((self.env.now_ns, transfer.num_bytes))

    def commit(self, plan, steps, now_ns):
        self.committed.append(now_ns)
        return self.engine.commit(plan, steps, now_ns)


def test_an_idle_replica_wakes_when_a_transfer_has_landed():
    network = network_of(latency_ns=700)
    core = GatedCore([Transfer("reload", "load", size) for size in (100, 300)], network.env, [])
    Replica(network.env, 0, core, AffineCost(base_ns=50), lambda *_: None, links=network.replicas[0])
    network.env.run(until=10**6)
    assert core.ended == [(2700, 100), (4700, 300)]
    assert core.scheduled == [0, 2700, 4700, 4750]
    assert core.committed == [4750]


def test_a_disk_is_read_through_host_memory_at_the_rate_of_the_slowest_link():
    network = network_of(disk=PCIE / 4)
    core = GatedCore(
        [Transfer("reload", "disk_load", 1000), Transfer("x", "disk_store", 1000)], network.env, []
    )
    Replica(network.env, 0, core, AffineCost(), lambda *_: None, links=network.replicas[0])
    network.env.run(until=10**6)
    assert core.ended == [(80_000, 1000)] * 2
    totals = {name: network.fabric.use(link)[0].bytes_total for name, link in network.fabric.links.items()}
    assert totals == {"0.hbm": 1000, "0.pcie_h2d": 1000, "0.pcie_d2h": 0, "0.disk": 2000}


def test_a_blocking_transfer_delays_the_step_that_waits_for_it():
    """At the third step 1,000 bytes over PCIe: 10 us more, in the log, in ITL, and in the sum of waits."""
    moving = Moving({3: ("load", 1000, True)})
    network = network_of()
    requests, logs = run(trace_of((0, 1, 6)), AffineCost(base_ns=1000), allocator=moving, network=network)
    assert logs[0].step_ns.tolist() == [1000, 1000, 11_000, 1000, 1000, 1000]
    assert requests.columns["last_token_ns"].tolist() == [16_000]
    assert serving_metrics(requests, logs, {})["p99_itl_ms"] > 0.01
    assert link_report(network, logs).summary["transfer_wait_s"] == 10e-6
    _, owners = network.fabric.use(network.fabric.links["0.hbm"])
    assert owners["step"].busy_s == 6e-6  # while it waits the engine leaves the HBM alone


def test_one_that_does_not_block_delays_nothing():
    moving = Moving({3: ("load", 30, False)})
    network = network_of()
    _, logs = run(trace_of((0, 1, 6)), AffineCost(base_ns=1000), allocator=moving, network=network)
    assert logs[0].step_ns.tolist() == [1000] * 6
    assert [at_ns for at_ns, _ in moving.made[0].told] == [3000]  # landed at 2300, seen by the next step
    assert link_report(network, logs).summary["transfer_wait_s"] == 0.0


def test_a_run_ends_with_its_last_request_and_counts_what_is_across():
    moving = Moving({2: ("load", 10**6, False)})
    network = network_of()
    requests, logs = run(trace_of((0, 1, 4)), AffineCost(base_ns=1000), allocator=moving, network=network)
    assert network.env.now_ns == requests.duration_ns == 4000
    assert (
        link_report(network, logs).summary["links"]["pcie_h2d"]["by_owner"]["prefetch"]["bytes_total"] == 300
    )


def test_without_requests_nothing_runs():
    network = network_of(BUSY_PCIE)
    _, logs = run(trace_of(), AffineCost(), network=network)
    assert link_report(network, logs).columns["t_s"].size == 0


# Nothing depends on how many steps are taken at once.

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


@settings(max_examples=300, deadline=None)
@given(**runs)
def test_fast_forward_changes_nothing(**choices):
    done, logs, network, moving = outcome(**choices, fast=True)
    done_1, logs_1, network_1, moving_1 = outcome(**choices, fast=False)
    for name, column in done.columns.items():
        assert np.array_equal(column, done_1.columns[name]), name
    for log, other in zip(logs, logs_1, strict=True):
        for name, column in vars(log).items():
            assert np.array_equal(column, getattr(other, name)), name
    report, report_1 = link_report(network, logs), link_report(network_1, logs_1)
    assert report.summary == report_1.summary
    for name, column in report.columns.items():
        assert np.array_equal(column, report_1.columns[name]), name
    for made, other in zip(moving.made, moving_1.made, strict=True):
        assert [at for at, _ in made.told] == [at for at, _ in other.told]


@settings(max_examples=150, deadline=None)
@given(**runs)
def test_bytes_and_waits_are_conserved(**choices):
    """Links carry what steps and transfers move, no more; a step takes its price and its wait, no less."""
    done, logs, network, moving = outcome(**choices, fast=True)
    end_ns = network.env.now_ns
    assert end_ns == int(done.columns["last_token_ns"].max())
    for index, (links, made, log) in enumerate(zip(network.replicas, moving.made, logs, strict=True)):
        _, owners = network.fabric.use(links.machine.hbm)
        assert links.step_bytes.tolist() == [] or owners["step"].bytes_total == sum(links.step_bytes)
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
            if name != "hbm":
                assert total.bytes_total <= link.bytes_per_s * end_ns / GB + 1
        told = [transfer for _, transfer in made.told]
        assert len(told) == len(set(map(id, told))) <= len(made.asked)
        assert index < len(logs)


# What a run says of its links.


def test_many_change_points_become_means_that_move_the_same_bytes():
    rng = np.random.default_rng(1)
    t_ns = np.unique(rng.integers(0, 10**9, 10_000))
    rates = rng.uniform(0, 1e9, t_ns.size)
    rates[-1] = 0.0
    few = bounded(Points(t_ns, rates), 10**9, 500)
    assert few.t_ns.size <= 500

    def moved(points):
        return float(points.bytes_per_s @ np.diff(points.t_ns, append=10**9))

    assert moved(few) == pytest.approx(moved(Points(t_ns, rates)), rel=1e-9)
    assert bounded(few, 10**9, 500) is few


def test_rates_in_columns_integrate_to_the_account():
    network = network_of(Background("weights", "load", 7000, PCIE, start_ns=1000))
    cost = AffineCost(base_ns=1000, step_bytes=600)
    _, logs = run(trace_of((0, 1, 90), (50_000, 3, 70)), cost, network=network)
    report = link_report(network, logs)
    end_s = network.env.now_ns / 1e9
    columns = report.columns
    for link, owner in (("hbm", "step"), ("hbm", "weights"), ("pcie_h2d", "weights")):
        of = (columns["link"] == link) & (columns["owner"] == owner)
        assert 0 < of.sum() <= MOST_POINTS
        moved = columns["bytes_per_s"][of] @ np.diff(columns["t_s"][of], append=end_s)
        assert moved == pytest.approx(
            report.summary["links"][link]["by_owner"][owner]["bytes_total"], rel=1e-6
        )


SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "cluster": {"replicas": 2},
    "workload": {"input_tokens": 300, "output_tokens": 60, "request_rate": 30, "num_requests": 60},
}


def load(extra: str = "") -> str:
    flow = '{"route": "load", "gb_per_s": 60, "duration_s": 1, "owner": "weights"'
    return f"links.background=[{flow}{extra}}}]"


def summary_of(*overrides: str) -> dict:
    summary = simulate(load_scenario(SCENARIO, overrides)).summary
    return {name: value for name, value in summary.items() if name != "date"}


def with_background(extra: str = "", *more: str) -> dict:
    return summary_of(load(extra), *more)


def test_a_scenario_with_a_background_load_is_slower_and_says_who_used_what():
    quiet, busy = summary_of(), with_background()
    assert "links" not in quiet["sim"]
    assert busy["mean_itl_ms"] > quiet["mean_itl_ms"]
    assert busy["sim"]["transfer_wait_s"] == 0.0
    pcie = busy["sim"]["links"]["pcie_h2d"]
    assert pcie["by_owner"]["weights"]["bytes_total"] == pcie["bytes_total"] == 120 * GB
    assert pcie["effective_bytes_per_s"] == pytest.approx(60 * GB)
    hbm = busy["sim"]["links"]["hbm"]
    assert set(hbm["by_owner"]) == {"step", "weights"}
    assert 0 < hbm["utilization"] < 1
    assert json.dumps(busy) == json.dumps(with_background("", "simulation.fast_forward=false"))


@pytest.mark.parametrize("other", [', "start_s": 0.2', ', "every_s": 1.5', ', "replica": 1'])
def test_every_field_of_a_background_flow_acts(other):
    assert with_background(other) != with_background()


def test_latency_acts_on_the_transfers_of_an_engine():
    """Regions that grow move within HBM, and their steps wait for that: 2 ms each time, and more."""
    grow = ("policies.allocator=grow", "engine.num_gpu_blocks_override=300", "workload.output_tokens=300")
    plain, late = summary_of(*grow), summary_of(*grow, "links.latency_us=2000")
    assert plain["sim"]["links"]["hbm"]["by_owner"]["copy"]["bytes_total"] > 0
    assert late["sim"]["transfer_wait_s"] > plain["sim"]["transfer_wait_s"] + 2e-3
    assert late["mean_itl_ms"] > plain["mean_itl_ms"]


def test_every_bandwidth_acts_where_something_moves_over_the_link():
    """Routes that use a link, and the link; half the bandwidth lets a flow at its rate fill twice the share."""
    for route, link in (
        ("load", "hbm"),
        ("load", "pcie_h2d"),
        ("offload", "pcie_d2h"),
        ("disk_load", "disk"),
        ("nvlink_send", "nvlink_out"),
        ("nvlink_receive", "nvlink_in"),
        ("nic_send", "nic_out"),
        ("nic_receive", "nic_in"),
    ):
        flow = f'links.background=[{{"route": "{route}", "gb_per_s": 10, "duration_s": 1}}]'
        uses = [
            summary_of(
                flow,
                "links.disk=500" if link != "disk" and "disk" in route else "seed=0",
                f"links.{link}={gb}",
            )
            for gb in (400, 800)
        ]
        first, second = (use["sim"]["links"][link]["utilization"] for use in uses)
        assert first > 1.5 * second, link


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["links.hbm=3000"], "links.hbm: nothing in this scenario moves over it"),
        (["links.latency_us=3"], "links.latency_us: no engine"),
        ([load(), "links.disk=5"], "links.disk: nothing"),
        ([load(', "replica": 2')], "background.0.replica: 2 is not there"),
        ([load(', "every_s": 0.5')], r"every_s \(0.5\) must be at least"),
        ([load(), "links.pcie_h2d=30"], "background.0.gb_per_s: 60 is more than"),
        (['links.background=[{"route": "disk_load", "gb_per_s": 1, "duration_s": 1}]'], "give links.disk"),
        (['links.background=[{"route": "load", "gb_per_s": 1}]'], "background.0.duration_s: is missing"),
    ],
)
def test_what_does_not_act_or_cannot_be_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        simulate(load_scenario(SCENARIO, overrides))
