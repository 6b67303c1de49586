"""The command `servetwin`: its own commands, those that upper packages declare, and one place for every error.

Exit codes: 0 done, 1 the answer is no, 2 bad input (one line on standard error), 3 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import UnsupportedOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

OWN = (
    ("demo", "sim.commands.demo:demo", "The main job on shipped inputs: A/B, plan, report."),
    ("run", "sim.commands.run:run", "Simulate a scenario once."),
    ("compare", "sim.commands.compare:compare", "Compare settings or policies on the same requests."),
    ("plan", "sim.commands.plan:plan", "Greatest request rate, fewest replicas, cost."),
    (
        "cache",
        "sim.commands.cache:cache",
        "Hit rates of a prefix cache alone, by capacity and eviction policy.",
    ),
    (
        "allocations",
        "sim.commands.allocations:allocations",
        "Waste and fragmentation of a trace of memory allocations, by allocator.",
    ),
    (
        "reload",
        "sim.commands.reload:reload",
        "From which context on reloading KV from host memory or disk beats computing it.",
    ),
    ("init", "sim.commands.init:init", "Write a commented scenario, also from a vllm serve line."),
    ("schema", "sim.commands.init:schema", "Print the JSON schema of a scenario."),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs the command and exits with its code."""
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the answer is out: nothing is left to interrupt
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    try:
        code = _call(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        if error.filename is None and _cannot_write():
            return _reader_gone(_fail(f"standard output cannot be written ({error.strerror})", 2))
        return _fault()
    except Exception:  # noqa: BLE001  whatever is left is a fault of ours, and says so
        return _fault()
    return code


def build_app(*, describe: bool = False) -> App:
    """Mount all commands. Their modules are imported when they are called, or to `describe` those of upper packages."""
    from importlib.metadata import entry_points, version  # noqa: PLC0415  inside, so that main() sees interrupts

    from cyclopts import App  # noqa: PLC0415

    app = App(
        name="servetwin",
        help="A digital twin of an LLM serving stack.",
        version=lambda: version("servetwin"),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, target, description in OWN:
        app.command(target, name=name, help=description)
    for point in sorted(entry_points(group="servetwin.commands"), key=lambda point: point.name):
        if point.name not in app:
            app.command(point.load() if describe else point.value, name=point.name)
    return app


def _call(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError  # noqa: PLC0415

    from workloads.errors import InputError  # noqa: PLC0415

    if sys.stdout is None:
        return _fail("standard output is closed", 2)
    try:
        app = build_app(describe=not arguments or arguments[0] in ("--help", "-h"))
        code = app(list(arguments), exit_on_error=False, print_error=False)
    except (InputError, CycloptsError) as error:
        return _fail(" ".join(str(error).split()), 2)
    except SystemExit:  # raised by nobody but a help page whose reader has gone
        return 0
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    if sys.stderr is not None:
        print(f"servetwin: {message}", file=sys.stderr)
    return code


def _fault() -> int:
    import traceback  # noqa: PLC0415

    traceback.print_exc()
    return _fail("this is a fault of servetwin, not of your input; please report it", 3)


def _cannot_write() -> bool:
    """Whether it was standard output that failed."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except UnsupportedOperation:  # standard output is no file here
        return False
    except OSError:
        return True
    return False


def _reader_gone(code: int = 0) -> int:
    """Let what is still buffered go nowhere, so that the interpreter's own flush does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    main()
