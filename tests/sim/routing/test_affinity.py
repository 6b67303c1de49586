"""Routers that know sessions and prefixes: by hand, against naive ones, and by what they remember."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.routing.decision import ReplicaView, RequestView
from sim.routing.least_loaded import LeastLoaded
from sim.routing.power_of_two import PowerOfTwo
from sim.routing.prefix_affinity import PrefixAffinity
from sim.routing.prefix_memory import PrefixMemory
from sim.routing.session_affinity import SessionAffinity
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of, with_prefixes
from tests.sim.sessions import session_trace, sessions
from workloads.trace import Trace

RNG = np.random.default_rng(0)


def chain(path: list[int]) -> list[int]:
    """Contents of the blocks of a path: equal where the whole path so far is."""
    return [int("1" + "".join(map(str, path[: depth + 1])), 4) for depth in range(len(path))]


chains = st.lists(st.integers(0, 2), max_size=5).map(chain)


@given(prompts=st.lists(chains, max_size=30), probe=chains, most=st.integers(1, 12))
def test_a_memory_holds_leading_runs_of_the_latest_prompts(prompts, probe, most):
    """Against a list of blocks by their latest use; among blocks of one prompt the earlier counts as later."""
    memory = PrefixMemory(most)
    recent: list[int] = []
    for prompt in prompts:
        memory.use(prompt)
        used = prompt[:most]
        recent = ([block for block in recent if block not in used] + used[::-1])[-most:]
    known = 0
    while known < len(probe) and probe[known] in recent:
        known += 1
    assert len(memory) == len(recent) <= most
    assert memory.leading_run(probe) == known


def view_of(trace: Trace, index: int) -> RequestView:
    view = RequestView(RequestTable(trace, trace.hashes))
    view.index = index
    return view


@given(
    sent=st.lists(st.tuples(chains, st.integers(0, 4)), min_size=1, max_size=25),
    imbalance=st.integers(0, 3),
    replicas=st.integers(1, 4),
)
def test_the_longest_known_prefix_unless_too_busy(sent, imbalance, replicas):
    """Against a router that keeps every prompt it sent; loads are set at random before every decision."""
    prompts = [known for known, _ in sent]
    trace = with_prefixes(trace_of(*[(0, 4 * len(known) + 1, 1) for known in prompts]), prompts, 4)
    router = PrefixAffinity(max_imbalance=imbalance).build()
    views = [ReplicaView(index) for index in range(replicas)]
    kept: list[list[list[int]]] = [[] for _ in views]
    for index, (known, seed) in enumerate(sent):
        for view, load in zip(views, np.random.default_rng(seed).integers(0, 6, replicas), strict=True):
            view.in_flight = int(load)

        def match(view: ReplicaView, known: list[int] = known) -> int:
            return max(
                (sum(a == b for a, b in zip(known, k, strict=False)) for k in kept[view.index]), default=0
            )

        best = min(views, key=lambda view: (-match(view), view.in_flight, view.index))
        least = min(views, key=lambda view: (view.in_flight, view.index))
        expected = least if best.in_flight > least.in_flight + imbalance else best
        assert router.route(view_of(trace, index), views, 0, RNG) == expected.index
        kept[expected.index].append(known)


def test_what_replicas_report_counts_rather_than_what_was_sent():
    trace = with_prefixes(trace_of((0, 9, 1)), [[1, 2]], 4)
    views = [ReplicaView(0), ReplicaView(1)]
    router = PrefixAffinity(signal="cached").build()
    request = view_of(trace, 0)
    assert router.route(request, views, 0, RNG) == 0
    views[1].learn(0, ({1}, set()))
    assert router.route(request, views, 0, RNG) == 1
    views[0].learn(0, ({1, 2}, set()))
    assert router.route(request, views, 0, RNG) == 0
    views[0].learn(0, ({7}, {1}))  # of the second block nothing is left without the first
    assert router.route(request, views, 0, RNG) == 1
    assert views[0].cached == {2, 7}


def test_reports_of_caches_come_late():
    """Prompts 1 2 at replica 0; a second one like it goes there only once the first is computed and reported.

    Steps take 10 ns. The first arrives at 0, its step is over at 10, its report is known at 110.
    """
    for second, expected in ((50, 1), (109, 1), (110, 0)):
        trace = with_prefixes(trace_of((0, 9, 30), (second, 9, 1)), [[1, 2], [1, 2]], 4)
        requests, _ = run(
            trace,
            constant_cost(10),
            router=PrefixAffinity(signal="cached"),
            replicas=2,
            prefix_caching=True,
            signal_delay_ns=100,
        )
        assert requests.columns["replica"].tolist() == [0, expected]


@given(talks=sessions, replicas=st.integers(1, 3))
def test_a_session_stays_where_it_began(talks, replicas):
    trace = session_trace(talks, 4, closed=False)
    requests, _ = run(
        trace, AffineCost(base_ns=500), router=SessionAffinity(), replicas=replicas, prefix_caching=True
    )
    replica = requests.columns["replica"]
    for session in np.unique(trace.session[trace.session >= 0]):
        assert np.unique(replica[trace.session == session]).size == 1


def test_a_session_moves_when_its_replica_is_too_busy():
    table = RequestTable(Trace.build([0, 0, 0], [1, 1, 1], [1, 1, 1], session=[5, 5, -1]))
    views = [ReplicaView(0), ReplicaView(1, in_flight=1)]
    request = RequestView(table)
    router = SessionAffinity(max_imbalance=2).build()
    chosen = []
    for load in (0, 3, 4, 0):
        views[0].in_flight = load
        chosen.append(router.route(request, views, 0, RNG))
    assert chosen == [0, 0, 1, 1]
    request.index = 2
    assert request.session is None
    assert router.route(request, views, 0, RNG) == 0


def test_two_choices_take_the_less_loaded_of_two_different_ones():
    views = [ReplicaView(index, in_flight=index) for index in range(4)]
    rng = np.random.default_rng(1)
    router = PowerOfTwo().build()
    request = RequestView(RequestTable(trace_of((0, 1, 1))))
    chosen = np.bincount([router.route(request, views, 0, rng) for _ in range(12_000)], minlength=4)
    # Of the six pairs, 3 have replica 0 as the less loaded, 2 have 1, 1 has 2.
    assert chosen[3] == 0
    assert chosen[:3] / 12_000 == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.02)
    assert router.route(request, views[:1], 0, rng) == 0


@given(talks=sessions, delay=st.sampled_from([0, 1000]))
def test_without_prefixes_or_sessions_affinity_is_least_loaded(talks, delay):
    trace = session_trace(talks, 4, closed=False)
    plain = Trace.build(trace.arrival_ns, trace.input_tokens, trace.output_tokens)
    replicas = {}
    for router in (LeastLoaded(), PrefixAffinity(), SessionAffinity()):
        requests, _ = run(
            plain,
            AffineCost(base_ns=700),
            router=router,
            replicas=3,
            prefix_caching=True,
            signal_delay_ns=delay,
        )
        replicas[router.name] = requests.columns["replica"].tolist()
    assert replicas["least_loaded"] == replicas["prefix_affinity"] == replicas["session_affinity"]


def test_caches_are_reported_only_where_there_are_any():
    with pytest.raises(ConfigError, match=r"signal: cached needs replicas with one prefix cache each"):
        run(trace_of((0, 4, 1)), constant_cost(1), router=PrefixAffinity(signal="cached"))
