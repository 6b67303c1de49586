"""The page around the figures: one file that carries everything it needs and asks the network for nothing.

The content security policy says so to the browser too: only the scripts of this file run, by their hash, and nothing
may be fetched. So even a name that slipped through the escaping could do no harm.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dashboards import theme


@dataclass(frozen=True)
class Plot:
    """A figure on the page; its summary has one line an arm.

    choices  what else it can show, by name; then it gets a menu
    first    what the menu calls the figure that is shown at first
    """

    id: str
    title: str
    figure: Any
    summary: Sequence[str]
    caption: str = ""
    choices: Mapping[str, Any] | None = None
    first: str = "all replicas"


def text(value: object) -> str:
    """Anything, as harmless text in HTML."""
    return html.escape(str(value), quote=True)


def plot_html(plot: Plot) -> str:
    """A figure with its heading, text alternative, caption, and data."""
    words = "<br>".join(map(text, plot.summary))
    if len(plot.summary) > 2:
        words = f"<details><summary>In words</summary>{words}</details>"
    caption = f"{words}<div>{text(plot.caption)}</div>"
    menu, data = "", _data(f"{plot.id}-data", _json(plot.figure))
    if plot.choices:
        ids = {name: f"{plot.id}-data-{i}" for i, name in enumerate(plot.choices)}
        data += "".join(_data(ids[name], _json(figure)) for name, figure in plot.choices.items())
        options = "".join(f'<option value="{ids[name]}">{text(name)}</option>' for name in plot.choices)
        menu = (
            f'<p><label>Show <select data-plot="{plot.id}" autocomplete="off">'
            f'<option value="{plot.id}-data">{text(plot.first)}</option>{options}</select></label></p>'
        )
    alternative = f"{plot.title}. {'; '.join(plot.summary)}"
    return (
        f'<figure aria-labelledby="{plot.id}-title"><h3 id="{plot.id}-title">{text(plot.title)}</h3>{menu}'
        f'<div class="plot" id="{plot.id}" role="img" aria-label="{text(alternative)}"></div>'
        f"<figcaption>{caption}</figcaption>{data}</figure>"
    )


def section(title: str, *parts: str) -> str:
    """A part of the page; nothing where it would be empty."""
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{text(title)}</h2>\n{body}\n</section>" if body else ""


def facts_list(facts: Mapping[str, object]) -> str:
    """What is known of one thing, name by name."""
    items = "".join(
        f"<dt>{text(name.replace('_', ' '))}</dt><dd>{text(value)}</dd>" for name, value in facts.items()
    )
    return f"<dl>{items}</dl>"


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of words and numbers under a row of names."""
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def legend(names: Sequence[str]) -> str:
    """Buttons that show and hide arms in all figures; nothing for a single arm."""
    if len(names) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-arm="arm-{i}" aria-pressed="true">{swatch(i)}{text(name)}</button>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend" role="group" aria-label="Show or hide arms in all figures">{buttons}</div>'


def swatch(index: int) -> str:
    """A sample of an arm's line."""
    style = {"solid": "solid", "dot": "dotted"}.get(theme.arm_dash(index), "dashed")
    colour = theme.arm_colour(index)
    return (
        f'<span class="swatch" data-colour="{colour}" aria-hidden="true" '
        f'style="color:{colour};border-top-style:{style}"></span>'
    )


def page(title: str, body: Sequence[str]) -> str:
    """The whole document. Equal input gives equal bytes."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  5 MB, only where a page is written

    plotly_js = get_plotlyjs()
    assets = files("dashboards") / "assets"
    css, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(plotly_js)} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    content = "\n".join(part for part in body if part)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>
{css}</style>
</head>
<body>
{content}
<noscript><p class="note">The figures need JavaScript; their sums stand in the text.</p></noscript>
{_data("dark-colours", json.dumps(theme.DARK))}
<script>{plotly_js}</script>
<script>{script}</script>
</body>
</html>
"""


def _json(figure: Any) -> str:  # noqa: ANN401  Plotly has no types
    document: str = figure.to_json(remove_uids=True)
    return document


def _data(name: str, document: str) -> str:
    """JSON in a page: no `<` in it, so that nothing in it can end the script."""
    harmless = document.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{harmless}</script>'


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
