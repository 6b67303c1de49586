"""Host overhead of a step: what measured times per output token leave over after the kernels.

In the steady state of a closed loop with n sequences decoding, a token takes one step, and prompts come in
at n per `output_tokens` steps, so that

    TPOT = decode step(n, context) + n / output_tokens x (what a prompt's chunks add to their steps)
           + base + per_layer x layers + per_seq x n

The last line is fitted, not below zero, with Huber weights on relative errors, and checked on whole curves
left out. Where all rows have one number of layers, base and per_layer cannot be told apart and base takes
both. What is left beyond that in runs that scheduled in turn is the host's own work, which async scheduling
hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from calibration.collection import systems_in
from calibration.devices import profile_name
from calibration.serving_rows import ServingRow, open_loop_rows, serving_rows
from calibration.tables import read_table
from sim.cost.build import compile_cost
from sim.cost.compiled import CompiledCost
from sim.model import load_model
from sim.profile import SHIPPED, HostOverhead, Profile, load_profile, shipped_profiles
from workloads.errors import InputError

Float = NDArray[np.float64]

_TOKENS = 8192  # max_num_batched_tokens of these runs
_HUBER = 0.05  # relative error beyond which a row counts less
_ROUNDS = 20
_SMALL_MESSAGE = 16 * 2**10  # all-reduce of so few bytes, without a graph, is the host


@dataclass(frozen=True, slots=True)
class Kernels:
    """One row seen by the kernels alone: predicted seconds and what the overhead multiplies."""

    seconds: float
    layers: int
    sequences: float
    tpot_s: float
    curve_id: str


@dataclass(frozen=True, slots=True)
class HostErrors:
    """|predicted / measured - 1| of TPOT: median and P90, with the kernels alone and on curves left out."""

    rows: int
    curves: int
    kernels_median: float
    kernels_p90: float
    held_out_median: float
    held_out_p90: float


def kernel_time(profile: Profile, row: ServingRow) -> Kernels:
    """Price the row's steady state without any host overhead."""
    bare = profile.with_host(HostOverhead(base_s=0.0, source="none"))
    model = load_model(row.model)
    cost = compile_cost(
        model,
        bare,
        tensor_parallel_size=row.tensor_parallel_size,
        weight_dtype=row.weight_dtype,
        kv_cache_dtype=row.kv_cache_dtype,
        max_num_batched_tokens=_TOKENS,
        max_num_seqs=max(row.concurrency, 256),
    )
    return Kernels(
        seconds=_steady_token_s(cost, row),
        layers=model.num_layers,
        sequences=row.decoding,
        tpot_s=row.tpot_s,
        curve_id=row.curve_id,
    )


def _steady_token_s(cost: CompiledCost, row: ServingRow) -> float:
    seqs = max(1, round(row.decoding))
    mean = row.input_tokens + row.output_tokens / 2
    context = round(seqs * mean)
    window = round(seqs * min(mean, cost.sliding_window or mean))
    step = cost.decode_ns(seqs, context, window)
    added, computed, left = 0, 0, 0 if row.cached_prompts else round(row.input_tokens)
    while left:
        new = min(left, _TOKENS - seqs)
        added += cost.mixed_ns(seqs, context, window, ((new, computed),)) - step
        computed, left = computed + new, left - new
    return 1e-9 * (step + seqs / row.output_tokens * added)


def fit_host(profile: Profile, rows: Sequence[ServingRow]) -> HostOverhead:
    """Fit base, per layer and per sequence to rows of one system that ran with async scheduling."""
    kernels = _kernels(profile, rows)
    base, per_layer, per_seq = _fit(kernels).tolist()
    errors = _errors(kernels)
    models = ", ".join(sorted({load_model(row.model).name for row in rows}))
    return HostOverhead(
        base_s=base,
        per_layer_s=per_layer,
        per_seq_s=per_seq,
        source=f"{errors.rows} serving rows of {models} on {profile.name}, {errors.curves} curves",
        notes=f"TPOT on curves left out: median {errors.held_out_median:.1%}, P90 {errors.held_out_p90:.1%}; "
        f"kernels alone {errors.kernels_median:.1%} and {errors.kernels_p90:.1%}",
    )


def with_own_work(profile: Profile, host: HostOverhead, rows: Sequence[ServingRow]) -> HostOverhead:
    """Add the host's own work, from rows that scheduled in turn: what `host` leaves of them."""
    kernels = _kernels(profile, rows)
    left = [Kernels(k.seconds + _overhead(host, k), 0, k.sequences, k.tpot_s, k.curve_id) for k in kernels]
    base, _, per_seq = _fit(left).tolist()
    models = ", ".join(sorted({load_model(row.model).name for row in rows}))
    notes = f"{host.notes}; own work: {len(rows)} rows of {models} on {profile.name} that scheduled in turn"
    return host.model_copy(update={"cpu_base_s": base, "cpu_per_seq_s": per_seq, "notes": notes})


def cross_validate(profile: Profile, rows: Sequence[ServingRow]) -> HostErrors:
    """Errors on whole curves, each predicted by a fit to the others."""
    return _errors(_kernels(profile, rows))


def transferred(host: HostOverhead, origin: str) -> HostOverhead:
    """Take over the overhead of another system, and say so."""
    return host.model_copy(update={"source": f"taken over from {origin}, not measured here: {host.source}"})


def fit_hosts(data: Path) -> dict[str, HostOverhead]:
    """Fit every shipped profile that `data` has closed-loop rows for; the others take over those of H100.

    The recorded runs on RTX 4090 and RTX PRO 6000 are left to be predicted. The host's own work is known from H100
    alone (Qwen3-32B, vLLM 0.12), and taken over by all.
    """
    table = data / "silicon_e2e" / "dense_vllm.csv"
    origin = "h100_sxm"
    reference = load_profile(origin)
    stages = open_loop_rows(data / "vllm_h100_perrequest" / "experiments.csv")
    host = fit_host(reference, serving_rows(table, origin) + stages)
    in_turn = serving_rows(table, origin, "nvidia_internal")
    hosts = {origin: with_own_work(reference, host, in_turn)}
    for name in shipped_profiles():
        if name == origin:
            continue
        if rows := serving_rows(table, name):
            hosts[name] = _own_work_of(hosts[origin], fit_host(load_profile(name), rows))
        else:
            hosts[name] = transferred(hosts[origin], origin)
    default = HostOverhead.model_fields["call_s"].default
    return {
        name: host.model_copy(update={"call_s": call_time(data, name) or default})
        for name, host in hosts.items()
    }


def call_time(data: Path, name: str) -> float | None:
    """Return the host's seconds for one operation outside a graph: a small all-reduce of the engine, timed so.

    None where no all-reduce of the system was timed.
    """
    kernels = data / "kernels"
    system = next((one for one in systems_in(kernels) if profile_name(one) == name), None)
    if system is None:
        return None
    eager = read_table(kernels / system / "allreduce.parquet", "allreduce").only(impl="vllm_eager")
    small = eager.where(eager.number("message_bytes") <= _SMALL_MESSAGE)
    gpus = np.unique(small.number("gpus"))
    return round(min(float(np.median(small.only(gpus=int(count)).time_s)) for count in gpus), 7)


def _own_work_of(known: HostOverhead, host: HostOverhead) -> HostOverhead:
    own_work = known.notes.split("; own work: ")[-1]
    return host.model_copy(
        update={
            "cpu_base_s": known.cpu_base_s,
            "cpu_per_seq_s": known.cpu_per_seq_s,
            "notes": f"{host.notes}; own work taken over: {own_work}",
        }
    )


def write_hosts(data: Path, folder: Path = SHIPPED) -> None:
    """Fit the host overhead of the shipped profiles and write them, with it, to `folder`."""
    for name, host in fit_hosts(data).items():
        (folder / f"{name}.json").write_text(load_profile(name).with_host(host).to_json())


def _kernels(profile: Profile, rows: Sequence[ServingRow]) -> list[Kernels]:
    if not rows:
        raise InputError(f"host overhead of {profile.name}: no serving rows to fit")
    return [kernel_time(profile, row) for row in rows]


def _errors(kernels: list[Kernels]) -> HostErrors:
    curves = sorted({k.curve_id for k in kernels})
    held_out: list[float] = []
    for curve in curves:
        fit = _fit([k for k in kernels if k.curve_id != curve] or kernels)
        held_out += [
            abs((k.seconds + float(_terms(k) @ fit)) / k.tpot_s - 1) for k in kernels if k.curve_id == curve
        ]
    alone = [abs(k.seconds / k.tpot_s - 1) for k in kernels]
    return HostErrors(
        rows=len(kernels),
        curves=len(curves),
        kernels_median=float(np.median(alone)),
        kernels_p90=float(np.quantile(alone, 0.9)),
        held_out_median=float(np.median(held_out)),
        held_out_p90=float(np.quantile(held_out, 0.9)),
    )


def _overhead(host: HostOverhead, k: Kernels) -> float:
    return host.base_s + host.per_layer_s * k.layers + host.per_seq_s * k.sequences


def _terms(k: Kernels) -> Float:
    return np.array([1.0, k.layers, k.sequences])


def _fit(kernels: list[Kernels]) -> Float:
    """Non-negative least squares on relative errors, rows beyond `_HUBER` weighted down, in rounds."""
    terms = np.array([_terms(k) for k in kernels])
    if len({k.layers for k in kernels}) == 1:
        terms[:, 1] = 0.0
    measured = np.array([k.tpot_s for k in kernels])
    wanted = 1 - np.array([k.seconds for k in kernels]) / measured
    scaled = terms / measured[:, None]
    weight = np.ones(len(kernels))
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        fit, _ = nnls(scaled * root[:, None], wanted * root)
        error = np.abs(scaled @ fit - wanted)
        weight = _HUBER / np.maximum(error, _HUBER)
    return np.asarray(fit, dtype=np.float64)
