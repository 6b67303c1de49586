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
    stream_ns    for each sequence that the engine runs when it comes: a step's tokens leave one after the other through
                 the process that requests enter by, and those of the newest sequence last

    Evidence for the last: 32,000 requests to Llama-2-7B on H100 (vLLM 0.15.1, `vllm_h100_perrequest`), whose TTFT less
    two and a half steps and the own prefill is 5.1 ms + 0.056 ms x running sequences, over 9 to 82 of them.
    """

    latency_ns: int = 0
    token_ns: float = 0.0
    stream_ns: float = 0.0

    @classmethod
    def of(cls, host: HostOverhead | None) -> FrontendTimes:
        if host is None:
            return cls()
        return cls(round(_NS * host.per_request_s), _NS * host.per_input_token_s, _NS * host.per_stream_s)

    def __bool__(self) -> bool:
        return max(self.latency_ns, self.token_ns, self.stream_ns) > 0


class Frontend:
    """The API server of one replica. Requests leave it in the order in which they came.

    The way back of the tokens is taken to lie before the engine: latencies from the client's side are the same.
    """

    def __init__(self, times: FrontendTimes) -> None:
        self._times = times
        self._free_ns = 0  # when the tokeniser is done with the prompts before
        self._left_ns = 0  # when the last of them reaches the engine

    def leaves_ns(self, now_ns: int, input_tokens: int, streams: int) -> int:
        """When a request that comes now reaches the engine, which runs so many sequences."""
        times = self._times
        self._free_ns = max(self._free_ns, now_ns) + round(times.token_ns * input_tokens)
        latency_ns = times.latency_ns + round(times.stream_ns * streams)
        self._left_ns = max(self._left_ns, self._free_ns + latency_ns)
        return self._left_ns
