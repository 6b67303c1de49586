"""What is in front of an engine: its API server, which parses and tokenises prompts and sends tokens back."""

from __future__ import annotations

from dataclasses import dataclass

from sim.profile import HostOverhead

_NS = 1e9


@dataclass(frozen=True, slots=True)
class FrontendTimes:
    """How long a request is on its way [ns].

    latency_ns   of every request, to the engine's queue and of its tokens back; requests do not wait for each other
    token_ns     for each token of its prompt (tokeniser), one prompt after the other
    """

    latency_ns: int = 0
    token_ns: float = 0.0

    @classmethod
    def of(cls, host: HostOverhead | None) -> FrontendTimes:
        if host is None:
            return cls()
        return cls(round(_NS * host.per_request_s), _NS * host.per_input_token_s)

    def __bool__(self) -> bool:
        return self.latency_ns > 0 or self.token_ns > 0


class Frontend:
    """The API server of one replica. Requests leave it in the order in which they came.

    The way back of the tokens is taken to lie before the engine: latencies from the client's side are the same.
    """

    def __init__(self, times: FrontendTimes) -> None:
        self._times = times
        self._free_ns = 0  # when the tokeniser is done with the prompts before

    def leaves_ns(self, now_ns: int, input_tokens: int) -> int:
        """When a request that comes now reaches the engine."""
        self._free_ns = max(self._free_ns, now_ns) + round(self._times.token_ns * input_tokens)
        return self._free_ns + self._times.latency_ns
