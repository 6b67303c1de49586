"""Decodes that share an attention launch with chunks: worked by hand, and as alone where no other kernel is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.build import compile_cost
from sim.curves.decode import DecodeCurve, DecodeRegime
from sim.curves.prefill import TILE
from sim.curves.shared import SharedLaunchCurve
from sim.curves.table import LogTable
from sim.curves.term import floats
from sim.model import load_model
from sim.profile import load_profile
from tests.sim import doubles
from tests.sim.doubles import ClosedFormProfile

TINY = replace(doubles.TINY, num_layers=2)
LAUNCH, RATE, IDLE = 5e-6, 1e9, 3e-9


def decodes(**changes):
    """Launch and one pass over the KV, at a tenth of the rate at which the double's decodes read it."""
    regime = DecodeRegime(
        head_dim=16, window=0, launch_s=LAUNCH, bytes_per_s=RATE, hbm_bytes_per_s=RATE, query_s_per_value=0.0
    )
    regime = regime.model_copy(update=changes)
    return DecodeCurve(source="by hand", kv_bytes=2.0, regimes=(regime,))


def shared(idle=IDLE):
    return {"bfloat16": SharedLaunchCurve(source="by hand", decodes=decodes(), idle_block_s=idle)}


def compiled(profile):
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "cudagraph_capture_sizes": [2048]}
    return compile_cost(TINY, profile, **limits)


PLAIN, SHARED = ClosedFormProfile(), ClosedFormProfile(shared_attention=shared())


def beside_s(num_seqs, context, longest):
    """Two layers, four query heads that each read keys and values of 16 channels in 16 bits."""
    tiles = -(-longest // TILE)
    return 2 * (LAUNCH + 4 * 2 * 16 * 2 * context / RATE + IDLE * num_seqs * 4 * (tiles - 1))


def alone_s(num_seqs, context):
    return 2 * (2e-6 + 2 * 16 * context * 1e-12 + num_seqs * 1e-9)


@given(
    num_seqs=st.integers(1, 64),
    mean=st.integers(1, 2000),
    chunks=st.lists(st.integers(1, 500), min_size=1, max_size=3),
)
def test_decodes_beside_chunks_take_their_own_time(num_seqs, mean, chunks):
    context, shapes = num_seqs * mean, tuple((new, 0) for new in chunks)
    more = compiled(SHARED).mixed_ns(num_seqs, context, 0, shapes) - compiled(PLAIN).mixed_ns(
        num_seqs, context, 0, shapes
    )
    expected = 1e9 * (beside_s(num_seqs, context, max(chunks)) - alone_s(num_seqs, context))
    assert more == pytest.approx(expected, rel=2e-3, abs=50)


def test_steps_of_decodes_or_chunks_alone_are_as_without():
    for num_seqs, context, chunks in ((5, 700, ()), (0, 0, ((64, 0), (32, 256)))):
        steps = [compiled(profile).mixed_ns(num_seqs, context, 0, chunks) for profile in (PLAIN, SHARED)]
        assert steps[0] == steps[1]


def test_the_parts_of_a_mixed_step_sum_to_its_price():
    cost = compiled(SHARED)
    parts = cost.parts(7, 4000, 0, ((300, 128),))
    assert round(1e9 * parts.total_s) == cost.mixed_ns(7, 4000, 0, ((300, 128),))
    assert parts.seconds["decode_attention"] == pytest.approx(beside_s(7, 4000, 300), rel=1e-3)


def test_a_chunk_of_one_tile_leaves_no_block_idle():
    steps = [
        compiled(ClosedFormProfile(shared_attention=shared(idle))).mixed_ns(9, 900, 0, ((TILE, 0),))
        for idle in (0.0, 1e-6)
    ]
    assert steps[0] == steps[1]


def test_between_layers_corrects_what_comes_from_hbm_alone():
    axes = {name: floats([0.0]) for name in ("mean_context", "rows", "kv_heads", "group")}
    table = LogTable.pack(axes, floats([0.3]).reshape(1, 1, 1, 1))
    plain, corrected = decodes(), decodes(between_layers=table)
    asked = (4, 2, 16, 0, 8, 4096)
    assert corrected.seconds(*asked) == plain.seconds(*asked)
    ratio = corrected.seconds(*asked, from_hbm=True) / plain.seconds(*asked, from_hbm=True)
    assert ratio == pytest.approx(1.35, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "changes", "said"),
    [
        ("a100_sxm", {}, True),
        ("l40s", {}, True),
        ("l40s", {"kv_cache_dtype": "fp8"}, False),
        ("rtx_4090", {}, False),
        ("h100_sxm", {}, False),
    ],
)
def test_launches_that_nobody_timed_are_named(gpu, changes, said):
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    notes = compile_cost(load_model("llama-3.1-8b"), load_profile(gpu), **limits, **changes).notes
    assert any("decodes beside prompts is priced as alone" in note for note in notes) == said
