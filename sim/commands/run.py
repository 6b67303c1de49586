"""`servetwin run`: one run of a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.commands.memory_text import memory_lines
from sim.commands.options import NO_OPTIONS, ScenarioOptions, console, progress, put_json, render, say
from sim.commands.tenant_text import tenant_table, tier_lines
from sim.run_directory import LOCK, new_directory, write_run
from sim.simulation import Result, build_load, simulate

if TYPE_CHECKING:
    from rich.table import Table


def run(scenario: Path, /, *, options: ScenarioOptions = NO_OPTIONS) -> int:
    """Simulate a scenario once.

    Exit code 1 where every request was refused; what would let them in stands among the notes.

    Parameters
    ----------
    scenario
        Scenario file (YAML); `servetwin init` writes one.

    """
    options.check(LOCK)
    loaded = options.load(scenario)
    load = build_load(loaded)
    with progress("simulate", 100) as advance:
        result = simulate(loaded, workload=load, on_share_done=advance)
    if options.out is not None:
        with new_directory(options.out) as directory:
            write_run(result, load.trace, directory)
            if options.report:
                render(directory)
        say(f"wrote {options.out}")
    if options.json:
        put_json(result.summary)
    else:
        print_summary(result)
    if all_refused(result):
        refused = (f"{count} {reason}" for reason, count in result.summary["sim"]["rejected"].items())
        say(f"all {result.summary['num_prompts']} requests were refused: {', '.join(refused)}")
        return 1
    return 0


def all_refused(result: Result) -> bool:
    """Whether there were requests and none was served; a load without any is served whole."""
    return result.summary["completed"] == 0 < result.summary["num_prompts"]


def print_summary(result: Result) -> None:
    """Print the summary as a table."""
    from rich.table import Table  # noqa: PLC0415

    summary, own, out = result.summary, result.summary["sim"], console()
    scenario = result.scenario
    out.print(
        f"[bold]{summary['model_id']}[/] on {own['gpus']} x {own['profile']['name']} "
        f"({own['replicas']} replicas, {own['profile']['engine']}), "
        f"{scenario.policies.batcher.name}, {scenario.policies.router.name}"
    )
    out.print(
        f"{summary['completed']} of {summary['num_prompts']} requests in {summary['duration']:.1f} s: "
        f"{summary['request_throughput']:.2f} requests/s, {summary['output_throughput']:.0f} output tokens/s"
        + ("" if summary["request_goodput"] is None else f", goodput {summary['request_goodput']:.2f}/s")
    )
    table = Table("ms", "mean", "p50", "p90", "p99", box=None, header_style="dim")
    for name in ("ttft", "tpot", "itl", "e2el"):
        keys = (f"mean_{name}_ms", f"median_{name}_ms", f"p90_{name}_ms", f"p99_{name}_ms")
        cells = ("-" if summary[key] is None else f"{summary[key]:.1f}" for key in keys)
        table.add_row(name.upper(), *cells)
    for name, stage in own["stages_ms"].items():
        if stage["mean"] is not None:
            table.add_row(f"  {name}", f"{stage['mean']:.1f}", "", "", f"{stage['p99']:.1f}", style="dim")
    out.print(table)
    for line in _lines(own):
        out.print(line)


def _lines(own: dict[str, Any]) -> Iterator[str | Table]:
    """What is known beside the latencies, from `summary["sim"]`."""
    if own["intervals"]:
        yield f"measured, 9 times in 10: {_interval_text(own['intervals'])}"
    yield (
        f"KV: {own['num_gpu_blocks']} blocks a replica, {own['kv_usage_mean']:.1%} held on average, "
        f"{own['kv_usage_peak']:.1%} at most; {own['preemptions']} preemptions; busy {own['busy_fraction']:.0%}"
    )
    if own["padding"]["padded_tokens"]:
        yield f"padding: {own['padding']['share']:.1%} of the tokens computed"
    yield from memory_lines(own)
    if "tenants" in own:
        yield tenant_table(own)
        yield from tier_lines(own)
    yield from (f"[yellow]extrapolated[/] {message}" for message in own["extrapolated"].values())
    yield from (f"[yellow]note[/] {message}" for message in own["warnings"])


def _interval_text(intervals: Mapping[str, Sequence[float]]) -> str:
    """The means alone: 'mean TTFT 81 to 95 ms, mean TPOT ...'."""
    said = []
    for name in ("ttft", "tpot", "e2el"):
        if f"mean_{name}_ms" in intervals:
            low, high = intervals[f"mean_{name}_ms"]
            said.append(f"mean {name.upper()} {low:.1f} to {high:.1f} ms")
    return ", ".join(said)
