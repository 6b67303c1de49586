"""`servetwin cache`: a prefix cache alone over a trace with block hashes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from sim.commands.options import console, progress, put_json, say
from sim.kv.eviction.named import parse_eviction
from sim.kv.replay.block_accesses import BlockAccesses
from sim.kv.replay.cache_study import CacheStudy, study
from sim.kv.replay.prefix_replay import Hits
from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.errors import ConfigError
from workloads.expand import expand_hashes
from workloads.model import SHIPPED, is_model_file, load_model
from workloads.readers import read_trace
from workloads.replacing import replacing
from workloads.trace import Trace

_MOST_CAPACITIES = 100_000
_MOST_BLOCKS = 10**12
_Repeated = Parameter(negative="", consume_multiple=False)


def cache(
    trace: str,
    *,
    capacity: Annotated[tuple[str, ...], _Repeated],
    eviction: Annotated[tuple[str, ...], _Repeated] = ("lru",),
    block_tokens: int | None = None,
    num_requests: int | None = None,
    drop_failed: Annotated[bool, Parameter(negative="")] = False,
    seed: int | None = None,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Replay only the prefix cache over a trace: hit rates by capacity and eviction policy.

    One cache, requests one after the other, no timing. Hit rates: per block; of the leading run of a prompt (what an
    engine can reuse); of the input tokens in leading runs.

    Parameters
    ----------
    trace
        Trace file with block hashes (mooncake, bailian, parquet), or a model with them (mooncake-conv).
    capacity
        Blocks of the cache: 10000, or a list 1000,2000, or a range FIRST:LAST:STEP with both ends (1000:50000:1000);
        may be repeated. LRU takes one pass for all of them.
    eviction
        Policy: lru, lfu, lfu_perfect, lru_lfu, fifo, ttl, length_aware or belady, with _tail_first behind it to release
        prompts from the tail; or a mapping, '{name: ttl, ttl_s: 60}'. May be repeated.
    block_tokens
        Tokens of a block, where they should be others than the trace's; partly filled blocks are then never shared.
    num_requests
        Only the first so many requests.
    drop_failed
        Keep requests that failed in the trace out.
    seed
        Seed of the draw, where TRACE is a model; 0 by default.
    out
        File for the JSON document.
    force
        Replace an existing file.
    json
        Print one JSON document on standard output and nothing else.

    """
    sizes = _capacities(capacity)
    policies = list(dict.fromkeys(parse_eviction(text) for text in eviction))
    requests = _load(trace, num_requests, seed, drop_failed=drop_failed)
    accesses = BlockAccesses.of(requests if block_tokens is None else expand_hashes(requests, block_tokens))
    with nullcontext() if out is None else replacing(out, force=force) as draft:
        with progress("cache", len(sizes) * len(policies)) as advance:
            found = study(accesses, policies, sizes, advance)
        document = {"trace": trace, **found.as_json()}
        if draft is not None:
            draft.write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    if out is not None:
        say(f"wrote {out}")
    if json:
        put_json(document)
    else:
        print_study(trace, found)


def print_study(trace: str, found: CacheStudy) -> None:
    """Print a row per cache, and what the figures mean."""
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed
    from rich.table import Table  # noqa: PLC0415

    out, accesses = console(), found.accesses
    out.print(
        f"[bold]{escape(trace)}[/]: {accesses.offsets.size - 1:,} requests, {len(accesses):,} accesses to "
        f"{found.unique_blocks:,} different blocks of {accesses.block_tokens} tokens"
    )
    table = Table("blocks", "eviction", box=None, header_style="dim")
    for head in ("per block", "leading run", "tokens"):
        table.add_column(head, justify="right")
    for one in found.measured:
        table.add_row(f"{one.capacity:,}", escape(str(one.eviction)), *_percentages(found, one.hits))
    table.add_row("no limit", "none", *_percentages(found, found.curve.infinite), style="dim")
    out.print(table)
    out.print(escape(_sentence(found)))


def _percentages(found: CacheStudy, hits: Hits) -> list[str]:
    rates = found.rates(hits)
    return [f"{rates[key]:.2%}" for key in ("hit_rate", "leading_run_hit_rate", "token_hit_rate")]


def _sentence(found: CacheStudy) -> str:
    most = found.curve.infinite.per_block
    if not most:
        return "No block comes twice: no cache can hit anything here."
    blocks = found.curve.capacity_for(0.9)
    tokens = blocks * found.accesses.block_tokens
    return (
        f"A cache that never evicts hits {most:,} times; "
        f"LRU needs {blocks:,} blocks ({tokens:,} tokens) for 90% of that."
    )


def _load(name: str, num_requests: int | None, seed: int | None, *, drop_failed: bool) -> Trace:
    if num_requests is not None and num_requests < 1:
        raise ConfigError(f"--num-requests: {num_requests} is not a number of requests; give at least 1")
    if name in SHIPPED or is_model_file(Path(name)):
        if drop_failed:
            raise ConfigError(f"--drop-failed: acts on a trace file, and {name} is a model; leave it out")
        return _draw(name, num_requests, 0 if seed is None else seed)
    if seed is not None:
        raise ConfigError(f"--seed: draws from a model, and {name} is a file; leave it out")
    return _read(name, num_requests, drop_failed=drop_failed)


def _draw(name: str, num_requests: int | None, seed: int) -> Trace:
    if seed < 0:
        raise ConfigError(f"--seed: {seed} is negative; give 0 or more")
    model = load_model(name if name in SHIPPED else Path(name))
    count = num_requests or model.requests
    section = {"trace": name, "num_requests": count}
    if model.arrivals is None:  # lengths only: any times, and none that count
        section["max_concurrency"] = 1
    return build_workload(parse_workload(section), np.random.SeedSequence(seed)).trace


def _read(name: str, num_requests: int | None, *, drop_failed: bool) -> Trace:
    path = Path(name)
    if not path.exists():
        near = difflib.get_close_matches(name, SHIPPED, 1)
        hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(SHIPPED)}"
        raise ConfigError(f"{name}: neither a file nor a shipped model; {hint}")
    trace = read_trace(path, drop_failed=drop_failed)
    if num_requests is not None and num_requests > len(trace):
        raise ConfigError(f"--num-requests: {num_requests}, but {name} has {len(trace)} requests")
    return trace if num_requests is None else trace.head(num_requests)


def _capacities(texts: Sequence[str]) -> list[int]:
    """Return the numbers of blocks that are asked for, each once, smallest first."""
    found: set[int] = set()
    for text in texts:
        for part in text.split(","):
            found.update(_range(part))
    if len(found) > _MOST_CAPACITIES:
        raise ConfigError(f"--capacity: {len(found)} caches; give at most {_MOST_CAPACITIES}")
    return sorted(found)


def _range(part: str) -> range:
    """Read one capacity, or FIRST:LAST:STEP."""
    try:
        numbers = [int(number) for number in part.split(":")]
        first, last, step = numbers * 2 + [1] if len(numbers) == 1 else numbers
    except ValueError:
        raise ConfigError(
            f"--capacity {part!r}: not a number of blocks; write 10000, or 1000,2000, or 1000:50000:1000"
        ) from None
    if first < 1 or step < 1 or last < first:
        raise ConfigError(
            f"--capacity {part}: at least 1 block is needed, and a range goes upwards by at least 1"
        )
    if last > _MOST_BLOCKS or (last - first) // step >= _MOST_CAPACITIES:
        raise ConfigError(f"--capacity {part}: more than {_MOST_BLOCKS} blocks or {_MOST_CAPACITIES} caches")
    return range(first, last + 1, step)
