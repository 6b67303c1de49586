"""A run as a client recorded it: its requests by intended arrival, and what the client saw of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.measured_run import Label
from calibration.serving.readers.scrapes import ServerFigures
from sim.engine.records import Status
from sim.metrics import Requests
from workloads.trace import Int64, Trace

Float = NDArray[np.float64]

INFERRED: Final = (
    "the file does not say how it sent; the same number in flight after each sending is a closed loop"
)

_QUORUM: Final = 0.95  # of sendings that find the same number in flight
_TURNS: Final = 3  # requests a seat, before a constant number in flight says something
_FEWEST: Final = 8  # requests
_PAUSE_SHARE: Final = 0.05  # of a mean latency: a client's turn from an answer to the next request
_PAUSE_NS: Final = 10_000_000  # which takes some milliseconds whatever the latency


@dataclass(frozen=True)
class Claim:
    """A figure of the file, and what its requests come to by the same definition, in the same unit."""

    name: str
    said: float
    derived: float


@dataclass(frozen=True, eq=False)
class Stage:
    """Some of the requests, as a bool each, and what tells them from the others."""

    counted: NDArray[np.bool_]
    labels: Mapping[str, Label]


@dataclass(frozen=True, eq=False)
class ClientRun:
    """What a client recorded of the requests of a trace.

    client          which client, as labels name it
    trace           requests that succeeded, by intended arrival where the client recorded it
    requests        the same requests, in the same order, as the client saw them: `requests_seen`
    number          which run of its file, from 1; None where the file holds one
    cut_off         requests under way when the client's time was up; the trace counts them with the failed ones
    late_s          how long after the intended arrival each request went out; empty where none was recorded
    concurrency     requests in flight of a closed loop; None for an open stream
    gaps_s          times between chunks, pooled; empty where the client keeps none
    stages          parts that are scored one by one; none for all together
    server          what the server counted, where a scrape says so
    """

    path: Path
    client: str
    trace: Trace
    requests: Requests
    number: int | None = None
    cut_off: int = 0
    late_s: Float = field(default_factory=lambda: np.zeros(0))
    concurrency: int | None = None
    gaps_s: Float = field(default_factory=lambda: np.zeros(0))
    claims: Sequence[Claim] = ()
    stages: Sequence[Stage] = ()
    server: ServerFigures | None = None
    caveats: Sequence[str] = ()

    @property
    def name(self) -> str:
        return str(self.path) if self.number is None else f"{self.path} #{self.number}"

    @property
    def failed(self) -> int:
        return self.trace.failed - self.cut_off


def requests_seen(trace: Trace, sent_ns: Int64, first_token_ns: Int64, last_token_ns: Int64) -> Requests:
    """Return requests as a simulated run has them, from the first sending on.

    Times are of one clock, in the order of the trace.
    """
    start = sent_ns.min()
    return Requests(
        {
            "status": np.full(len(trace), Status.COMPLETED, dtype=np.int64),
            "arrival_ns": sent_ns - start,
            "first_token_ns": first_token_ns - start,
            "last_token_ns": last_token_ns - start,
            "input_tokens": trace.input_tokens,
            "output_tokens": trace.output_tokens,
        }
    )


def constant_in_flight(sent_ns: Int64, ended_ns: Int64) -> int | None:
    """Return how many requests a closed loop keeps in flight; None where this looks like an open stream.

    In a closed loop each sending after the first c follows an end at once, and finds c in flight. In an open stream
    the number varies with the arrivals, or, where it is always 1, time passes between an end and the next sending.
    """
    order = np.argsort(sent_ns, kind="stable")
    sent, ended = sent_ns[order], np.sort(ended_ns)
    over = np.searchsorted(ended, sent, side="right")
    in_flight = np.arange(1, sent.size + 1) - over
    most = int(in_flight.max())
    if sent.size < max(_TURNS * most, _FEWEST):
        return None
    pause_ns = sent[most:] - ended[np.maximum(over[most:] - 1, 0)]
    prompt = pause_ns <= max(_PAUSE_SHARE * float(np.mean(ended_ns - sent_ns)), _PAUSE_NS)
    return most if np.mean((in_flight[most:] == most) & prompt) >= _QUORUM else None
