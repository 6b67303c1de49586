"""The command `servetwin`: its own commands, those that upper packages declare, and one place for every error.

Exit codes: 0 done, 1 the answer is no, 2 bad input (one line on standard error), 3 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points, version

from cyclopts import App, CycloptsError

from workloads.errors import InputError

app = App(
    name="servetwin",
    help="A digital twin of an LLM serving stack.",
    version=lambda: version("servetwin"),
    result_action="return_value",
)
app.command("sim.commands.run:run", name="run")
app.command("sim.commands.compare:compare", name="compare")
app.command("sim.commands.plan:plan", name="plan")
app.command("sim.commands.demo:demo", name="demo")
app.command("sim.commands.cache:cache", name="cache")
app.command("sim.commands.init:init", name="init")
app.command("sim.commands.init:schema", name="schema")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs the command and exits with its code."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    try:
        _mount()
        code = app(list(arguments), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (InputError, CycloptsError) as error:
        print(f"servetwin: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("servetwin: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001  whatever is left is a fault of ours, and says so
        traceback.print_exc()
        print("servetwin: this is a fault of servetwin, not of your input; please report it", file=sys.stderr)
        return 3
    return code if isinstance(code, int) else 0


def _mount() -> None:
    """Add the commands of upper packages, unloaded: a command's module is imported when it is called."""
    for point in entry_points(group="servetwin.commands"):
        if point.name not in app:
            app.command(point.value, name=point.name)
