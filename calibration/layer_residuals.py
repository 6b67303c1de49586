"""How good the terms are that layer tables alone know: whole head layouts held out, or batches where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from calibration.collection import Collection
from calibration.fit_layers import between_layers, fit_shared_layers
from calibration.holdout import judge, spike_share
from calibration.predict import predict_between_layers, predict_shared
from calibration.roofline import decode_work
from calibration.tables import Table
from sim.curves.decode import DecodeCurve
from sim.curves.term import Float
from sim.profile import Profile, Residual


def layer_residuals(rows: Collection, profile: Profile) -> Iterator[Residual]:
    """Judge decodes from HBM, where the profile corrects them by layers, and decodes beside chunks."""
    for dtype, decode in profile.decode_attention.items():
        if any(regime.between_layers is not None for regime in decode.regimes):
            yield _between(rows.tables["attention_decode"].only(kv_dtype=dtype), decode, dtype)
    for dtype, shared in profile.shared_attention.items():
        table = rows.tables["attention_shared"].only(kv_dtype=dtype)
        what, shape = _whole(table)

        def fit(part: Table, dtype: str = dtype) -> Callable[[Table], Float]:
            curve = fit_shared_layers(part, dtype, rows.device)
            return lambda asked: predict_shared(curve, asked)

        work = decode_work(table, shared.decodes.kv_bytes)
        spikes = spike_share(predict_shared(shared, table), table)
        yield judge(f"shared_attention/{dtype}", what, table, shape, None, fit, work, spikes)


def _between(table: Table, decode: DecodeCurve, dtype: str) -> Residual:
    what, shape = _whole(table)

    def fit(part: Table) -> Callable[[Table], Float]:
        curve = between_layers(decode, part)
        return lambda asked: predict_between_layers(curve, asked)

    spikes = spike_share(predict_between_layers(decode, table), table)
    term = f"decode_attention/{dtype}, between layers"
    return judge(term, what, table, shape, None, fit, decode_work(table, decode.kv_bytes), spikes)


def _whole(table: Table) -> tuple[str, Float]:
    """What is held out together, and its code in each row."""
    layout = table.number("heads") * 1e4 + table.number("kv_heads")
    if len(np.unique(layout)) > 1:
        return "(heads, kv_heads)", layout
    return "(sequences, context), with all chunks", table.number("batch") * 1e6 + table.number("kv_len")
