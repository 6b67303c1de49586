"""`servetwin report`: a page from result directories."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from workloads.errors import ConfigError


def report(
    *directories: Path,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a self-contained HTML page about results.

    Parameters
    ----------
    directories
        A directory that run, compare, plan or demo wrote; or several of run, as arms of one page.
    out
        File to write; by default report.html in the first directory.
    json
        Print one JSON document on standard output and nothing else.

    """
    from dashboards.report import REPORT, write_report  # noqa: PLC0415  Plotly is wanted for nothing else

    if not directories:
        raise ConfigError("report: needs at least one directory that a servetwin command wrote")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: give a file in an existing directory")
    target = write_report(directories, out or directories[0] / REPORT)
    print(f"wrote {target}", file=sys.stderr)
    if json:
        print(json_format.dumps({"report": str(target), "bytes": target.stat().st_size}))
