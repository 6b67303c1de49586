"""The canonical trace -> files of other tools. What a format cannot hold is an error, unless loss is allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from workloads.answers import guessed_turns
from workloads.errors import InputError
from workloads.readers import azure, mooncake, vidur
from workloads.replacing import replacing
from workloads.trace import NS_PER_S, Trace

FORMATS = ("parquet", "azure", "mooncake", "vidur")

_SUFFIXES = {".parquet": "parquet", ".jsonl": "mooncake"}
_HOLDS = {  # beyond arrivals and lengths
    "parquet": {
        "sessions",
        "tenants",
        "priorities",
        "prefix blocks",
        "waits for answers",
        "which answers are repeated",
        "the first arrival's offset",
    },
    "mooncake": {"sessions", "prefix blocks", "the first arrival's offset"},
    "vidur": {"the first arrival's offset"},
    "azure": set[str](),
}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of Azure's wall clock, where a trace has none


def format_of(target: Path, name: str | None) -> str:
    """Return the format to write: as named, or by the file's suffix where that says it."""
    if name is None:
        name = _SUFFIXES.get(target.suffix)
        if name is None:
            raise InputError(f"--to: {target} does not say its format; give one of {', '.join(FORMATS)}")
    if name not in FORMATS:
        raise InputError(f"--to: {name!r} cannot be written; give one of {', '.join(FORMATS)}")
    return name


def losses(trace: Trace, name: str) -> list[str]:
    """Return what the trace has and the format cannot hold.

    Of requests that wait for answers, the times that remain are the earliest possible. Which answers are repeated is
    lost with the prefix blocks, or where the blocks alone show something else.
    """
    turns = trace.turns
    has = {
        "sessions": bool(np.any(trace.session >= 0)),
        "tenants": trace.tenant_names != ("default",),
        "priorities": bool(np.any(trace.priority != 0)),
        "prefix blocks": trace.hashes is not None,
        "waits for answers": turns is not None and turns.waiting > 0,
        "which answers are repeated": turns is not None
        and trace.hashes is not None
        and not np.array_equal(turns.continues, guessed_turns(trace)),
        "the first arrival's offset": bool(len(trace)) and int(trace.arrival_ns[0]) > 0,
    }
    lost = [what for what, present in has.items() if present and what not in _HOLDS[name]]
    block_tokens = trace.hashes.block_tokens if trace.hashes else mooncake.BLOCK_TOKENS[0]
    if name == "mooncake" and block_tokens not in mooncake.BLOCK_TOKENS:
        lost.append(f"prefix blocks of {block_tokens} tokens")
    return lost


def write_trace(
    trace: Trace, target: Path, name: str, *, force: bool = False, allow_loss: bool = False
) -> list[str]:
    """Write the whole file or nothing; returns what was lost."""
    lost = losses(trace, name)
    if lost and not allow_loss:
        raise InputError(f"{target}: {name} cannot hold {', '.join(lost)}; --allow-loss writes it without")
    if name == "azure" and not trace.has_arrivals:
        raise InputError(f"{target}: azure needs arrival times, and the trace has lengths only; use vidur")
    with replacing(target, force=force) as draft:
        if name == "parquet":
            from workloads.readers import parquet  # noqa: PLC0415 - costs 70 ms

            parquet.write(trace, draft)
        else:
            rows = {"azure": _azure, "mooncake": _mooncake, "vidur": _vidur}[name](trace)
            with draft.open("w", encoding="utf-8", newline="") as file:
                file.writelines(f"{row}\n" for row in rows)
    return lost


def _azure(trace: Trace) -> Iterator[str]:
    yield ",".join(azure.COLUMNS)
    epoch_s = int(_EPOCH.timestamp())
    columns = (trace.arrival_ns.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist())
    for arrival, inputs, outputs in zip(*columns, strict=True):
        seconds, rest = divmod(arrival, NS_PER_S)
        stamp = datetime.fromtimestamp(epoch_s + seconds, tz=UTC)
        yield f"{stamp:%Y-%m-%d %H:%M:%S}.{rest:09d},{inputs},{outputs}"


def _vidur(trace: Trace) -> Iterator[str]:
    timed = trace.has_arrivals
    yield ",".join((*([vidur.ARRIVAL] if timed else []), *vidur.LENGTHS))
    columns = (trace.arrival_ns.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist())
    for arrival, inputs, outputs in zip(*columns, strict=True):
        seconds, rest = divmod(arrival, NS_PER_S)
        yield (f"{seconds}.{rest:09d}," if timed else "") + f"{inputs},{outputs}"


def _mooncake(trace: Trace) -> Iterator[str]:
    hashes = trace.hashes
    if hashes is not None and hashes.block_tokens not in mooncake.BLOCK_TOKENS:
        hashes = None
    for row in range(len(trace)):
        arrival = int(trace.arrival_ns[row])
        whole, rest = divmod(arrival, 1_000_000)
        record: dict[str, object] = (
            {"timestamp": arrival / 1_000_000 if rest else whole} if trace.has_arrivals else {}
        )
        record |= {
            "input_length": int(trace.input_tokens[row]),
            "output_length": int(trace.output_tokens[row]),
        }
        if hashes is not None:
            record["hash_ids"] = hashes.of(row).tolist()
        if trace.session[row] >= 0:
            record["session_id"] = str(trace.session[row])
        yield json.dumps(record)
