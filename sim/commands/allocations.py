"""`servetwin allocations`: an allocation trace through allocators."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import ValidationError

from sim.commands.options import console, progress, put_json, say
from sim.errors import ConfigError
from sim.kv.allocators.decision import Allocator
from sim.kv.replay.allocation_replay import as_recorded, build_for, replay
from sim.kv.replay.allocation_trace import AllocationTrace, read_allocations
from sim.scenario.reading import one_line
from sim.scenario.sections import PoliciesConfig
from workloads.replacing import replacing
from workloads.yaml_values import parse_yaml

RECORDED = "recorded"
"""Names what the trace says of its own allocator."""

_Repeated = Parameter(negative="", consume_multiple=False)


def allocations(
    trace: Path,
    *,
    allocator: Annotated[tuple[str, ...], _Repeated],
    capacity: float | None = None,
    unit: int = 512,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Replay a trace of memory allocations: peak, waste, fragmentation and failures by allocator.

    Fragmentation is external, (free - largest free) / free; waste is internal, of what is handed out. Means are over
    time.

    Parameters
    ----------
    trace
        File (.csv or .jsonl) with time_s, op (alloc, free), id, bytes and, where known, address.
    allocator
        paged, contiguous, arena, size_class or grow, or a mapping as in a scenario, '{name: arena, reserve: exact}'; a
        token of its options is a byte here, and max_model_len the largest allocation. Or recorded: where the trace's
        own addresses are. May be repeated.
    capacity
        Bytes of memory; with recorded alone, by default from its lowest to its highest address.
    unit
        Bytes of the least that is handed out: the page of paged; regions are whole units. 512 is what device memory
        pools round to.
    out
        File for the JSON document, with the series over time of each allocator.
    force
        Replace an existing file.
    json
        Print one JSON document on standard output and nothing else.

    """
    if unit < 1:
        raise ConfigError(f"--unit {unit}: give at least 1 byte")
    requests = read_allocations(trace)
    memories = [
        (text, _memory(text, requests, _whole_bytes(capacity), unit)) for text in dict.fromkeys(allocator)
    ]
    with nullcontext() if out is None else replacing(out, force=force) as draft:
        rows, series = [], []
        with progress("allocations", len(memories)) as advance:
            for text, memory in memories:
                found = replay(requests, memory)
                rows.append({"allocator": text, "capacity_bytes": found.capacity_bytes, **found.summary()})
                series.append(found.columns())
                advance()
        document = {
            "trace": str(trace),
            "events": len(requests),
            "allocations": int(requests.num_bytes.size),
            "peak_bytes": requests.peak_bytes,
            "results": rows,
        }
        if draft is not None:
            full = [{**row, "series": columns} for row, columns in zip(rows, series, strict=True)]
            draft.write_text(dumps({**document, "results": full}) + "\n", encoding="utf-8")
    if out is not None:
        say(f"wrote {out}")
    if json:
        put_json(document)
    else:
        _print(document)


def _memory(text: str, trace: AllocationTrace, capacity: int | None, unit: int) -> Allocator:
    if text == RECORDED:
        return as_recorded(trace, capacity)
    raw = {"allocator": parse_yaml(text, f"allocator {text!r}")}
    try:
        config = PoliciesConfig.model_validate(raw).allocator
    except ValidationError as error:
        raise ConfigError(f"--{one_line(error, PoliciesConfig, raw)}") from None
    if capacity is None:
        raise ConfigError(
            f"--capacity: {config.name} needs bytes of memory; the trace uses {trace.peak_bytes} at most at once"
        )
    return build_for(config, trace, capacity, unit)


def _whole_bytes(capacity: float | None) -> int | None:
    if capacity is None:
        return None
    if not 1 <= capacity <= 1 << 50 or capacity != int(capacity):
        raise ConfigError(f"--capacity {capacity:g}: not a whole number of bytes from 1 to 2^50")
    return int(capacity)


def _print(document: dict[str, Any]) -> None:
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed
    from rich.table import Table  # noqa: PLC0415

    out = console()
    out.print(
        f"[bold]{escape(document['trace'])}[/]: {document['allocations']:,} allocations, "
        f"{document['peak_bytes']:,} bytes at most at once"
    )
    table = Table("allocator", box=None, header_style="dim")
    for head in ("capacity", "peak used", "waste", "F mean", "F max", "failed"):
        table.add_column(head, justify="right")
    for row in document["results"]:
        table.add_row(
            escape(row["allocator"]),
            f"{row['capacity_bytes']:,}",
            f"{row['peak_used_bytes']:,}",
            f"{row['waste_mean']:.1%}",
            f"{row['fragmentation_mean']:.1%}",
            f"{row['fragmentation_max']:.1%}",
            f"{row['failed']:,}",
        )
    out.print(table)
