"""Whole histories of flows: against a naive fluid model that knows no rate classes, and what holds of each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.clock import Clock, Priority
from sim.links.fabric import Fabric
from sim.links.sharing import Demand, max_min_rates
from tests.sim.test_link_flows import GB, at, one_link


@dataclass
class Script:
    """One flow of a history: when it starts, and maybe when it is cancelled."""

    start_ns: int
    path: tuple[int, ...]
    num_bytes: int
    weight: int = 1
    limit: int | None = None
    latency_ns: int = 0
    cancel_after_ns: int | None = None

    @property
    def enters_ns(self):
        return self.start_ns + self.latency_ns

    @property
    def cancel_ns(self):
        return None if self.cancel_after_ns is None else self.start_ns + self.cancel_after_ns


@st.composite
def histories(draw):
    bandwidth = draw(st.lists(st.sampled_from([GB, 2 * GB, 3 * GB, 7 * GB, GB // 3]), min_size=1, max_size=4))
    path = st.lists(st.integers(0, len(bandwidth) - 1), min_size=1, max_size=3).map(tuple)
    script = st.builds(
        Script,
        st.integers(0, 300),
        path,
        st.integers(0, 600),
        st.integers(1, 3),
        st.one_of(st.none(), st.sampled_from([GB // 7, GB])),
        st.sampled_from([0, 0, 0, 5, 90]),
        st.one_of(st.none(), st.integers(0, 400)),
    )
    return bandwidth, draw(st.lists(script, min_size=1, max_size=12))


def play(bandwidth, scripts):
    """Run it, in the order in which it is written; returns fabric and flows."""
    env = Clock()
    fabric = Fabric(env)
    links = [fabric.add(str(index), rate) for index, rate in enumerate(bandwidth)]
    flows = [None] * len(scripts)

    def start(index):
        s = scripts[index]
        flows[index] = fabric.start(
            [links[link] for link in s.path],
            s.num_bytes,
            f"owner{index % 3}",
            weight=s.weight,
            max_bytes_per_s=s.limit,
            latency_ns=s.latency_ns,
        )

    for index, script in enumerate(scripts):
        at(env, script.start_ns, lambda index=index: start(index))
        if script.cancel_ns is not None:
            at(env, script.cancel_ns, lambda index=index: fabric.cancel(flows[index]), Priority.STEP_START)
    env.run()
    return fabric, flows


def naive(bandwidth, scripts):
    """(end, bytes moved) of each flow: every flow on its own, its bytes left as a fraction, at every event."""
    left = {i: Fraction(s.num_bytes) for i, s in enumerate(scripts)}
    result, active, now = {}, {}, 0
    while len(result) < len(scripts):
        waiting = [i for i in left if i not in active and i not in result]
        times = [scripts[i].enters_ns for i in waiting]
        times += [s.cancel_ns for i, s in enumerate(scripts) if i not in result and s.cancel_ns is not None]
        times += [now + max(0, -(-left[i] // (rate / GB))) for i, rate in active.items()]
        then = min(time for time in times if time >= now)
        for i, rate in active.items():
            left[i] -= rate * (then - now) / GB
        now = then
        for i in [i for i in active if left[i] <= 0]:
            result[i] = (now, scripts[i].num_bytes)
        entering = [i for i in waiting if scripts[i].enters_ns <= now]
        result.update({i: (now, 0) for i in entering if not scripts[i].num_bytes})
        for i in {*active, *waiting}.difference(result):
            if scripts[i].cancel_ns == now:
                result[i] = (now, scripts[i].num_bytes - -(-left[i] // 1))
        on = [i for i in {*active, *entering} if i not in result]
        demands = [Demand(scripts[i].path, 1, scripts[i].weight, scripts[i].limit) for i in on]
        active = dict(zip(on, max_min_rates(dict(enumerate(bandwidth)), demands), strict=True))
    return [result[i] for i in range(len(scripts))]


@settings(max_examples=300, deadline=None)
@given(histories())
def test_ends_and_bytes_are_those_of_the_naive_model(history):
    bandwidth, scripts = history
    _, flows = play(bandwidth, scripts)
    assert [(flow.ended_ns, flow.moved_bytes) for flow in flows] == naive(bandwidth, scripts)


@settings(max_examples=200, deadline=None)
@given(histories())
def test_bytes_are_conserved(history):
    """What ended moved all its bytes, and the accounts of the links add up to it."""
    fabric, flows = play(*history)
    for flow in flows:
        assert flow.cancelled or flow.moved_bytes == flow.num_bytes
    for link in fabric.links.values():
        total, owners = fabric.use(link)
        crossing = [flow.path.count(link) * flow.moved_bytes for flow in flows]
        assert total.bytes_total == sum(use.bytes_total for use in owners.values()) == sum(crossing)
        assert total.bytes_total <= link.bytes_per_s * fabric.env.now_ns / GB
        assert not link.classes
        assert not link.waiting


@settings(max_examples=200, deadline=None)
@given(histories(), st.sampled_from([2, 3, 10, 1000]))
def test_scaling_bytes_and_bandwidths_leaves_all_times_unchanged(history, factor):
    bandwidth, scripts = history
    scaled = [
        replace(s, num_bytes=s.num_bytes * factor, limit=None if s.limit is None else s.limit * factor)
        for s in scripts
    ]
    ends = [flow.ended_ns for flow in play(bandwidth, scripts)[1]]
    assert ends == [flow.ended_ns for flow in play([rate * factor for rate in bandwidth], scaled)[1]]


@settings(max_examples=200, deadline=None)
@given(histories(), st.randoms())
def test_the_order_of_starts_at_one_instant_does_not_matter(history, random):
    bandwidth, scripts = history
    scripts = [replace(s, start_ns=s.start_ns // 100 * 100) for s in scripts]
    order = list(range(len(scripts)))
    random.shuffle(order)
    ends = [flow.ended_ns for flow in play(bandwidth, scripts)[1]]
    again = [flow.ended_ns for flow in play(bandwidth, [scripts[i] for i in order])[1]]
    assert [ends[i] for i in order] == again


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(Script, st.integers(0, 2000), st.just((0,)), st.integers(1, 500)), min_size=1, max_size=25
    )
)
def test_a_link_works_while_anybody_wants_it(scripts):
    """Work conservation: on one link the busy time is the bytes over the bandwidth, but for the rounding of ends."""
    fabric, flows = play([GB], scripts)
    total, _ = fabric.use(fabric.links["0"])
    work_ns = sum(s.num_bytes for s in scripts)
    assert work_ns <= round(total.busy_s * 1e9) <= work_ns + len(scripts)
    backlog, idle_from = 0, 0  # the same from the queue's side: when the last byte of all is across
    for s in sorted(scripts, key=lambda s: s.start_ns):
        backlog = max(0, backlog - (s.start_ns - idle_from)) + s.num_bytes
        idle_from = s.start_ns
    last = max(flow.ended_ns for flow in flows)
    assert idle_from + backlog <= last <= idle_from + backlog + len(scripts)


def test_a_long_busy_time_does_not_drift():
    """Six million bytes in flows of odd sizes, never idle: the last byte is across when it must be."""
    env, fabric, link = one_link(3 * GB)
    sizes = iter([7 * (i % 11) + 1 for i in range(30_000)])
    moved = last_ns = 0

    def next_one(flow):
        nonlocal moved, last_ns
        moved, last_ns = moved + flow.num_bytes, env.now_ns
        size = next(sizes, None)
        if size is not None:
            fabric.start((link,), size, "a", on_end=next_one)

    fabric.start((link,), 5_000_000, "long", on_end=next_one)
    for _ in range(7):
        fabric.start((link,), 1, "a", on_end=next_one)
    env.run()
    total, _ = fabric.use(link)
    assert total.bytes_total == moved == 5_000_000 + 7 + sum(7 * (i % 11) + 1 for i in range(30_000))
    # Every end is rounded up by less than 1 ns, during which at worst the one flow's share is lost.
    assert total.bytes_total / 3 <= last_ns <= total.bytes_total / 3 + 30_008
