"""The results of `servetwin trace` for people: tables on standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Human = Callable[[dict[str, Any]], None]

_SIGNIFICANT = 5


def figures(document: dict[str, Any]) -> None:
    """Print the summary of a trace."""
    print(document["file"])
    table = _table(None, "figure", "value")
    nested = {"quantiles", "warnings", "file", "tenants", "prefix", "waiting"}
    for name, value in document.items():
        if name not in nested:
            table.add_row(name, _number(value))
    for name, value in (document["waiting"] or {}).items():
        table.add_row(f"waiting for answers: {name}", _number(value))
    for name, value in (document["prefix"] or {}).items():
        table.add_row(f"prefix {name}", _number(value))
    if len(document["tenants"]) > 1:
        for name, value in document["tenants"].items():
            table.add_row(f"tenant {name}", _number(value))
    quantiles = {name: row for name, row in document["quantiles"].items() if row is not None}
    lengths = _table("distributions", "figure", *quantiles)
    for name in next(iter(quantiles.values())):
        lengths.add_row(name, *(_number(row[name]) for row in quantiles.values()))
    _out(table, lengths)


def written(document: dict[str, Any]) -> None:
    """Print what was written."""
    rate = f", {_number(document['request_rate'])} requests/s" if document["request_rate"] else ""
    print(f"{document['out']}: {document['requests']} requests{rate}, {document['to']}")
    if document["lost"]:
        print(f"not in the file: {', '.join(document['lost'])}")


def fits(document: dict[str, Any]) -> None:
    """Print the ranking of the families, one table a sample."""
    tables = []
    for what in ("input_tokens", "output_tokens", "gaps_s"):
        if document[what] is None:
            continue
        table = _table(what, "family", "KS distance", "p-value", "AIC", "parameters")
        for row in document[what]:
            parameters = ", ".join(f"{name} {_number(value)}" for name, value in row["parameters"].items())
            table.add_row(
                row["family"], f"{row['ks']:.4f}", f"{row['p_value']:.2g}", f"{row['aic']:.0f}", parameters
            )
        tables.append(table)
    _out(*tables)
    print(document["note"])
    if document["model"]:
        print(f"model written to {document['model']}")


def _table(title: str | None, *columns: str) -> Any:  # noqa: ANN401 - rich is imported only when people read
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right", overflow="fold")
    return table


def _out(*tables: Any) -> None:  # noqa: ANN401 - as above
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console()
    for table in tables:
        console.print(table)


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10**_SIGNIFICANT else f"{value:.{_SIGNIFICANT}g}"
    return "-" if value is None else str(value)
