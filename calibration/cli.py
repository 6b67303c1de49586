"""`servetwin profile`: the cost of work on a device, listed, fitted, judged, compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from calibration import profile_text
from calibration.compare_profiles import changes, only_in_one
from calibration.options import say
from sim.profile import Profile, load_profile, shipped_profiles
from workloads.errors import InputError

profile = App(
    name="profile",
    help="Profiles: what the work of an engine step costs on a device.",
    default_parameter=Parameter(negative=""),
)

Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document and nothing else.")]
Kernels = Annotated[Path | None, Parameter(help="Folder of kernel tables: of one system or of several.")]
System = Annotated[str | None, Parameter(help="Which system, where the folder holds several.")]
Version = Annotated[str | None, Parameter(help="Engine version of the tables; the newest if not given.")]
Force = Annotated[bool, Parameter(help="Replace an existing file; its host overhead is kept.")]
Out = Annotated[Path, Parameter(help="File to write; an existing folder takes NAME.json per system.")]


@profile.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List the shipped profiles."""
    found = [profile_text.summary(load_profile(name)) for name in shipped_profiles()]
    if as_json:
        _print_json({"profiles": found})
        return
    rows = [["name", "engine", "weights", "KV cache"]]
    rows += [[p["name"], p["engine"], " ".join(p["weights"]), " ".join(p["kv_cache"])] for p in found]
    print(profile_text.table(rows))


@profile.command
def show(name: str, /, *, as_json: Json = False) -> None:
    """Show a profile by name or file: device, sources, error on held-out shapes."""
    found = load_profile(name)
    if as_json:
        _print_json(profile_text.document(found))
    else:
        print(profile_text.profile_lines(found))


@profile.command
def fit(
    *,
    out: Out,
    kernels: Kernels = None,
    system: System = None,
    version: Version = None,
    layers: Annotated[
        Path | None,
        Parameter(
            help="With --kernels of one system: folder of layer tables of the same GPU, for what they alone know."
        ),
    ] = None,
    engine_log: Annotated[
        tuple[Path, ...],
        Parameter(
            help="Recorded run of an engine (folder with meta.json, requests.csv, steps.csv), or with --scenario "
            "what a client measured (vllm bench serve, guidellm, AIPerf, inference-perf); may be repeated."
        ),
    ] = (),
    scenario: Annotated[
        Path | None,
        Parameter(help="With --engine-log of a client's results: model, hardware and engine of the server."),
    ] = None,
    held_out: Annotated[
        tuple[Path, ...], Parameter(help="With --engine-log: a run to judge by; may be repeated.")
    ] = (),
    base: Annotated[
        str | None,
        Parameter(
            help="With --engine-log: profile whose curves are kept but for a factor each; of a client's results "
            "the scenario's own if not given."
        ),
    ] = None,
    model: Annotated[
        str | None, Parameter(help="With --engine-log: what it served, if meta.json lacks it.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a profile to kernel tables, or to step logs or client results of an engine; judge it on what was held out.

    A folder of several systems without --system is fitted system by system into the folder --out.
    """
    if (kernels is None) == (not engine_log):
        raise InputError("profile fit: give either --kernels DIR or --engine-log DIR")
    if layers is not None and (kernels is None or not system):
        raise InputError("profile fit: --layers goes with --kernels and --system")
    if kernels is None and (scenario is not None or not all(map(_may_be_step_log, engine_log))):
        from calibration.fit_results_command import fit_from_results  # noqa: PLC0415

        if model is not None:
            raise InputError(f"--model {model}: goes with step logs; of results the scenario names the model")
        fit_from_results(engine_log, held_out, out, base, scenario, force=force, as_json=as_json)
        return
    if kernels is None:
        from calibration.engine_log_command import fit_from_log  # noqa: PLC0415

        fit_from_log(engine_log, held_out, out, base, model, force=force, as_json=as_json)
        return
    if held_out or base or model or scenario:
        raise InputError("profile fit: --held-out, --base, --model and --scenario go with --engine-log")
    from calibration.collection import systems_in  # noqa: PLC0415 - SciPy loads only where it is needed

    names: list[str | None] = [system] if system else [*systems_in(kernels)] or [None]
    if len(names) > 1 and not out.is_dir():
        known = ", ".join(str(name) for name in names)
        raise InputError(
            f"{kernels}: several systems ({known}); give --system, or an existing folder as --out"
        )
    _fit_all(kernels, names, version, out, layers=layers, force=force, as_json=as_json)


def _may_be_step_log(path: Path) -> bool:
    return not path.is_file() and (not path.is_dir() or (path / "meta.json").exists())


@profile.command(name="import")
def import_(
    system: str,
    /,
    *,
    out: Out,
    version: Version = None,
    package: Annotated[Path | None, Parameter(help="Unpacked aiconfigurator-core, if not installed.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a profile to the tables that the package aiconfigurator-core brings for a system."""
    from calibration.collection import package_root  # noqa: PLC0415

    _fit_all(package or package_root(), [system], version, out, force=force, as_json=as_json)


@profile.command
def validate(
    name: str,
    /,
    *,
    kernels: Kernels = None,
    system: System = None,
    fresh: Annotated[
        bool, Parameter(help="Judge by measurements made now, of the device that is here.")
    ] = False,
    device: Annotated[str, Parameter(help="With --fresh: auto, cpu or cuda.")] = "auto",
    model: Annotated[
        tuple[str, ...],
        Parameter(help="With --fresh: whose shapes; may be repeated.", consume_multiple=False),
    ] = (),
    budget: Annotated[float, Parameter(help="With --fresh: seconds for measuring.")] = 20.0,
    tolerance: Annotated[
        float, Parameter(help="With --fresh: a term off by more than this has drifted.")
    ] = 0.15,
    as_json: Json = False,
) -> int:
    """Judge a profile by kernel tables: each term refitted without whole shapes, and asked about them.

    Beside it stands the yardstick, a roofline of three fitted parameters for the whole table. With --fresh the profile
    itself is asked about what the device takes now; exit code 1 where a term has drifted.
    """
    if fresh == (kernels is not None):
        raise InputError("profile validate: give either --kernels DIR or --fresh")
    if fresh:
        from calibration.fresh_command import validate_fresh  # noqa: PLC0415

        return validate_fresh(name, device, model, budget, tolerance, as_json=as_json)
    assert kernels is not None
    from calibration.collection import read_collection, systems_in  # noqa: PLC0415
    from calibration.holdout import missing_rows, missing_tables, residuals  # noqa: PLC0415

    found = load_profile(name)
    known = systems_in(kernels)
    own = [one for one in known if one in (found.name, f"{found.name}_server")]
    rows = read_collection(kernels, system or next(iter(own), None))
    for missing in missing_tables(rows, found):
        say(f"{kernels}: no {missing}.parquet, so that term is not judged")
    for missing in missing_rows(rows, found):
        say(f"{kernels}: no rows of {missing}, so that term is not judged")
    judged = residuals(rows, found, say)
    if as_json:
        _print_json({"profile": found.name, "residuals": [one.model_dump() for one in judged]})
    else:
        print(profile_text.residual_lines(judged))
    return 0


@profile.command
def diff(first: str, second: str, /, *, as_json: Json = False) -> None:
    """Compare two profiles, per term over a standard set of shapes: how much longer the second takes."""
    a, b = load_profile(first), load_profile(second)
    found, missing = changes(a, b), only_in_one(a, b)
    if as_json:
        same = a.content_hash == b.content_hash
        shown = [asdict(change) for change in found]
        _print_json({"first": a.name, "second": b.name, "same": same, "changes": shown, "missing": missing})
        return
    print(profile_text.change_lines(found))
    if missing:
        print(f"only in one of the two: {', '.join(missing)}")


def _fit_all(
    kernels: Path,
    names: Sequence[str | None],
    version: str | None,
    out: Path,
    *,
    layers: Path | None = None,
    force: bool,
    as_json: bool,
) -> None:
    from calibration.collection import read_collection  # noqa: PLC0415
    from calibration.fit import fit_profile  # noqa: PLC0415
    from calibration.fit_layers import with_layers  # noqa: PLC0415
    from calibration.holdout import residuals  # noqa: PLC0415
    from calibration.layer_residuals import layer_residuals  # noqa: PLC0415
    from calibration.layer_tables import read_layers  # noqa: PLC0415

    written = []
    for name in names:
        rows = read_collection(kernels, name, version)
        path = out / f"{rows.name}.json" if out.is_dir() else out
        before = _existing(path, force=force)
        of_layers = rows if rows.layers else None
        if layers is not None:
            of_layers = read_layers(layers)
            if of_layers.name != rows.name:
                raise InputError(
                    f"--layers {layers}: tables of {of_layers.name}, and {kernels} has {rows.name}"
                )
        say(f"{rows.name}: {rows.engine}")
        fitted = fit_profile(rows, log=say)
        judged = residuals(rows, fitted, say)
        if layers is not None and of_layers is not None:
            fitted = with_layers(fitted, of_layers)
        if of_layers is not None:
            judged += layer_residuals(of_layers, fitted)
        fitted = fitted.model_copy(update={"residuals": tuple(judged)})
        if before is not None and before.host is not None:
            say("host overhead kept from the file before; it was fitted to the kernels of that file")
            fitted = fitted.with_host(before.host)
        path.write_text(fitted.to_json(), encoding="utf-8")
        written.append({"file": str(path), **profile_text.document(fitted)})
        if not as_json:
            print(f"{path}\n{profile_text.profile_lines(fitted)}")
    if as_json:
        _print_json({"written": written})


def _existing(path: Path, *, force: bool) -> Profile | None:
    """Refuse what cannot be written before the work is done."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: no folder {path.parent}")
    if not path.exists():
        return None
    if not force:
        raise InputError(f"{path}: exists; --force replaces it")
    try:
        return load_profile(path)
    except InputError:
        return None


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))
