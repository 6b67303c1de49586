"""Vidur CSV: arrivals in seconds and lengths, or lengths only (as its arXiv summarisation file)."""

from __future__ import annotations

from pathlib import Path

from workloads.readers.draft import Draft
from workloads.readers.source import read_table
from workloads.trace import Trace

LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
ARRIVAL = "arrived_at"

_DERIVED = {"num_total_tokens", "pd_ratio"}


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read a Vidur CSV; num_decode_tokens counts all output tokens, the first (by the prefill) included."""
    table = read_table(path, "a Vidur trace", LENGTHS)
    output = table.whole("num_decode_tokens")
    extra = [name for name in table.header if name not in {*LENGTHS, ARRIVAL, *_DERIVED}]
    return Draft(
        path=path,
        lines=table.lines,
        arrival_ns=table.seconds_ns(ARRIVAL) if ARRIVAL in table.header else None,
        input_tokens=table.whole("num_prefill_tokens"),
        output_tokens=output,
        failed=output == 0,
        names=(ARRIVAL, *LENGTHS),
        warnings=[f"columns not used: {', '.join(extra)}"] if extra else [],
    ).finish(drop_failed=drop_failed)
