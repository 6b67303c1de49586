"""`servetwin access`: record which KV pages a real attention reads, and say what a recording shows.

A recording is replayed in scenarios as `kv_access.pattern: {name: recorded, path: FILE}`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import App, Parameter

from calibration.options import FLAG, REPEATED, say
from workloads.errors import ConfigError, InputError

if TYPE_CHECKING:
    from hwbackend.attention.sampler import HeadRule, Sampling
    from hwbackend.attention.source import AttentionSource
    from sim.kv.access.recording import Recording

access = App(
    name="access",
    help="KV accesses of a real attention: recordings of them, and what they show.",
    default_parameter=FLAG,
)


@Parameter(name="*")
@dataclass(frozen=True)
class HowRecorded:
    """Options of every command that records."""

    steps: int = 32
    """Decode steps to record, one after the other."""
    mass: float | None = None
    """A step reads the fewest pages that hold this share of the attention mass; by default 0.9."""
    pages: int | None = None
    """A step reads so many pages instead, those with the most mass."""
    heads: str = "mean"
    """mean: a layer chooses by the mass over all heads; any: it reads what any KV head chose; apart: each KV head
    stands as a layer of its own."""
    force: Annotated[bool, FLAG] = False
    """Replace an existing file."""
    json: Annotated[bool, FLAG] = False
    """Print one JSON document on standard output and nothing else."""

    def sampling(self, block_size: int) -> Sampling:
        from hwbackend.attention.choice import Covering, Heaviest  # noqa: PLC0415  not for --help
        from hwbackend.attention.sampler import Sampling  # noqa: PLC0415

        if self.mass is not None and self.pages is not None:
            raise ConfigError("--mass and --pages: both say how many pages are read; give one")
        choice = (
            Covering(0.9 if self.mass is None else self.mass) if self.pages is None else Heaviest(self.pages)
        )
        return Sampling(block_size, choice, cast("HeadRule", self.heads), self.steps)  # which checks it


_DEFAULTS = HowRecorded()


@access.command
def record(
    scenario: str,
    /,
    *,
    out: Path,
    device: str = "auto",
    request: int | None = None,
    weights_seed: int = 0,
    set: Annotated[tuple[str, ...], REPEATED] = (),  # noqa: A002  the option is --set
    seed: int | None = None,
    how: HowRecorded = _DEFAULTS,
) -> None:
    """Record the attention of the miniature engine while it serves a scenario.

    Its weights are random, so the recording has the size and the timing of a real one, and in its choice of pages
    nothing but chance: for what a trained model reads, see `record-hf`.

    Parameters
    ----------
    scenario
        Scenario file (YAML), or a shipped one: chunking, cache_aware.
    out
        File to write, .parquet or .jsonl.
    device
        auto (a GPU if there is one), cpu or cuda.
    request
        Which request to watch, from 0 in order of arrival; by default the first with enough output.
    weights_seed
        Seed of the random weights.
    set
        Override a field, as PATH=VALUE; may be repeated.
    seed
        Seed instead of the scenario's.

    """
    from calibration.access.engine import engine_source  # noqa: PLC0415  not for --help
    from calibration.confirmation.shipped import SHIPPED  # noqa: PLC0415
    from hwbackend.device import open_device  # noqa: PLC0415
    from sim.scenario.reading import load_scenario  # noqa: PLC0415

    if weights_seed < 0:
        raise ConfigError(f"--weights-seed {weights_seed}: give 0 or more")
    if scenario not in SHIPPED and not Path(scenario).is_file():
        raise ConfigError(
            f"{scenario}: no such file, nor a shipped scenario; shipped are {', '.join(SHIPPED)}"
        )
    opened = open_device(device)
    try:
        source = SHIPPED[scenario].scenario(opened.kind) if scenario in SHIPPED else Path(scenario)
        loaded = load_scenario(source, set, seed=seed)
        sampling = how.sampling(loaded.engine.block_size)
        _record(
            lambda: engine_source(loaded, opened, sampling.steps, request, weights_seed), sampling, out, how
        )
    finally:
        opened.close()


@access.command
def record_hf(
    model: Path,
    /,
    *,
    text: Path,
    out: Path,
    block_size: int = 16,
    max_prompt_tokens: int | None = None,
    random_weights: Annotated[bool, FLAG] = False,
    how: HowRecorded = _DEFAULTS,
) -> None:
    """Record the attention of a causal language model of Hugging Face transformers, as it continues a text.

    Needs PyTorch and transformers beside this project (pip install torch transformers). Nothing is downloaded.

    Parameters
    ----------
    model
        Folder with config.json, weights and tokenizer.
    text
        File with the prompt, UTF-8.
    out
        File to write, .parquet or .jsonl.
    block_size
        Tokens of a page.
    max_prompt_tokens
        Cut the prompt to so many tokens; by default all of the text.
    random_weights
        Nobody trained this model: what is recorded shows chance, and is not judged.

    """
    from hwbackend.attention.torch_source import TorchAttention  # noqa: PLC0415  not for --help

    if max_prompt_tokens is not None and max_prompt_tokens < 1:
        raise ConfigError(f"--max-prompt-tokens {max_prompt_tokens}: give at least 1")
    sampling = how.sampling(block_size)
    try:
        prompt = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {text}: not a text file in UTF-8 that can be read") from error
    _record(
        lambda: TorchAttention.load(model, prompt, max_prompt_tokens, random_weights=random_weights),
        sampling,
        out,
        how,
    )


@access.command
def stats(
    file: Path,
    /,
    *,
    report: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Say what a recording shows, layer by layer: pages a step, reads that repeat, how far back, shared by layers.

    Beside each share stands what chance would give: of N pages a random set of a has a/N of any other.

    Parameters
    ----------
    file
        Recording, .parquet or .jsonl.
    report
        Also write the heat maps beside the file, as FILE.html.
    json
        Print one JSON document on standard output and nothing else.

    """
    from sim.commands.options import render  # noqa: PLC0415
    from sim.kv.access.recording_files import read_recording  # noqa: PLC0415  PyArrow is not for --help

    recording = read_recording(file)
    if report:
        say(f"wrote {render(file, 'access')}")
    _show(recording, file, json=json)


def _record(
    make_source: Callable[[], AttentionSource], sampling: Sampling, out: Path, how: HowRecorded
) -> None:
    from hwbackend.attention.source import record as record_source  # noqa: PLC0415
    from sim.kv.access.recording_files import check_suffix, write_recording  # noqa: PLC0415
    from workloads.replacing import replacing  # noqa: PLC0415

    check_suffix(out)
    with replacing(out, force=how.force) as draft:
        source = make_source()
        say(f"watching {source}" + ("; random weights choose by chance" if source.random_weights else ""))
        recording = record_source(source, sampling)
        write_recording(draft, recording, out.suffix)
    say(f"wrote {out}")
    _show(recording, out, json=how.json)


def _show(recording: Recording, file: Path, *, json: bool) -> None:
    from calibration.access.text import document, print_reuse  # noqa: PLC0415
    from sim.commands.options import put_json  # noqa: PLC0415
    from sim.kv.access.reuse import Reuse  # noqa: PLC0415

    found = document(Reuse(recording), file)
    if json:
        put_json(found)
    else:
        print_reuse(found)
