"""`servetwin trace`: look at traces, convert them, fit laws and models to them, generate them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter

from workloads import show
from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.errors import ConfigError, InputError
from workloads.expand import expand_hashes
from workloads.model import SHIPPED, load_model
from workloads.options import workload_section
from workloads.readers import detect_format, read_trace
from workloads.replacing import replacing
from workloads.streams import Streams
from workloads.summary import summarise
from workloads.trace import NS_PER_S, Trace
from workloads.writers import format_of, write_trace

app = App(
    name="trace",
    help="Workload traces: figures, conversion, fits and models, generation.",
    default_parameter=Parameter(negative=""),
)

Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document and nothing else.")]
Format = Annotated[str | None, Parameter(help="Format of the file, where its content should not decide.")]
DropFailed = Annotated[bool, Parameter(help="Keep failed requests out, and count them.")]
Force = Annotated[bool, Parameter(help="Replace an existing file.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How a trace is written."""

    to: Annotated[str | None, Parameter(help="Format to write: parquet, azure, mooncake, vidur.")] = None
    allow_loss: Annotated[bool, Parameter(help="Write although the format cannot hold everything.")] = False
    force: Force = False
    as_json: Json = False


_AS_THEY_COME = Output()


@app.command
def info(
    file: str,
    /,
    *,
    format: Format = None,  # noqa: A002
    drop_failed: DropFailed = False,
    as_json: Json = False,
) -> None:
    """Show the figures of a trace file, or of a shipped model (as one draw of it with seed 0).

    Failed requests are counted and left out of the figures; --drop-failed only silences the warning.
    """
    if file in SHIPPED:
        trace, found = _draw_model(file), "model"
    else:
        found = format or detect_format(file)
        trace = read_trace(file, format=found, drop_failed=True)
    if trace.failed and not drop_failed and found != "parquet":
        note = f"{trace.failed} failed requests are left out of these figures; to run it, use --drop-failed"
        trace = replace(trace, warnings=(*trace.warnings, note))
    document = {"file": file, "format": found, **summarise(trace)}
    _print(document, as_json, show.figures)


def _draw_model(name: str) -> Trace:
    model = load_model(name)
    if model.arrivals is not None:
        config = parse_workload({"trace": name})
        return build_workload(config, np.random.SeedSequence(0)).trace
    inputs, outputs, hashes, session = model.draw_requests(Streams(np.random.SeedSequence(0)), model.requests)
    zeros = np.zeros(model.requests)
    return Trace.build(
        zeros, inputs, outputs, hashes=hashes, session=session, has_arrivals=False, source=name
    )


@app.command
def convert(
    source: Path,
    target: Path,
    /,
    *,
    format: Format = None,  # noqa: A002
    drop_failed: DropFailed = False,
    block_tokens: Annotated[int | None, Parameter(help="Tokens of a prefix block in the new file.")] = None,
    output: Output = _AS_THEY_COME,
) -> None:
    """Write a trace in another format; what that cannot hold is an error."""
    name = format_of(target, output.to)
    found = format or detect_format(source)
    trace = read_trace(source, format=found, drop_failed=drop_failed)
    if block_tokens is not None:
        if trace.hashes is None:
            raise ConfigError(f"--block-tokens: {source} has no prefix blocks; leave it out")
        trace = expand_hashes(trace, block_tokens)
    _write(trace, target, name, {"source": str(source), "from": found}, output)


@app.command
def generate(
    target: Path,
    /,
    *,
    workload: Annotated[
        Path | None, Parameter(help="YAML file with a workload section, as a scenario.")
    ] = None,
    trace: Annotated[str | None, Parameter(help="Shipped model, model file or trace file.")] = None,
    num_requests: str | None = None,
    duration_s: str | None = None,
    request_rate: Annotated[str | None, Parameter(help="Requests per second.")] = None,
    burstiness: Annotated[
        str | None, Parameter(help="Gamma shape of the gaps: 1 Poisson, inf constant.")
    ] = None,
    input_tokens: Annotated[
        str | None, Parameter(help="As in a scenario: 1024, or '{uniform: [1, 9]}'.")
    ] = None,
    output_tokens: str | None = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", help="Any field of the workload: FIELD=VALUE (YAML).")
    ] = (),
    seed: int = 0,
    output: Output = _AS_THEY_COME,
) -> None:
    """Draw a workload and write it as a trace. The options are fields of a scenario's workload section."""
    name = format_of(target, output.to)
    options = {
        "trace": trace,
        "num_requests": num_requests,
        "duration_s": duration_s,
        "request_rate": request_rate,
        "burstiness": burstiness,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    config = parse_workload(workload_section(workload, options, set_))
    if config.max_concurrency is not None:
        raise ConfigError(
            "workload.max_concurrency: a trace file has no closed loop; give request_rate instead"
        )
    if seed < 0:
        raise ConfigError(f"--seed: {seed} is negative; give 0 or more")
    base_dir = workload.parent if workload is not None and trace is None else None
    drawn = build_workload(config, np.random.SeedSequence(seed), base_dir=base_dir).trace
    _write(drawn, target, name, {"seed": seed}, output)


@app.command
def fit(
    file: Path,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Write a model of the trace here (JSON), to use as a trace.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Name of the model; default: the file's.")] = None,
    source: Annotated[
        str | None, Parameter(help="Where the trace is from; default: the file's name.")
    ] = None,
    licence: Annotated[str, Parameter(help="Licence of the trace.")] = "not stated",
    note: Annotated[str, Parameter(help="What a user of the model should know.")] = "",
    format: Format = None,  # noqa: A002
    drop_failed: DropFailed = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit families of laws to lengths and gaps, ranked by KS distance; with --out also write a model."""
    from workloads import fit as fits  # noqa: PLC0415 - brings scipy, 400 ms
    from workloads.model_fit import fit_model  # noqa: PLC0415 - as above

    trace = read_trace(file, format=format, drop_failed=drop_failed)
    if len(trace) < fits.LEAST:
        raise InputError(
            f"{file}: {len(trace)} requests are too few to fit; at least {fits.LEAST} are needed"
        )
    document: dict[str, Any] = {"file": str(file), "requests": len(trace)}
    samples = {"input_tokens": trace.input_tokens, "output_tokens": trace.output_tokens}
    for what, values in samples.items():
        varies = len(np.unique(values)) > 1
        document[what] = [asdict(one) for one in fits.fit_lengths(values)] if varies else None
    gaps_s = np.diff(trace.arrival_ns) / NS_PER_S
    document["gaps_s"] = [asdict(one) for one in fits.fit_gaps(gaps_s)] if np.ptp(gaps_s) > 0 else None
    if not any(document[what] for what in (*samples, "gaps_s")):
        raise InputError(
            f"{file}: input_tokens, output_tokens and gaps are the same in all {len(trace)} requests; "
            "a fit needs values that differ"
        )
    document["note"] = fits.note(len(trace))
    document["model"] = None if out is None else str(out)
    if out is not None:
        label = {"name": name or file.stem, "source": source or file.name, "licence": licence, "note": note}
        text = fit_model(trace, **label).text
        with replacing(out, force=force) as draft:
            draft.write_text(text, encoding="utf-8")
    _print(document, as_json, show.fits)


def _write(trace: Trace, target: Path, name: str, about: dict[str, Any], output: Output) -> None:
    figures = summarise(trace)  # before the file is there: who interrupts finds none
    lost = write_trace(trace, target, name, force=output.force, allow_loss=output.allow_loss)
    keys = (
        *("requests", "failed", "input_tokens", "output_tokens", "duration_s", "request_rate", "waiting"),
        "warnings",
    )
    document = {**about, "out": str(target), "to": name, "lost": lost, **{key: figures[key] for key in keys}}
    _print(document, output.as_json, show.written)


def _print(document: dict[str, Any], as_json: bool, human: show.Human) -> None:
    if as_json:
        print(json.dumps(document, indent=1))
        return
    for warning in document.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    human(document)
