"""Transfers of an engine: when they end, which steps wait for them, and what a replica does meanwhile."""

from __future__ import annotations

from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.cluster import EngineSetup
from sim.engine.replica import Replica
from sim.engine.request import RequestTable
from sim.kv.build import KvSetup
from sim.kv.transfer import Transfer
from sim.links.report import link_report
from sim.metrics import serving_metrics
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.moving import BUSY_PCIE, PCIE, Moving, network_of


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

    def commit(self, plan, steps, now_ns, last_start_ns):
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
