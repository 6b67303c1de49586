"""What shipped profiles add to their kernels: which runs it is fitted to, by which terms, and what is taken over.

`python -m calibration.serving.shipped DATA [NAME ...]` fits and writes them, on all cores.

H100, H200 and B200 have measured runs. Of the others nothing is known but the H100's: its host overheads are taken
over, and of its factors those of attention's fixed part and of small all-reduces, which are the engine's more than the
GPU's. The recorded runs on RTX 4090, RTX PRO 6000, A100 and L40S enter no fit: they are predicted.

The time of a sequence's tokens on their way out (`per_stream_s`) is held at what 32,000 recorded requests say of it
(`tests/fidelity/h100_requests.py`); `call_s` is a small all-reduce of the engine, timed without a graph, but on B200,
where served mixed steps take several times what such calls would, and it is fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from calibration.collection import systems_in
from calibration.devices import profile_name
from calibration.serving.fit_overheads import Fit, fit_overheads, left_out
from calibration.serving.left_out import prediction_errors
from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import Prediction, predict_all
from calibration.serving.readers import aggregates, per_request, silicon
from calibration.tables import read_table
from sim.model import load_model
from sim.profile import SHIPPED, HostOverhead, Profile, load_profile, shipped_profiles
from sim.served import Served

PER_STREAM_S: Final = 56e-6
HOPPER: Final = ("h100_sxm", "h200_sxm")
"""The same kernels; block-scaled experts were served on the second alone."""
ORIGIN: Final = HOPPER[0]
"""Whose overheads are taken over where nothing is measured."""

_SMALL_MESSAGE: Final = 16 * 2**10  # an all-reduce of so few bytes, without a graph, is the host
_DENSE: Final = (
    "host.per_layer_s",
    "host.per_seq_s",
    "host.per_request_s",
    "served.compute",
    "served.gemm_fixed",
    "served.decode_fixed",
    "served.prefill_attention",
    "served.all_reduce",
    "served.all_reduce_large",
)
_MXFP4: Final = ("served.routing_s", "served.experts.w4a16_mxfp4.few", "served.experts.w4a16_mxfp4.many")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Terms that the runs of a system are fitted with."""

    terms: tuple[str, ...]
    call_s: float | None = None
    """Where the search for it starts; None: it is timed."""


RECIPES: Final[Mapping[str, Recipe]] = {
    "h100_sxm": Recipe((*_DENSE, *_MXFP4, "host.piece_s", "host.cpu_base_s", "host.cpu_per_seq_s")),
    "h200_sxm": Recipe((*_DENSE, *_MXFP4, "host.piece_s", "served.experts.fp8_block.few")),
    "b200_sxm": Recipe((*_DENSE, *_MXFP4, "host.call_s"), call_s=80e-6),
}


NOT_FITTED: Final = ("llama-4-scout-17b-16e",)
"""Experts of a kernel that nothing else here uses: predicted without a factor of its own."""


def runs_of(data: Path, name: str) -> list[MeasuredRun]:
    """Runs on a system that its profile is fitted to; what is scored apart is not among them."""
    tables = [data / "silicon_e2e" / f"{kind}_vllm.csv" for kind in ("dense", "moe")]
    runs = [run for table in tables for run in silicon.read(table)]
    if name == ORIGIN:
        runs += per_request.read(data / "vllm_h100_perrequest" / "experiments.csv")
        more = aggregates.read(data / "vllm_multi_gpu_aggregates" / "experiments.csv")
        known = {run.name for run in runs}
        runs += [run for run in more if run.name not in known]
    return [
        run
        for run in runs
        if run.labels["system"] == name
        and any(part.apart is None for part in run.parts)
        and run.labels["model"] not in NOT_FITTED
    ]


def kernels_alone(profile: Profile) -> Profile:
    """Return the profile with nothing of what was fitted to served runs."""
    bare = HostOverhead(base_s=0.0, call_s=0.0, source="none")
    return profile.model_validate(
        profile.model_dump(by_alias=True) | {"host": bare, "served": None, "errors": ()}
    )


def fit_system(data: Path, name: str, log: Callable[[str], None] = print) -> Fit:
    """Fit a profile's overheads to its runs; starts from the same numbers for every system."""
    recipe, runs = RECIPES[name], runs_of(data, name)
    models = ", ".join(sorted({str(run.labels["model"]) for run in runs}))
    curves = len({run.curve for run in runs})
    source = f"{len(runs)} served runs of {models} on {name}, {curves} curves"
    host = HostOverhead(
        base_s=0.0,
        per_request_s=5e-3,
        per_stream_s=PER_STREAM_S,
        call_s=recipe.call_s or call_time(data, name) or HostOverhead.model_fields["call_s"].default,
        source=source,
    )
    start = kernels_alone(load_profile(name)).with_host(host)
    start = start.with_served(Served(compute=1.15, decode_fixed=0.6, all_reduce=1.5, source=source))
    return fit_overheads(start, runs, recipe.terms, source=source, log=log)


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


def with_own_work(profile: Profile, origin: Profile) -> Profile:
    """Take over what the host of engines that schedule in turn does, which only the origin's runs tell."""
    assert profile.host is not None
    assert origin.host is not None
    known = {name: getattr(origin.host, name) for name in ("cpu_base_s", "cpu_per_seq_s")}
    notes = f"work of engines that schedule in turn (cpu_*): taken over from {origin.name}"
    return profile.with_host(profile.host.model_copy(update={**known, "notes": notes}))


def with_block_experts(profile: Profile, origin: Profile) -> Profile:
    """Take over the factor on block-scaled 8-bit experts, which the runs of one GPU of a kind alone tell."""
    assert profile.served is not None
    assert origin.served is not None
    kernel = "fp8_block"
    experts = {**profile.served.experts, kernel: origin.served.experts[kernel]}
    notes = f"experts of {kernel}: taken over from {origin.name}"
    return profile.with_served(profile.served.model_copy(update={"experts": experts, "notes": notes}))


def taken_over(profile: Profile, origin: Profile, call_s: float | None) -> Profile:
    """Give a profile whose system has no measured runs the overheads of another.

    Factors stand beside tables of kernels timed alone; of layers that were timed one after the other nothing is left to
    them but the all-reduce.
    """
    assert origin.host is not None
    assert origin.served is not None
    said = f"taken over from {origin.name}, not measured here: {origin.host.source}"
    default = HostOverhead.model_fields["call_s"].default
    host = origin.host.model_copy(update={"source": said, "call_s": call_s or default})
    served = Served(all_reduce=origin.served.all_reduce, source=said)
    if not profile.shared_attention:
        served = served.model_copy(update={"decode_fixed": origin.served.decode_fixed})
    return profile.with_host(host).with_served(served)


def write_shipped(
    data: Path, names: Sequence[str], folder: Path = SHIPPED, judged: Path | None = None
) -> None:
    """Fit, judge on curves left out, and write; the origin comes first, since others take over from it.

    What each run was off by, left out and by the kernels alone, goes to `judged`/NAME.csv.
    """
    for name in sorted(names, key=lambda name: (name != ORIGIN, name not in RECIPES, name)):
        if name in RECIPES:
            fit = fit_system(data, name)
            said = list(left_out(fit))
            profile = fit.profile.with_errors(prediction_errors(said))
            if judged is not None:
                bare = list(predict_all(fit.runs, [kernels_alone(fit.profile)] * len(fit.runs)))
                (judged / f"{name}.csv").write_text(errors_csv(said, bare), encoding="utf-8")
            if name != ORIGIN:
                profile = with_own_work(profile, load_profile(folder / f"{ORIGIN}.json"))
        else:
            profile = taken_over(
                load_profile(name), load_profile(folder / f"{ORIGIN}.json"), call_time(data, name)
            )
        (folder / f"{name}.json").write_text(profile.to_json(), encoding="utf-8")
        print(f"wrote {name}: {profile.content_hash[:12]}", flush=True)
        if name == HOPPER[1]:
            one, other = (load_profile(folder / f"{hopper}.json") for hopper in HOPPER)
            (folder / f"{HOPPER[0]}.json").write_text(
                with_block_experts(one, other).to_json(), encoding="utf-8"
            )


def errors_csv(left_out: Sequence[Prediction], kernels: Sequence[Prediction]) -> str:
    """One row a part and metric: predicted / measured - 1 of the fit to other curves, and of the kernels alone."""
    lines = ["system,model,kind,data,run,part,curve,metric,left_out,kernels_alone"]
    for said, bare in zip(left_out, kernels, strict=True):
        run = said.run
        kind = "moe" if load_model(str(run.labels["model"])).moe is not None else "dense"
        for index, part in enumerate(run.parts):
            if part.apart is not None:
                continue
            for metric, measured in part.measured.items():
                errors = [f"{one.parts[index][metric] / measured - 1:.4f}" for one in (said, bare)]
                about = (run.labels["system"], run.labels["model"], kind, run.labels["data"])
                lines.append(",".join(map(str, (*about, run.name, index, run.curve, metric, *errors))))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    out = Path("tests/fidelity/left_out")
    write_shipped(Path(sys.argv[1]), sys.argv[2:] or shipped_profiles(), judged=out if out.is_dir() else None)
