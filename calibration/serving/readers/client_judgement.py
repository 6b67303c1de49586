"""What of a client's record can be trusted: it becomes a measured run.

Latencies follow from each request's own times by the definitions of `vllm bench serve`; a client's aggregates are
compared with them, and never taken: clients give one name to different things, and one thing different names.
What is wrong with a run is said in its caveats, leaves a metric out, has the run scored apart from others, or, where
nothing is left to trust, is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import RATES, Label, MeasuredRun, Part
from calibration.serving.predict import metrics_of
from calibration.serving.readers.client_run import Claim, ClientRun, Stage
from calibration.serving.readers.scrapes import AFTER, BEFORE, ServerFigures
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from workloads.build import Workload
from workloads.errors import InputError
from workloads.readers.vllm import NEAR_ZERO_S
from workloads.readers.vllm import STARVED_SHARE as BURST_SHARE
from workloads.trace import NS_PER_S

STARVED: Final = "the client was starved: the server's own means are scored"
SURVIVORS: Final = "requests failed: latencies are those of the others"
UNKNOWN_PREFIXES: Final = "prefix cache hits that the file does not explain"
LATE: Final = "the client sent late"

_STARVED_SHARE: Final = (
    0.25  # of tokens in bursts: not now and then, but as a rule (0.79 where a client was starved)
)
_MORE: Final = 1.5  # client over server: beyond this TTFT is the client's
_MORE_S: Final = (
    0.02  # and by so much: HTTP, tokeniser and API server of a fast engine take some milliseconds
)
_LATE_SHARE: Final = 0.1  # of TTFT
_ONE_PIECE_NS: Final = 10_000  # a token; no engine is so fast
_FAILED: Final = 0.05  # share of failed requests beyond which those that succeeded stand for another load
_HITS: Final = 0.05  # share of prompt tokens
_ROUNDING: Final = 1e-3
_HALF: Final = (0.45, 0.55)


def measured_run(run: ClientRun, scenario_raw: Mapping[str, Any]) -> MeasuredRun:
    """Judge a run; `scenario_raw` says what it ran on: its workload, if any, gives way to the run's own."""
    _check_times(run)
    scenario = _scenario(run, scenario_raw)
    starved = _starved(run)
    parts = [_servers_part(run, starved)] if starved else list(_parts(run))
    return MeasuredRun(
        name=run.name,
        curve=_curve(scenario),
        labels=_labels(run, scenario),
        scenario=scenario,
        parts=tuple(parts),
        workload=_workload(run),
        caveats=tuple(_caveats(run, scenario, starved)),
    )


def _check_times(run: ClientRun) -> None:
    early = (run.requests.ttft_ns <= 0) | (run.requests.e2el_ns < run.requests.ttft_ns)
    if early.any():
        at = int(np.flatnonzero(early)[0])
        raise InputError(
            f"{run.name}: request {at} in order of arrival has its first token no later than it was sent, or its last "
            "before its first; times of one clock are expected, of streamed answers"
        )


def _scenario(run: ClientRun, raw: Mapping[str, Any]) -> Scenario:
    workload: dict[str, Any] = {"trace": str(run.path), "drop_failed": True}
    if run.concurrency is not None:
        workload["max_concurrency"] = run.concurrency
    return load_scenario({**raw, "workload": workload})


def _workload(run: ClientRun) -> Workload:
    if run.concurrency is None:
        return Workload(run.trace)
    at_once = np.zeros(len(run.trace), dtype=np.int64)
    return Workload(run.trace.with_columns(arrival_ns=at_once), run.concurrency)


def _curve(scenario: Scenario) -> str:
    """Name what runs of one service share: they differ in load alone."""
    text = scenario.model_dump_json(exclude={"workload", "seed"})
    return f"{_model(scenario)} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _model(scenario: Scenario) -> str:
    """Return the model's name, which is its folder's where the scenario names a file."""
    path = Path(scenario.model)
    return path.parent.name if path.suffix == ".json" else scenario.model


def _labels(run: ClientRun, scenario: Scenario) -> dict[str, Label]:
    hardware = scenario.hardware
    labels: dict[str, Label] = {
        "data": run.client,
        "system": hardware.gpu or Path(hardware.profile or "").stem,
        "model": _model(scenario),
        "tensor_parallel_size": hardware.tensor_parallel_size,
        "precision": hardware.weight_dtype,
    }
    if run.concurrency is not None:
        return labels | {"concurrency": run.concurrency}
    seconds = run.trace.duration_ns / NS_PER_S
    return labels | ({"request_rate": float(f"{(len(run.trace) - 1) / seconds:.3g}")} if seconds else {})


def _parts(run: ClientRun) -> Iterator[Part]:
    apart = _apart(run)
    everything = np.ones(len(run.trace), dtype=np.bool_)
    for stage in run.stages or (Stage(everything, {}),):
        if not stage.counted.any():
            continue
        measured = metrics_of(run.requests, stage.counted)
        if run.trace.failed:
            measured = {name: value for name, value in measured.items() if name not in RATES}
        if not _streamed(run):
            measured = {name: value for name, value in measured.items() if "e2el" in name or name in RATES}
        yield Part(measured, stage.counted if run.stages else None, stage.labels, apart)


def _streamed(run: ClientRun) -> bool:
    """Tell whether tokens came one after the other; an answer in one piece has its first token with its last."""
    tpot_ns = run.requests.tpot_ns[run.requests.output_tokens > 1]
    return not tpot_ns.size or float(np.median(tpot_ns)) > _ONE_PIECE_NS


def _apart(run: ClientRun) -> str | None:
    if run.failed > _FAILED * (run.failed + len(run.trace)):
        return SURVIVORS
    if run.trace.hashes is None and run.server is not None and run.server.hit_share > _HITS:
        return UNKNOWN_PREFIXES
    return LATE if _is_late(run) else None


def _is_late(run: ClientRun) -> bool:
    """Tell whether sending was late by a tenth of TTFT on average: the load is then not the intended one."""
    ttft_s = float(run.requests.ttft_ns.mean()) / NS_PER_S
    return bool(run.late_s.size) and float(run.late_s.mean()) > max(_LATE_SHARE * ttft_s, _MORE_S)


def _burst_share(run: ClientRun) -> float:
    """Return the share of tokens that waited in the client for the one before: 0 where no gaps were kept."""
    return float(np.mean(run.gaps_s < NEAR_ZERO_S)) if run.gaps_s.size else 0.0


def _starved(run: ClientRun) -> str | None:
    """Say by what the client shows that it, and not the server, set its times; None where nothing does."""
    if _burst_share(run) > _STARVED_SHARE:
        return (
            f"{_burst_share(run):.0%} of its token gaps are below {NEAR_ZERO_S * 1e3:g} ms (median "
            f"{np.median(run.gaps_s) * 1e3:.3f} ms, mean {run.gaps_s.mean() * 1e3:.1f} ms)"
        )
    server = _comparable(run)
    if server is None:
        return None
    ours = float(run.requests.ttft_ns.mean()) / NS_PER_S
    theirs = server.ttft_s / server.requests
    if ours > _MORE * theirs and ours - theirs > _MORE_S:
        return f"its mean TTFT is {ours * 1e3:.0f} ms, the server's own {theirs * 1e3:.0f} ms"
    return None


def _comparable(run: ClientRun) -> ServerFigures | None:
    """Return the server's figures where they are of exactly the requests of this run."""
    server = run.server
    same = server is not None and server.requests == server.finished == len(run.trace)
    return server if same else None


def _servers_part(run: ClientRun, starved: str) -> Part:
    """Return means of the server's own histograms, for a client whose times are its own fault."""
    server = _comparable(run)
    if server is None:
        raise InputError(
            f"{run.name}: starved client: {starved}; none of its times can be trusted. Measure again with cores for "
            f"the client alone, or lay the server's /metrics from before and after the run beside the file, as "
            f"{BEFORE} and {AFTER}"
        )
    measured = {
        "mean_ttft_ms": 1e3 * server.ttft_s / server.requests,
        "mean_e2el_ms": 1e3 * server.e2el_s / server.requests,
    }
    several = int((run.trace.output_tokens > 1).sum())
    if several and server.tpot_s:
        measured["mean_tpot_ms"] = 1e3 * server.tpot_s / several
    return Part(measured, apart=STARVED)


def _caveats(run: ClientRun, scenario: Scenario, starved: str | None) -> Iterator[str]:
    yield from run.caveats
    if starved:
        yield f"starved client: {starved}; latencies are the server's own means, and no rate is trusted"
    elif _burst_share(run) > BURST_SHARE:
        share = f"{_burst_share(run):.0%} of the token gaps"
        yield f"{share} are below {NEAR_ZERO_S * 1e3:g} ms: the client was busy at times"
    total = len(run.trace) + run.trace.failed
    for count, what in ((run.failed, "failed"), (run.cut_off, "were cut off at the end")):
        if count:
            yield (
                f"{count} of {total} requests ({count / total:.1%}) {what}: they are not replayed, "
                "and no rate is trusted"
            )
    if run.concurrency is not None:
        yield f"a closed loop of {run.concurrency}: replayed as one, each request sent when another ends"
    if _is_late(run):
        late_ms = 1e3 * run.late_s
        yield (
            f"requests went out {late_ms.mean():.0f} ms after their time on average, {late_ms.max():.0f} ms at most"
        )
    if run.server is not None and _comparable(run) is None:
        yield (
            f"the scrapes count {run.server.requests} first tokens and {run.server.finished} requests, the file "
            f"{len(run.trace)} requests: they are not compared"
        )
    if not _streamed(run):
        yield "answers came in one piece (not streamed): neither TTFT nor TPOT was measured"
    yield from _prefix_caveats(run, scenario)
    if not starved:
        yield from filter(None, (_disagreement(claim) for claim in run.claims))


def _prefix_caveats(run: ClientRun, scenario: Scenario) -> Iterator[str]:
    hits = run.server.hit_share if run.server is not None else 0.0
    if run.trace.hashes is not None:
        yield "which prompts share a prefix follows from their text, within a block or so"
    elif hits > _HITS:
        yield f"the server found {hits:.0%} of the prompt tokens in its prefix cache; the file does not say whose"
    if (run.trace.hashes is not None or hits > _HITS) and not scenario.engine.enable_prefix_caching:
        yield "prompts share prefixes, and engine.enable_prefix_caching of the scenario is false"


def _disagreement(claim: Claim) -> str | None:
    """Say where the file's own figure is not that of its requests, by more than rounding."""
    if abs(claim.said - claim.derived) <= _ROUNDING * abs(claim.derived):
        return None
    low, high = _HALF
    why = ""
    if claim.derived and low <= claim.said / claim.derived <= high:
        why = " (tokens were counted twice)"
    ours = f"{claim.derived:.6g} by its requests{why}"
    return f"{claim.name} is {claim.said:.6g} in the file, {ours}: the latter is taken"
