"""A device of known times: its clock moves only when work runs."""

import numpy as np

from hwbackend.device import Condition, Identity, MemoryInfo


class ManualClock:
    """Seconds that only `advance` moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


class FakeEvent:
    done = True

    def __init__(self, time_s):
        self.time_s = time_s

    def synchronize(self):
        pass


class FakeStream:
    def __init__(self, clock):
        self.clock = clock

    def run(self, call):
        call()

    def record(self):
        return FakeEvent(self.clock())

    def wait(self, event):
        pass

    def synchronize(self):
        pass

    def close(self):
        pass


class FakeGraph:
    def __init__(self, calls):
        self.calls = list(calls)

    def replay(self):
        for call in self.calls:
            call()


class FakeDevice:
    """As much of a device as the harness asks for."""

    kind = "cpu"
    xp = np

    def __init__(self, *, has_graphs=False, flush_s=0.0):
        self.clock = ManualClock()
        self.main = FakeStream(self.clock)
        self.has_graphs = has_graphs
        self.flush_s = flush_s
        self.flushes = self.captures = 0
        self.state = {}
        self.identity = Identity("cpu", "fake", 1, 1024, MemoryInfo(1, 1, "fake"), "cpu")

    def condition(self):
        now = round(1e9 * self.clock())
        return Condition(now, 0, 0, self.state.get("events", 0), None, None, self.state.get("reasons", ()))

    def elapsed_s(self, start, end):
        return end.time_s - start.time_s

    def capture(self, calls):
        self.captures += 1
        graph = FakeGraph(calls)
        graph.replay()
        return graph

    def flush(self):
        self.flushes += 1
        self.clock.advance(self.flush_s)

    def taking(self, *seconds):
        """Calls that take so long in turn, over and over."""
        state = {"next": 0}

        def call():
            self.clock.advance(seconds[state["next"] % len(seconds)])
            state["next"] += 1

        return call
