"""`servetwin reload`: from which context on bringing KV back from host memory or disk beats computing it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sim.commands.options import NO_OPTIONS, ScenarioOptions, console, put_json
from sim.errors import ConfigError
from sim.kv.tiers.crossover import Crossover
from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute
from sim.scenario.sections import Scenario
from sim.service import Service, build_service

_GB = 1e9
_MS = 1e6
_SHOWN = (256, 1024, 4096, 16_384, 65_536)
_MOST_GB_PER_S = 1e6


def reload(
    scenario: Path,
    /,
    *,
    host_gb_per_s: float | None = None,
    disk_gb_per_s: float | None = None,
    latency_us: float | None = None,
    options: Annotated[ScenarioOptions, Parameter(name="*")] = NO_OPTIONS,
) -> None:
    """Reload or recompute: the time of both by context length, and where one overtakes the other.

    Of a prompt whose KV but for its last token lies in host memory or on disk, alone on links and GPU.

    Parameters
    ----------
    scenario
        Scenario file (YAML): model, hardware, engine, and links where they are given.
    host_gb_per_s
        Bandwidth from host memory to a GPU, in GB/s (1e9 bytes), instead of the scenario's or the profile's.
    disk_gb_per_s
        Bandwidth of a disk for each GPU; without one the disk is left out.
    latency_us
        What a transfer takes before its first byte.

    """
    if options.out is not None or options.report:
        raise ConfigError("--out: reload writes no files; print with --json")
    loaded = options.load(scenario)
    service = build_service(loaded)
    crossover = Crossover(
        _rates(loaded, service, host_gb_per_s, disk_gb_per_s, latency_us),
        Recompute(service.cost, service.limits.max_num_batched_tokens),
        service.limits.block_size,
        service.capacity.block_bytes,
    )
    document = {
        "model": service.model.name,
        "profile": service.profile.name,
        "tensor_parallel_size": loaded.hardware.tensor_parallel_size,
        **reload_document(crossover, service.max_model_len),
    }
    if options.json:
        put_json(document)
    else:
        print_crossover(document)


def _rates(
    scenario: Scenario, service: Service, host: float | None, disk: float | None, latency_us: float | None
) -> Rates:
    rates = scenario.kv_tiers.rates(scenario.links, service.profile.device)
    for option, value in (("--host-gb-per-s", host), ("--disk-gb-per-s", disk)):
        if value is not None and not 0 < value <= _MOST_GB_PER_S:
            raise ConfigError(f"{option}: {value:g} is no bandwidth; give GB/s above 0, at most 1e6")
    if host is not None:
        rates = replace(rates, load_bytes_per_s=host * _GB)
    if disk is not None:
        rates = replace(rates, disk_bytes_per_s=disk * _GB)
    if latency_us is not None:
        if not 0 <= latency_us <= 1e9:
            raise ConfigError(f"--latency-us: {latency_us:g} is no latency; give microseconds, 0 to 1e9")
        rates = replace(rates, latency_ns=round(latency_us * 1000))
    return rates


def reload_document(crossover: Crossover, max_model_len: int) -> dict[str, Any]:
    """Times in ms by context length, and of each link where reloading pays, in tokens."""
    size, rates = crossover.block_size, crossover.rates
    most = (max_model_len - 1) // size
    if not most:
        raise ConfigError(
            f"engine.max_model_len: {max_model_len} tokens have no full block of {size} to reload"
        )
    links = {"host": rates.load_bytes_per_s}
    if rates.disk_bytes_per_s is not None:
        links["disk"] = min(rates.disk_bytes_per_s, rates.load_bytes_per_s)
    shown = [tokens // size for tokens in _SHOWN if size <= tokens < most * size]
    return {
        "block_tokens": size,
        "kv_bytes_per_token": crossover.block_bytes / size,
        "latency_us": rates.latency_ns / 1000,
        "longest_tokens": most * size,
        "links": {name: _link(crossover, name, speed, most) for name, speed in links.items()},
        "contexts": [
            {
                "tokens": blocks * size,
                "recompute_ms": crossover.recompute_ns(blocks) / _MS,
                **{f"{name}_ms": crossover.reload_ns(blocks, disk=name == "disk") / _MS for name in links},
            }
            for blocks in [*shown, most]
        ],
    }


def _link(crossover: Crossover, name: str, bytes_per_s: float, most: int) -> dict[str, Any]:
    """`crossover_tokens`: from there on reloading pays at every length; None where it does not at the longest."""
    size = crossover.block_size
    pays = [(first * size, last * size) for first, last in crossover.pays(most, disk=name == "disk")]
    settled = pays[-1][0] if pays and pays[-1][1] == most * size else None
    return {"gb_per_s": bytes_per_s / _GB, "crossover_tokens": settled, "pays_tokens": pays}


def print_crossover(document: dict[str, Any]) -> None:
    """Print times by context length, and a sentence for each link."""
    from rich.table import Table  # noqa: PLC0415  only where tables are printed

    out, links = console(), document["links"]
    out.print(
        f"[bold]{document['model']}[/] on {document['tensor_parallel_size']} x {document['profile']}: "
        f"{document['kv_bytes_per_token'] / 1024:g} KiB of KV a token and GPU, latency {document['latency_us']:g} us"
    )
    table = Table("context", "recompute ms", box=None, header_style="dim")
    for name in links:
        table.add_column(f"from {name} ms", justify="right")
    for row in document["contexts"]:
        times = [row[f"{name}_ms"] for name in links]
        table.add_row(f"{row['tokens']:,}", f"{row['recompute_ms']:.2f}", *(f"{time:.2f}" for time in times))
    out.print(table)
    for name, link in links.items():
        out.print(f"From {name} ({link['gb_per_s']:g} GB/s) {_sentence(link, document)}")


def _sentence(link: dict[str, Any], document: dict[str, Any]) -> str:
    first, longest = link["crossover_tokens"], document["longest_tokens"]
    if first == document["block_tokens"]:
        return f"reloading pays at every length up to {longest:,} tokens."
    if first is not None:
        below = " (and at some lengths below)" if len(link["pays_tokens"]) > 1 else ""
        return f"reloading pays from {first:,} tokens on{below}, up to {longest:,}."
    if not link["pays_tokens"]:
        return f"computing again is faster at every length up to {longest:,} tokens."
    ranges = ", ".join(f"{low:,} to {high:,}" for low, high in link["pays_tokens"])
    return f"reloading pays at {ranges} tokens, and not at {longest:,}."
