"""All links of a run and the flows on them, on the simulated clock.

Rates change only when a flow enters, ends or is cancelled, and then only on links that are connected to its path by
flows. Between such changes the work is that of nobody: one timer stands at the next end. Ends at one instant are
one change, taken in the order in which the flows were started; flows whose latency is over enter in that change too.
A change costs time in proportion to the rate classes on the connected links (flows that differ in path, weight or
limit), and the logarithm of the flows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Final

from simpy import Event

from sim.engine.clock import At, Clock, Priority
from sim.errors import ConfigError, InvariantError
from sim.links.flow import Flow
from sim.links.history import History, Points
from sim.links.link import Link, LinkUse
from sim.links.rate_class import RateClass
from sim.links.sharing import max_min_rates

_CLASS, _ENTRY = 0, 1


class Fabric:
    """Starts flows and ends them. `links` holds the links by name."""

    MOST_REMEMBERED: Final = 1 << 14

    def __init__(self, env: Clock) -> None:
        self.env = env
        self.links: dict[str, Link] = {}
        self._by_index: list[Link] = []
        self._classes: dict[tuple[tuple[int, ...], int, int | None], RateClass] = {}
        self._flows = 0  # started so far
        self._due: list[tuple[int, int, int, RateClass | Flow]] = []  # heap of (when, kind, index, what)
        self._timers: list[int] = []  # when timers fire that are set, latest first
        self._rates: dict[tuple[tuple[int, int], ...], list[Fraction]] = {}  # by (class, flows) of each class
        self._history = History()

    def add(self, name: str, bytes_per_s: float) -> Link:
        """A new link; its bandwidth is rounded to whole bytes per second."""
        if not 1 <= bytes_per_s < float("inf"):
            raise ConfigError(f"link {name}: bandwidth must be at least 1 byte/s, not {bytes_per_s:g}")
        if name in self.links:
            raise ConfigError(f"link {name}: there is one of that name already")
        link = self.links[name] = Link(len(self._by_index), name, round(bytes_per_s))
        self._by_index.append(link)
        return link

    # Flows.

    def start(
        self,
        path: Sequence[Link],
        num_bytes: int,
        owner: str,
        *,
        weight: int = 1,
        max_bytes_per_s: int | None = None,
        latency_ns: int = 0,
        on_end: Callable[[Flow], None] | None = None,
    ) -> Flow:
        """Send bytes along all links of the path at once, from the end of the latency on.

        `on_end(flow)` runs when all are across, after every rate is what it is then. A flow of 0 bytes ends when
        its latency is over, without entering a link; without a latency that is now, but after the caller.
        """
        if num_bytes < 0 or latency_ns < 0:
            raise InvariantError(f"flow of {num_bytes} bytes for {owner} after {latency_ns} ns")
        rate_class = self._class(path, weight, max_bytes_per_s)
        flow = Flow(self.env, self._flows, rate_class, num_bytes, owner, latency_ns, on_end)
        self._flows += 1
        if latency_ns or not num_bytes:
            if num_bytes:
                for link in path:
                    link.waiting[flow.index] = flow.enters_ns
            heappush(self._due, (flow.enters_ns, _ENTRY, flow.index, flow))
            self._set_timer()
        else:
            self._enter(flow)
            self._share_anew(path)
        return flow

    def hold(
        self,
        path: Sequence[Link],
        owner: str,
        *,
        weight: int = 1,
        max_bytes_per_s: int | None = None,
    ) -> Flow:
        """A flow that takes its share until it is cancelled: a running engine beside the transfers on its HBM."""
        rate_class = self._class(path, weight, max_bytes_per_s)
        flow = Flow(self.env, self._flows, rate_class, None, owner, 0, None)
        self._flows += 1
        self._enter(flow)
        self._share_anew(path)
        return flow

    def cancel(self, flow: Flow) -> None:
        """Take a flow off its links now; the others have its share at once. `on_end` will not run."""
        if flow.ended_ns is not None:
            return
        if flow in flow.rate_class.members:
            moved = flow.rate_class.moved_bytes(flow, self.env.now_ns)
            self._leave(flow, moved)
            flow.end(moved, cancelled=True)
            self._share_anew(flow.path)
        else:
            self._admit(flow)
            flow.end(0, cancelled=True)

    # What others may ask.

    def next_change_ns(self, link: Link) -> int | None:
        """When the flows or rates on this link change next, if nobody starts or cancels one; None: never.

        Never later than the change itself, and earlier only where a change elsewhere leaves this link alone.
        """
        links = {link: None}
        times = [c.end_ns for c in self._connected(links) if c.end_ns is not None]
        times += [enters_ns for near in links for enters_ns in near.waiting.values()]
        return min(times, default=None)

    def use(self, link: Link, duration_ns: int | None = None) -> tuple[LinkUse, dict[str, LinkUse]]:
        """The account of a link to now, in all and by owner, bytes in flight included.

        Utilization is over `duration_ns`, by default all time to now. After a run give the run's own: timers that
        were set for ends that then came earlier still pass, and the clock with them.
        """
        now = self.env.now_ns
        duration = now if duration_ns is None else duration_ns
        in_flight = dict.fromkeys(link.owners, 0)
        for rate_class in link.classes:
            times = rate_class.path.count(link)
            for flow in rate_class.members:
                if flow.num_bytes is not None:
                    in_flight[flow.owner] += times * rate_class.moved_bytes(flow, now)
        bandwidth = link.bytes_per_s
        return link.total.use(now, duration, sum(in_flight.values()), bandwidth), {
            owner: account.use(now, duration, in_flight[owner], bandwidth)
            for owner, account in link.owners.items()
        }

    def history(self) -> dict[str, dict[str, Points]]:
        """Rates by link and owner as change points. Of a standing flow: what it might have used."""
        return self._history.points({c.index: c.path for c in self._classes.values()})

    # Changes.

    def _class(self, path: Sequence[Link], weight: int, max_bytes_per_s: int | None) -> RateClass:
        key = (tuple(link.index for link in path), weight, max_bytes_per_s)
        found = self._classes.get(key)
        if found is None:
            if not path or weight < 1 or (max_bytes_per_s is not None and max_bytes_per_s < 1):
                raise InvariantError(
                    f"path {path}, weight {weight}, limit {max_bytes_per_s} bytes/s of a flow"
                )
            found = RateClass(len(self._classes), tuple(path), weight, max_bytes_per_s)
            self._classes[key] = found
        return found

    def _enter(self, flow: Flow) -> None:
        now, rate_class = self.env.now_ns, flow.rate_class
        rate_class.enter(flow, now)
        for link in dict.fromkeys(flow.path):
            link.enter(flow.owner, now)
            link.classes[rate_class] = None

    def _leave(self, flow: Flow, moved_bytes: int) -> None:
        now, rate_class = self.env.now_ns, flow.rate_class
        rate_class.leave(flow)
        for link in dict.fromkeys(flow.path):
            link.leave(flow.owner, now)
            if not rate_class.members:
                del link.classes[rate_class]
        if flow.num_bytes is not None:
            for link in flow.path:
                link.credit(flow.owner, moved_bytes)
        flows = rate_class.owners[flow.owner]
        self._history.set(now, rate_class.index, flow.owner, flows * rate_class.bytes_per_s)

    def _admit(self, flow: Flow) -> None:
        for link in flow.path:
            link.waiting.pop(flow.index, None)

    def _share_anew(self, touched: Iterable[Link]) -> None:
        """Rates and ends on all links that are connected to those touched; then say so to who watches."""
        seen: dict[Link, None] = {}
        changed = dict.fromkeys(touched)
        for link in tuple(changed):
            if link not in seen:
                near = {link: None}
                classes = self._connected(near)
                seen.update(near)
                if classes:
                    self._share(classes, changed)
        self._set_timer()
        for link in sorted(changed, key=_index):
            for callback in link.watchers:
                callback(link)

    def _connected(self, links: dict[Link, None]) -> list[RateClass]:
        """The classes on links that flows connect to those in `links`, to which these links are added."""
        classes: dict[RateClass, None] = {}
        frontier = list(links)
        while frontier:
            for rate_class in frontier.pop().classes:
                if rate_class not in classes:
                    classes[rate_class] = None
                    for link in rate_class.path:
                        if link not in links:
                            links[link] = None
                            frontier.append(link)
        return sorted(classes, key=_index)

    def _share(self, classes: list[RateClass], changed: dict[Link, None]) -> None:
        now = self.env.now_ns
        state = tuple((c.index, len(c.members)) for c in classes)
        rates = self._rates.get(state)
        if rates is None:
            if len(self._rates) >= self.MOST_REMEMBERED:
                self._rates.clear()
            bandwidth = {link.index: link.bytes_per_s for c in classes for link in c.path}
            rates = self._rates[state] = max_min_rates(bandwidth, [c.demand for c in classes])
        for rate_class, rate in zip(classes, rates, strict=True):
            if rate is not rate_class.rate and rate != rate_class.rate:
                rate_class.set_rate(rate, now)
                changed.update(dict.fromkeys(rate_class.path))
            elif rate_class.planned:
                continue
            rate_class.plan_end(now)
            for owner, flows in rate_class.owners.items():
                self._history.set(now, rate_class.index, owner, flows * rate_class.bytes_per_s)
            self._wake(rate_class)

    # Time.

    def _wake(self, rate_class: RateClass) -> None:
        """See to it that the class is looked at no later than at its next end."""
        end, wake = rate_class.end_ns, rate_class.wake_ns
        if end is not None and (wake is None or end < wake):
            rate_class.wake_ns = end
            heappush(self._due, (end, _CLASS, rate_class.index, rate_class))

    def _set_timer(self) -> None:
        if self._due:
            at_ns = self._due[0][0]
            if not self._timers or at_ns < self._timers[-1]:
                self._timers.append(at_ns)
                At(self.env, at_ns - self.env.now_ns, Priority.FLOW_END).callbacks.append(self._fire)

    def _fire(self, _timer: Event) -> None:
        now = self._timers.pop()
        ended: list[Flow] = []
        entering: list[Flow] = []
        while self._due and self._due[0][0] <= now:
            at_ns, _, _, what = heappop(self._due)
            if isinstance(what, Flow):
                if what.ended_ns is None:
                    self._admit(what)
                    (entering if what.num_bytes else ended).append(what)
            elif what.wake_ns == at_ns:
                what.wake_ns = None
                ended += what.pop_ended(now)
                what.plan_end(now)
                self._wake(what)
        ended.sort(key=_index)
        self._change(ended, entering)

    def _change(self, ended: list[Flow], entering: list[Flow]) -> None:
        touched: dict[Link, None] = {}
        for flow in ended:
            if flow in flow.rate_class.members:
                self._leave(flow, flow.num_bytes or 0)
                touched.update(dict.fromkeys(flow.path))
            flow.end(flow.num_bytes or 0)
        for flow in entering:
            self._enter(flow)
            touched.update(dict.fromkeys(flow.path))
        if touched:
            self._share_anew(touched)
        else:
            self._set_timer()
        for flow in ended:
            if flow.on_end is not None:
                flow.on_end(flow)


def _index(what: Link | RateClass | Flow) -> int:
    return what.index
