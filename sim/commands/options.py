"""What all commands on a scenario take, and how they speak: data on standard output, the rest on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sim.errors import ConfigError
from sim.run_directory import check_replaceable, json_text
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from workloads.model import SHIPPED

if TYPE_CHECKING:
    from rich.console import Console


@Parameter(name="*")
@dataclass(frozen=True)
class ScenarioOptions:
    """Options of every command that reads a scenario."""

    set: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)] = ()
    """Override a field, as PATH=VALUE (engine.max_num_seqs=64); may be repeated."""
    trace: Annotated[Path | None, Parameter()] = None
    """Trace file, or shipped model of one, to replay instead of the scenario's workload source."""
    seed: Annotated[int | None, Parameter()] = None
    """Seed instead of the scenario's."""
    out: Annotated[Path | None, Parameter()] = None
    """Directory for the results."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print one JSON document on standard output and nothing else."""
    report: Annotated[bool, Parameter(negative="")] = False
    """Also write report.html into --out."""

    @property
    def overrides(self) -> list[str]:
        """All overrides as PATH=VALUE, the trace file included."""
        if self.trace is None:
            return list(self.set)
        if not self.trace.exists() and str(self.trace) not in SHIPPED:
            raise ConfigError(
                f"--trace {self.trace}: no such file, and no shipped model ({', '.join(SHIPPED)})"
            )
        clash = next((text for text in self.set if text.partition("=")[0].strip() in SOURCE_FIELDS), None)
        if clash is not None:
            raise ConfigError(
                f"--trace {self.trace}: and --set {clash} both say where requests come from; give one"
            )
        instead = [f"{path}=null" for path in SOURCE_FIELDS if path != "workload.trace"]
        return [*instead, f"workload.trace={json_text(str(self.trace)).strip()}", *self.set]

    def load(self, source: Path, overrides: Sequence[str] = ()) -> Scenario:
        return load_scenario(source, [*self.overrides, *overrides], seed=self.seed)

    def check(self, marker: str) -> None:
        """Refuse before any work is done what would be refused after it."""
        if self.out is not None:
            check_replaceable(self.out, marker)
        elif self.report:
            raise ConfigError("--report: needs --out DIR, where report.html goes")


SOURCE_FIELDS = ("workload.trace", "workload.input_tokens", "workload.output_tokens", "workload.sessions")
NO_OPTIONS = ScenarioOptions()


def say(message: str) -> None:
    """Tell the user something that is not data."""
    print(message, file=sys.stderr)


def put_json(document: Any) -> None:  # noqa: ANN401  anything that is JSON
    sys.stdout.write(json_text(document))


def console() -> Console:
    from rich.console import Console  # noqa: PLC0415  only where tables are printed

    class Pipe(Console):
        """Rich exits with 1 where its reader has gone; that code means something here."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Pipe(highlight=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Any]:
    """A bar on standard error that appears once two seconds have passed; yields a function to call per item."""
    import time  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    begun = time.monotonic()
    shown = False

    def advance(description: str | None = None, *, total: int | None = None) -> None:
        nonlocal shown
        bar.update(task, advance=1, description=description or label, total=total)
        if not shown and time.monotonic() - begun > 2:
            bar.start()
            shown = True

    try:
        yield advance
    finally:
        if shown:
            bar.stop()


def render(directory: Path, page: str = "report") -> Path:
    """Let a page renderer of the installation write its page into a directory; returns the file."""
    pages = [point for point in entry_points(group="servetwin.pages") if point.name == page]
    if not pages:
        raise ConfigError("--report: this installation has no page renderer (package dashboards)")
    renderer = pages[0].load()
    path: Path = renderer(directory)
    return path
