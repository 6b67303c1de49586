"""A workload config and a seed -> the requests. The same seed gives the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workloads.arrivals import ArrivalProcess, Ramp, Renewal, at_rate, mean_rate
from workloads.config import WorkloadConfig
from workloads.errors import ConfigError
from workloads.lengths import draw_lengths
from workloads.readers import read_trace
from workloads.sessions import SessionsConfig, Window, draw_sessions
from workloads.streams import Streams
from workloads.tenants import assign_tenants
from workloads.trace import NS_PER_S, Int64, Trace


@dataclass(frozen=True)
class Workload:
    """What the simulator runs.

    max_concurrency  None: an open stream, requests arrive at trace.arrival_ns. Else a closed loop: requests
                     are sent in the order of the trace (arrival_ns is all zero), so many in flight.
    """

    trace: Trace
    max_concurrency: int | None = None


def build_workload(
    config: WorkloadConfig, seed: np.random.SeedSequence, *, base_dir: Path | None = None
) -> Workload:
    """Read or draw the requests; a relative trace path is looked up in `base_dir`."""
    streams = Streams(seed)
    if config.trace is not None:
        trace = _from_file(config, streams, (base_dir or Path()) / config.trace)
    else:
        trace = _from_lengths(config, streams)
    if not len(trace):
        raise ConfigError(f"duration_s: no request arrives within {config.duration_s:g} s; give more")
    if config.tenants is not None:
        trace = assign_tenants(trace, config.tenants, streams.of("tenants"))
    return Workload(trace, config.max_concurrency)


def _from_lengths(config: WorkloadConfig, streams: Streams) -> Trace:
    assert config.input_tokens is not None
    assert config.output_tokens is not None
    if config.sessions is not None:
        return _from_sessions(config, config.sessions, streams)
    arrival = _draw_arrivals(config, streams, config.num_requests)
    inputs = draw_lengths(config.input_tokens, streams.of("inputs"), arrival.size)
    outputs = draw_lengths(config.output_tokens, streams.of("outputs"), arrival.size)
    trace = Trace.build(arrival, inputs, outputs, source="lengths")
    if config.duration_s is None:
        return trace
    return trace.head(int(np.searchsorted(arrival, round(config.duration_s * NS_PER_S))))


def _from_sessions(config: WorkloadConfig, sessions: SessionsConfig, streams: Streams) -> Trace:
    assert config.input_tokens is not None
    assert config.output_tokens is not None
    assert config.request_rate is not None
    burstiness = 1.0 if config.burstiness is None else config.burstiness
    end_ns = None if config.duration_s is None else round(config.duration_s * NS_PER_S)
    window = Window(config.request_rate, burstiness, config.num_requests, end_ns)
    return draw_sessions(sessions, config.input_tokens, config.output_tokens, streams, window)


def _from_file(config: WorkloadConfig, streams: Streams, path: Path) -> Trace:
    trace = read_trace(path, format=config.format, drop_failed=config.drop_failed)
    if config.num_requests is not None:
        if config.num_requests > len(trace):
            raise ConfigError(f"num_requests: {config.num_requests}, but {path} has {len(trace)} requests")
        trace = trace.head(config.num_requests)
    trace = trace.with_columns(arrival_ns=_file_arrivals(config, streams, trace, path))
    return trace if config.duration_s is None else _cut(config, trace)


def _file_arrivals(config: WorkloadConfig, streams: Streams, trace: Trace, path: Path) -> Int64:
    if config.max_concurrency is not None:
        return np.zeros(len(trace), dtype=np.int64)
    timed = config.request_rate is not None or config.ramp_up_strategy is not None
    if not trace.has_arrivals and not timed:
        raise ConfigError(
            f"request_rate: missing, and {path} has lengths only; give a rate, a ramp or max_concurrency"
        )
    if config.ramp_up_strategy is not None or config.burstiness is not None or not trace.has_arrivals:
        rate = config.request_rate or mean_rate(trace.arrival_ns)
        return _draw_arrivals(config, streams, len(trace), rate)
    if config.rescale_arrivals:
        raise ConfigError(f"rescale_arrivals: acts on drawn times, and {path} has its own; add burstiness")
    return trace.arrival_ns if config.request_rate is None else at_rate(trace.arrival_ns, config.request_rate)


def _cut(config: WorkloadConfig, trace: Trace) -> Trace:
    assert config.duration_s is not None
    end_ns = round(config.duration_s * NS_PER_S)
    if trace.duration_ns < end_ns and config.num_requests is None:
        last = trace.duration_ns / NS_PER_S
        raise ConfigError(f"duration_s: {config.duration_s:g}, but the last request arrives at {last:.9g} s")
    return trace.head(int(np.searchsorted(trace.arrival_ns, end_ns)))


def _draw_arrivals(
    config: WorkloadConfig, streams: Streams, count: int | None, rate: float | None = None
) -> Int64:
    if config.max_concurrency is not None:
        assert count is not None
        return np.zeros(count, dtype=np.int64)
    rate = rate or config.request_rate
    rng = streams.of("arrivals")
    burstiness = 1.0 if config.burstiness is None else config.burstiness
    if config.ramp_up_strategy is not None:
        assert count is not None
        assert config.ramp_up_start_rps is not None
        assert config.ramp_up_end_rps is not None
        ramp = Ramp(config.ramp_up_strategy, config.ramp_up_start_rps, config.ramp_up_end_rps, burstiness)
        return ramp.first(rng, count)
    assert rate is not None
    process: ArrivalProcess = Renewal(rate, burstiness)
    if count is not None:
        times = process.first(rng, count)
        return at_rate(times, rate) if config.rescale_arrivals else times
    assert config.duration_s is not None
    return process.until(rng, round(config.duration_s * NS_PER_S))
