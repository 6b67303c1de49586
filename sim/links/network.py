"""The links of all replicas of a run, with the background flows on them; what they did, once it has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.engine.clock import Clock
from sim.errors import ConfigError
from sim.links.background import Background, run_background
from sim.links.fabric import Fabric
from sim.links.machine import add_machine
from sim.links.replica_links import ReplicaLinks
from sim.profile import Device


class Network:
    """`replicas` GPUs of one kind, each standing for all the GPUs of its replica.

    `measured` gives bandwidths [bytes/s] in place of the vendor's, by link. A background flow that asks for more
    than a link of its route has is a ConfigError.
    """

    def __init__(
        self,
        env: Clock,
        device: Device,
        replicas: int,
        *,
        measured: Mapping[str, float] | None = None,
        latency_ns: int = 0,
        background: Sequence[Background] = (),
    ) -> None:
        self.env = env
        self.fabric = Fabric(env)
        self.replicas = [
            ReplicaLinks(env, self.fabric, add_machine(self.fabric, str(index), device, measured), latency_ns)
            for index in range(replicas)
        ]
        for number, flow in enumerate(background):
            where = range(replicas) if flow.replica is None else [flow.replica]
            for index in where:
                self._start(index, number, flow)

    def _start(self, index: int, number: int, flow: Background) -> None:
        try:
            path = self.replicas[index].machine.path(flow.route)
        except ConfigError as error:
            raise ConfigError(f"links.background.{number}.route: {error}") from None
        for link in path:
            if flow.bytes_per_s * path.count(link) > link.bytes_per_s:
                raise ConfigError(
                    f"links.background.{number}.gb_per_s: {flow.bytes_per_s / 1e9:g} is more than "
                    f"{link.name.partition('.')[2]} has ({link.bytes_per_s / path.count(link) / 1e9:g})"
                )
        self.env.process(run_background(self.env, self.fabric, path, flow))
