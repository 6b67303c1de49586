"""What a recording of KV accesses shows, as a JSON document and as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.kv.access.reuse import FAR_TOKENS, NEAR_TOKENS, PUBLISHED, LayerReuse, Reuse, Share

Document = dict[str, Any]


def document(reuse: Reuse, file: Path) -> Document:
    """Everything of a recording; shares have a `measured`, a `chance` and what is `beyond_chance` (0 none, 1 all)."""
    header, across = reuse.header, reuse.cross_layer
    verdict, why = across.verdict(header)
    thirds = {"first": across.first, "middle": across.middle, "last": across.last}
    return {
        "file": str(file),
        "source": header.source,
        "random_weights": header.random_weights,
        "block_size": header.block_size,
        "context_tokens": header.context_tokens,
        "steps": reuse.steps,
        "layers": header.num_layers // header.heads,
        "heads": header.heads,
        "near_tokens": NEAR_TOKENS,
        "far_tokens": FAR_TOKENS,
        "step_reuse": _share(reuse.step),
        "layer_reuse": {
            "average": _share(across.average),
            **{name: None if share is None else _share(share) for name, share in thirds.items()},
            "published": dict(PUBLISHED),
            "verdict": verdict,
            "why": why,
        },
        "per_layer": [_layer(number, header.heads, layer) for number, layer in enumerate(reuse.layers)],
    }


def print_reuse(found: Document) -> None:
    """Print the table of layers, and the shares over all of them."""
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed
    from rich.table import Table  # noqa: PLC0415

    from sim.commands.options import console  # noqa: PLC0415

    out = console()
    out.print(
        f"[bold]{escape(found['file'])}[/]: {found['steps']} steps from {found['context_tokens']:,} tokens on, "
        f"{found['layers']} layers, pages of {found['block_size']} tokens"
    )
    out.print(escape(found["source"] or "nothing says whose attention this is"), style="dim")
    table = Table("layer", box=None, header_style="dim")
    for head in ("pages", "mass", "step reuse", "layer reuse", "distance", "near", "far"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found["per_layer"]:
        distance = row["distance_pages"]
        table.add_row(
            f"{row['layer']}" if found["heads"] == 1 else f"{row['layer']}.{row['head']}",
            f"{row['pages']:.1f}",
            f"{row['mass']:.0%}",
            _words(row["step_reuse"]),
            _words(row["layer_reuse"]),
            "-" if distance is None else f"{distance['median']:.0f} / {distance['p90']:.0f}",
            _words(row["near"]),
            _words(row["far"]),
        )
    out.print(table)
    out.print(
        "Shares of reads, in brackets by chance. Distance: different pages between two reads of one, median / P90. "
        f"Near: within {found['near_tokens']} tokens; far: {found['far_tokens']} and more back.",
        style="dim",
    )
    reuse = found["layer_reuse"]
    parts = ", ".join(
        f"{name} {_words(reuse[name])}"
        for name in ("average", "first", "middle", "last")
        if reuse[name] is not None
    )
    out.print(f"Pages that the layer before read too: {parts}")
    published = ", ".join(f"{name} {share:.1%}" for name, share in reuse["published"].items())
    out.print(f"Published: {published}: [bold]{reuse['verdict']}[/] ({escape(reuse['why'])})")


def _layer(number: int, heads: int, layer: LayerReuse) -> Document:
    distance = layer.distance_pages
    return {
        "layer": number // heads,
        "head": number % heads,
        "pages": layer.pages,
        "share_of_pages": layer.share_of_pages,
        "mass": layer.mass,
        "step_reuse": _share(layer.step),
        "layer_reuse": _share(layer.layer),
        "distance_pages": None if distance is None else dict(zip(("median", "p90"), distance, strict=True)),
        "near": _share(layer.near),
        "far": _share(layer.far),
        "near_mass": layer.near_mass,
    }


def _share(share: Share) -> Document:
    return {"measured": share.measured, "chance": share.chance, "beyond_chance": share.beyond_chance}


def _words(share: Document) -> str:
    if share["measured"] is None:
        return "-"
    return f"{share['measured']:.0%} ({share['chance']:.0%})"
