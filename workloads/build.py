"""A workload config and a seed -> the requests. The same seed gives the same bytes."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from workloads.arrivals import Bursts, Modulated, Ramp, Renewal, at_rate, mean_rate
from workloads.bounds import MOST_REQUESTS
from workloads.config import WorkloadConfig
from workloads.errors import ConfigError
from workloads.lengths import draw_lengths
from workloads.model import SHIPPED, WorkloadModel, is_model_file, load_model
from workloads.readers import read_trace
from workloads.sessions import SessionsConfig, Window, draw_sessions
from workloads.streams import Streams
from workloads.tenants import assign_tenants
from workloads.trace import NS_PER_S, Int64, Trace


@dataclass(frozen=True)
class Workload:
    """What the simulator runs.

    max_concurrency  None: an open stream, requests arrive at trace.arrival_ns. Else a closed loop: requests
                     are sent in the order of the trace (arrival_ns is all zero), so many in flight. What waits for
                     an answer keeps the place of the request before: sessions in progress are counted.
    """

    trace: Trace
    max_concurrency: int | None = None


def build_workload(
    config: WorkloadConfig, seed: np.random.SeedSequence, *, base_dir: Path | None = None
) -> Workload:
    """Read or draw the requests; a relative trace path is looked up in `base_dir`."""
    streams = Streams(seed)
    if config.sessions is not None:
        trace = _from_sessions(config, config.sessions, streams)
    elif config.trace is None:
        trace = _from_lengths(config, streams)
    else:
        trace = _from_trace(config, streams, config.trace, base_dir or Path())
    if not len(trace):
        raise ConfigError(
            f"workload.duration_s: no request arrives within {config.duration_s:g} s; give more"
        )
    if config.tenants is not None:
        trace = assign_tenants(trace, config.tenants, streams.of("tenants"))
    return Workload(replace(trace, has_arrivals=config.max_concurrency is None), config.max_concurrency)


def _from_lengths(config: WorkloadConfig, streams: Streams) -> Trace:
    assert config.input_tokens is not None
    assert config.output_tokens is not None
    arrival = _draw_arrivals(config, streams, config.num_requests, None)
    inputs = draw_lengths(config.input_tokens, streams.of("inputs"), arrival.size)
    outputs = draw_lengths(config.output_tokens, streams.of("outputs"), arrival.size)
    return _cut(config, Trace.build(arrival, inputs, outputs, source="lengths"))


def _from_sessions(config: WorkloadConfig, sessions: SessionsConfig, streams: Streams) -> Trace:
    assert config.input_tokens is not None
    assert config.output_tokens is not None
    if config.num_requests is None:
        assert config.request_rate is not None
        _check_size(config, config.request_rate)
    rate = config.request_rate if config.max_concurrency is None else None
    window = Window(rate, config.burstiness or 1.0, config.num_requests, _end_ns(config))
    return draw_sessions(sessions, config.input_tokens, config.output_tokens, streams, window)


def _from_trace(config: WorkloadConfig, streams: Streams, trace: str, base_dir: Path) -> Trace:
    path = base_dir / trace
    if trace not in SHIPPED and not is_model_file(path):
        if not path.exists() and not Path(trace).suffix and "/" not in trace:
            near = difflib.get_close_matches(trace, SHIPPED, 1)
            hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(SHIPPED)}"
            raise ConfigError(f"workload.trace: {trace!r} is neither a file nor a shipped model; {hint}")
        return _from_file(config, streams, path)
    for name in ("format", "drop_failed"):
        if getattr(config, name):
            raise ConfigError(
                f"workload.{name}: acts on a trace file, and {trace} is a model of a trace; leave it out"
            )
    return _from_model(config, streams, load_model(trace if trace in SHIPPED else path))


def _from_model(config: WorkloadConfig, streams: Streams, model: WorkloadModel) -> Trace:
    """As many requests as the trace had that the model stands for, unless num_requests or duration_s says."""
    by_time = config.duration_s is not None and config.ramp_up_strategy is None
    count = config.num_requests or (None if by_time else model.requests)
    arrival = _draw_arrivals(config, streams, count, model)
    inputs, outputs, hashes, session = model.draw_requests(streams, arrival.size)
    trace = Trace.build(arrival, inputs, outputs, hashes=hashes, session=session, source=model.name)
    return _cut(config, trace)


def _from_file(config: WorkloadConfig, streams: Streams, path: Path) -> Trace:
    trace = read_trace(path, format=config.format, drop_failed=config.drop_failed)
    if config.num_requests is not None:
        if config.num_requests > len(trace):
            raise ConfigError(
                f"workload.num_requests: {config.num_requests}, but {path} has {len(trace)} requests"
            )
        trace = trace.head(config.num_requests)
    trace = trace.with_columns(arrival_ns=_file_arrivals(config, streams, trace, path))
    if config.duration_s is not None and config.num_requests is None:
        last = trace.duration_ns / NS_PER_S
        if last < config.duration_s:
            raise ConfigError(
                f"workload.duration_s: {config.duration_s:g}, but the last request arrives at {last:.9g} s"
            )
    return _cut(config, trace)


def _file_arrivals(config: WorkloadConfig, streams: Streams, trace: Trace, path: Path) -> Int64:
    _check_waits(config, trace, path)
    redrawn = config.ramp_up_strategy is not None or config.burstiness is not None
    if config.max_concurrency is not None or redrawn or not trace.has_arrivals:
        rate = mean_rate(trace.arrival_ns) if trace.has_arrivals else None
        return _draw_arrivals(config, streams, len(trace), None, rate)
    if config.rescale_arrivals:
        raise ConfigError(
            f"workload.rescale_arrivals: acts on drawn times, and {path} has its own; add burstiness"
        )
    return trace.arrival_ns if config.request_rate is None else at_rate(trace.arrival_ns, config.request_rate)


def _check_waits(config: WorkloadConfig, trace: Trace, path: Path) -> None:
    """Refuse another rate for requests whose times follow from the answers before them."""
    if trace.turns is None or not trace.turns.waiting:
        return
    changing = ("burstiness", "ramp_up_strategy", *(["request_rate"] if config.constant_rate else []))
    for name in changing:
        if getattr(config, name):
            raise ConfigError(
                f"workload.{name}: requests of {path} wait for answers, so no rate is theirs; leave it out, or give "
                "sessions instead of the trace"
            )


def _draw_arrivals(
    config: WorkloadConfig,
    streams: Streams,
    count: int | None,
    model: WorkloadModel | None,
    own_rate: float | None = None,
) -> Int64:
    """Draw `count` arrivals (None: all within duration_s); in a closed loop they are all zero."""
    if config.max_concurrency is not None:
        assert count is not None
        return np.zeros(count, dtype=np.int64)
    process = _process(config, model, own_rate, count)
    rng = streams.of("arrivals")
    if count is None:
        assert not isinstance(process, Ramp)
        _check_size(config, process.rate)
        return process.until(rng, _end_ns(config) or 0)
    times = process.first(rng, count)
    if not config.rescale_arrivals:
        return times
    assert not isinstance(process, Ramp)
    return at_rate(times, config.request_rate or process.rate)


def _process(
    config: WorkloadConfig, model: WorkloadModel | None, own_rate: float | None, count: int | None
) -> Renewal | Modulated | Bursts | Ramp:
    burstiness = config.burstiness or 1.0
    if config.ramp_up_strategy is not None:
        assert config.ramp_up_start_rps is not None
        assert config.ramp_up_end_rps is not None
        return Ramp(config.ramp_up_strategy, config.ramp_up_start_rps, config.ramp_up_end_rps, burstiness)
    arrivals = model.arrivals if model else None
    rate = config.request_rate or own_rate or (arrivals.rate if arrivals else None)
    if rate is None:
        raise ConfigError(
            f"workload.request_rate: missing, and {config.trace} has lengths only; "
            "give a rate, a ramp or max_concurrency"
        )
    if arrivals is None or config.burstiness is not None or np.isinf(rate):
        return Renewal(rate, burstiness)
    if config.request_rate is None:
        return arrivals.process()
    return arrivals.at_rate(rate, count if count is not None else rate * (config.duration_s or 0.0))


def _check_size(config: WorkloadConfig, rate: float) -> None:
    requests = rate * (config.duration_s or 0.0)
    if math.isfinite(requests) and requests > MOST_REQUESTS:
        raise ConfigError(
            f"workload.duration_s: {config.duration_s:g} s at {rate:g} requests/s are {requests:.4g} requests, "
            f"more than {MOST_REQUESTS}; give less, or num_requests"
        )


def _end_ns(config: WorkloadConfig) -> int | None:
    return None if config.duration_s is None else round(config.duration_s * NS_PER_S)


def _cut(config: WorkloadConfig, trace: Trace) -> Trace:
    """Keep the requests that arrive before duration_s."""
    end_ns = _end_ns(config)
    return trace if end_ns is None else trace.head(int(np.searchsorted(trace.arrival_ns, end_ns)))
