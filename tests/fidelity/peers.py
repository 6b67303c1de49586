"""Servetwin and its peers on the same measured runs: `python -m tests.fidelity.peers`.

Runs: closed loops of vLLM (`silicon_e2e`), dense and mixture of experts, as their reader gives them; those that it
marks as cases of their own are left out. Every tool is scored on the runs that all of them answer, by the rules of
`calibration/serving/scores.py`. A peer runs in an interpreter of its own (`--peer-python aiconfigurator=PYTHON`), as
its dependencies need not agree with ours, and is given what the scenario of a run says (`peer_driver.py`): nothing
measured. Nothing is kept; the same versions and data give the same tables.

Predictions made elsewhere stand beside those of the shipped profiles: `--predictions NAME=FILE`, where FILE is the
`predictions.parquet` of `servetwin validate serving --out`, or of any predictions (`write_predictions`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import Prediction, predict_all, seeds_of
from calibration.serving.readers import silicon
from calibration.serving.scores import Pair, grouped, pairs_of, score
from calibration.serving.validation_files import prediction_columns
from sim.model import load_model
from tests.data import ROOT
from workloads.errors import InputError

DRIVER: Final = Path(__file__).with_name("peer_driver.py")
TABLES: Final = {"dense": "dense_vllm.csv", "mixture of experts": "moe_vllm.csv"}
METRICS: Final = {"mean_tpot_ms": "Mean TPOT", "mean_ttft_ms": "Mean TTFT"}
SHIPPED: Final = "Servetwin, shipped profiles"


@dataclass(frozen=True)
class Peer:
    """A tool that gives TTFT and TPOT for such runs without a GPU.

    install     how it gets into an interpreter
    about       what must be known to read its figures
    """

    title: str
    install: str
    about: str


PEERS: Final = {
    "aiconfigurator": Peer(
        "AIConfigurator",
        "pip install aiconfigurator",
        "an estimate in closed form from kernel tables, asked as its authors ask it about these rows: nominal lengths, "
        "concurrency as batch size, its own default for the version of the tables. By the comments of its vLLM "
        "backend, its overhead per layer and its queueing factor were calibrated to a corpus that these rows come "
        "from: it is not blind.",
    ),
    "aisimulate": Peer(
        "AISimulate",
        "pip install --pre aisimulate",
        "a replay of the same closed loop, request by request, on the same kind of tables, set up as its authors "
        "replay these rows: lengths drawn from [0.8 L, L] where the client is known to do so, the limits of the "
        "scenario, several seeds where ours are.",
    ),
}

NOT_RUN: Final = (
    "Not run here: Vidur, BLIS and LLMServingSim need profiles or coefficients of their own for these GPUs, models "
    "and engine versions. Published by their authors, on runs of their own, not measured here: BLIS, median over 38 "
    "experiments, E2E 6.8%, TTFT 18.4%, ITL 6.5%; LLMServingSim, four runs, TPOT within 1.7%, TTFT +0.6% to -13.6%; "
    "Vidur, latencies within 9%."
)

Question = dict[str, Any]
Answers = dict[str, Any]


def measured_runs(data: Path) -> dict[str, list[MeasuredRun]]:
    """Runs by the kind of their model, without those that are apart."""
    return {
        kind: [run for run in silicon.read(data / "silicon_e2e" / table) if run.parts[0].apart is None]
        for kind, table in TABLES.items()
    }


def question_of(run: MeasuredRun) -> Question:
    """What a peer is told of a run: its scenario, flat."""
    scenario = run.scenario
    hardware, engine, workload = scenario.hardware, scenario.engine, scenario.workload
    return {
        "model": run.labels["model"],
        "is_moe": load_model(str(run.labels["model"])).moe is not None,
        "system": hardware.gpu,
        "tensor_parallel_size": hardware.tensor_parallel_size,
        "weight_dtype": hardware.weight_dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "block_size": engine.block_size,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": engine.max_model_len,
        "input_tokens": _bounds(workload.input_tokens),
        "output_tokens": _bounds(workload.output_tokens),
        "concurrency": workload.max_concurrency,
        "requests": workload.num_requests,
        "seeds": seeds_of(run),
    }


def _bounds(lengths: Any) -> list[int]:
    if isinstance(lengths, int):
        return [lengths, lengths]
    return list(lengths.uniform)


def ask(peer: str, python: str, questions: Sequence[Question], processes: int | None = None) -> Answers:
    """Put the questions to a peer in its interpreter; its `version` and `answers` in their order, or `absent`."""
    count = max(1, min(processes or os.cpu_count() or 1, len(questions)))
    with ThreadPoolExecutor(count) as pool:
        parts = list(pool.map(lambda i: _ask_part(peer, python, questions[i::count]), range(count)))
    if "absent" in parts[0]:
        return parts[0]
    answers: list[Any] = [None] * len(questions)
    for i, part in enumerate(parts):
        answers[i::count] = part["answers"]
    return {"version": parts[0]["version"], "answers": answers}


def _ask_part(peer: str, python: str, questions: Sequence[Question]) -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "questions.json"), Path(folder, "answers.json")
        asked.write_text(json.dumps(questions), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, str(DRIVER), peer, str(asked), str(answered)],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise InputError(
                f"{python}: cannot be run ({error.strerror}); give --peer-python {peer}=PYTHON"
            ) from error
        if done.returncode or not answered.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(f"{python}: {peer} ended with {done.returncode} ({last})")
        answers: Answers = json.loads(answered.read_text(encoding="utf-8"))
        return answers


def predictions_of(runs: Sequence[MeasuredRun], answers: Answers) -> list[Prediction]:
    """What a peer said, in the form of our own predictions; of what it refused, nothing."""
    return [
        Prediction(
            run,
            (
                {}
                if "refused" in said
                else {"mean_tpot_ms": said["tpot_ms"], "mean_ttft_ms": said["ttft_ms"]},
            ),
            "",
            0,
        )
        for run, said in zip(runs, answers["answers"], strict=True)
    ]


def read_predictions(path: Path, runs: Sequence[MeasuredRun]) -> list[Prediction]:
    """Predictions of these runs from a file of `validate serving`; runs that are not in it have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=["run", "part", "metric", "predicted"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a predictions.parquet of validate serving ({error})") from error
    said: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["part"] == 0 and row["predicted"] is not None:
            said.setdefault(row["run"], {})[row["metric"]] = row["predicted"]
    return [Prediction(run, (said.get(run.name, {}),), "", 0) for run in runs]


def write_predictions(predictions: Iterable[Prediction], path: Path) -> None:
    """Write predictions so that `--predictions` reads them: those with whole curves left out, say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(prediction_columns(pairs_of(predictions))), path)


def shared_pairs(tools: Mapping[str, Sequence[Prediction]], metric: str) -> dict[str, list[Pair]]:
    """Pairs of one metric by tool: of the runs, in one order, of which every tool has an error."""
    pairs = {name: {pair.run: pair for pair in pairs_of(said, [metric])} for name, said in tools.items()}
    first, *others = pairs.values()
    runs = [
        run for run in first if all(run in one and one[run].error is not None for one in (first, *others))
    ]
    return {name: [found[run] for run in runs] for name, found in pairs.items()}


def table(
    tools: Mapping[str, Sequence[Prediction]], metric: str, kinds: Mapping[str, Sequence[MeasuredRun]]
) -> list[str]:
    """A table in Markdown: MAPE / median / P90 / bias [%] of each tool by system and model, and by kind of model."""
    pairs = shared_pairs(tools, metric)
    lines = [
        f"| system | model | runs | {' | '.join(tools)} |",
        f"|---|---|---:|{'---:|' * len(tools)}",
    ]
    first = next(iter(pairs.values()))
    groups: list[tuple[str, str, set[str]]] = [
        (str(system), str(model), {pair.run for pair in members})
        for (system, model), members in grouped(first, ("system", "model")).items()
    ]
    groups += [("all", kind, {run.name for run in runs}) for kind, runs in kinds.items()]
    for system, model, members in groups:
        chosen = {name: [pair for pair in found if pair.run in members] for name, found in pairs.items()}
        count = len(next(iter(chosen.values())))
        if count:
            lines.append(f"| {system} | {model} | {count} | {' | '.join(map(_cell, chosen.values()))} |")
    return lines


def _cell(pairs: Sequence[Pair]) -> str:
    found = score(pairs)
    if found is None:
        raise ValueError("a group of runs without errors has no cell")
    sizes = (found.mape, found.p50_abs_pct_err, found.p90_abs_pct_err)
    return " / ".join(f"{100 * size:.1f}" for size in sizes) + f" / {100 * found.bias:+.1f}"


def notes_of(peer: str, runs: Sequence[MeasuredRun], answers: Answers) -> Iterator[str]:
    """What a peer was given, and the runs that it gave no answer to."""
    said = answers["answers"]
    yield f"{PEERS[peer].title} {answers['version']}: {PEERS[peer].about}"
    passed = [one["passed"] for one in said if "passed" in one]
    names = dict.fromkeys(name for one in passed for name in one)
    given = ", ".join(f"{name}={_values([one[name] for one in passed if name in one])}" for name in names)
    yield f"  passed: {given or 'nothing'}"
    refused: dict[str, list[str]] = {}
    for run, one in zip(runs, said, strict=True):
        if "refused" in one:
            refused.setdefault(re.sub(r"\d[\d.]*", "#", one["refused"]), []).append(
                f"{run.name}: {one['refused']}"
            )
    for examples in refused.values():
        yield f"  no answer for {len(examples)} of {len(said)} runs, first {textwrap.shorten(examples[0], 240)}"


def _values(values: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(map(str, values)))
    if len(distinct) <= 4:
        return "|".join(distinct)
    if all(isinstance(value, int | float) for value in values):
        return f"{min(values)}..{max(values)}"
    return f"{distinct[0]} and {len(distinct) - 1} others"


def _named(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=VALUE is asked")
    return name, value


def _peer_python(text: str) -> tuple[str, str]:
    name, python = _named(text)
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"{name}: no such peer; {' or '.join(PEERS)}")
    return name, python


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT, help="folder of measured data")
    parser.add_argument(
        "--peer-python",
        type=_peer_python,
        action="append",
        default=[],
        help="PEER=PYTHON that has it; may be repeated, for other releases of it",
    )
    parser.add_argument(
        "--predictions",
        type=_named,
        action="append",
        default=[],
        help="NAME=FILE: predictions made elsewhere",
    )
    parser.add_argument("--no-shipped", action="store_true", help="leave the shipped profiles out")
    arguments = parser.parse_args(argv)
    try:
        print("\n".join(report(arguments)))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def report(arguments: argparse.Namespace) -> Iterator[str]:
    """Everything that is printed, line by line."""
    kinds = measured_runs(arguments.data)
    runs = [run for found in kinds.values() for run in found]
    tools = {name: read_predictions(Path(file), runs) for name, file in arguments.predictions}
    if not arguments.no_shipped:
        tools[SHIPPED] = list(predict_all(runs))
    questions = [question_of(run) for run in runs]
    given = {name for name, _ in arguments.peer_python}
    notes: list[str] = []
    for name, python in [
        *arguments.peer_python,
        *((name, sys.executable) for name in PEERS if name not in given),
    ]:
        answers = ask(name, python, questions)
        if "absent" in answers:
            notes.append(
                f"{PEERS[name].title}: not in {python}; {PEERS[name].install}, or --peer-python {name}=PYTHON"
            )
            continue
        title = f"{PEERS[name].title} {answers['version']}"
        if title in tools:
            raise InputError(f"--peer-python {name}={python}: {title} is there already")
        tools[title] = predictions_of(runs, answers)
        notes += notes_of(name, runs, answers)
    if not tools:
        raise InputError("nothing to compare: --no-shipped, and no peer is installed")
    for metric, title in METRICS.items():
        yield f"{title}: MAPE / median |error| / P90 / bias, %"
        yield ""
        yield from table(tools, metric, kinds)
        yield ""
    yield from notes
    yield NOT_RUN


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
