"""`servetwin profile validate NAME --fresh`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from calibration.calibrate_command import Teller
from calibration.fresh import judge_fresh, measure_fresh
from calibration.options import load_models, say
from calibration.points import Extent, plan
from calibration.profile_text import table
from hwbackend.device import open_device
from sim.profile import load_profile
from workloads.errors import ConfigError


def validate_fresh(
    name: str, device: str, models: Sequence[str], budget: float, tolerance: float, *, as_json: bool
) -> int:
    """Measure, ask the profile, print; 1 where a term has drifted."""
    profile = load_profile(name)
    opened = open_device(device)
    try:
        if opened.identity.compute_capability != profile.device.compute_capability:
            raise ConfigError(
                f"profile {profile.name}: of a device of compute capability {profile.device.compute_capability}, and "
                f"this one, {opened.identity.name}, is {opened.identity.compute_capability}; --device picks another"
            )
        extent = Extent.of(opened)
        points = plan(opened, load_models(models, opened), extent)
        judged = judge_fresh(profile, measure_fresh(opened, points, budget, Teller()), extent, tolerance)
    finally:
        opened.close()
    if not judged:
        raise ConfigError(f"profile {profile.name}: has no term that this device can measure")
    drifted = any(one.drifted for one in judged)
    if as_json:
        terms = [asdict(one) for one in judged]
        print(json.dumps({"profile": profile.name, "drifted": drifted, "terms": terms}, indent=2))
    else:
        rows = [["term", "measured", "lowest", "highest", "error", "P90", "points", ""]]
        for one in judged:
            shares = (one.change, one.lowest, one.highest)
            cells = [
                *(f"{share:+.1%}" for share in shares),
                f"{one.median_error:.1%}",
                f"{one.p90_error:.1%}",
            ]
            rows.append([one.term, *cells, f"{one.points}", "drifted" if one.drifted else ""])
        print(table(rows))
        say(f"measured: how much longer than the profile says, in the median; tolerance {tolerance:.0%}")
    return 1 if drifted else 0
