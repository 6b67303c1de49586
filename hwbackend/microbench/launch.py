"""What it costs the host to start work: one call, a graph and its capture, another stream."""

from __future__ import annotations

from hwbackend.device import Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number


class Launch:
    """The host's share of starting work, by op.

    call            the smallest operation of the array library, back to back: its launch, or NumPy's own overhead
    graph_capture   recording `calls` such operations into a graph
    graph_replay    one replay of such a graph
    stream_switch   a side stream waits for the main one, and the main one for it
    """

    name = "launch"
    axes = ("op", "calls")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        if str(axes["op"]).startswith("graph") and not device.has_graphs:
            return "the CPU has no graphs: a replay is its calls one by one, which `call` measures"
        return None

    def work(self, axes: Axes) -> Work:  # noqa: ARG002  next to nothing is moved
        return Work(num_bytes=0.0)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        tiny = filled(device, 1)

        def call() -> None:
            device.xp.negative(tiny, out=tiny)

        calls = [call] * max(1, number(axes, "calls"))
        if axes["op"] == "call":
            return Prepared((call,), graph=False)
        if axes["op"] == "graph_replay":
            return Prepared((device.capture(calls).replay,), graph=False)
        if axes["op"] == "graph_capture":
            return Prepared((lambda: device.capture(calls),), graph=False)
        side = device.stream()

        def switch() -> None:
            side.wait(device.main.record())
            device.main.wait(side.record())

        return Prepared((switch,), graph=False, close=side.close)
