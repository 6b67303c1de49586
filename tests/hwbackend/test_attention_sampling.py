"""Attention mass, the pages chosen by it, and recordings of them: conservation, closed forms, a naive reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwbackend.attention.choice import Covering, Heaviest
from hwbackend.attention.mass import page_mass, token_mass
from hwbackend.attention.sampler import PageSampler, Sampling
from hwbackend.kernels import reference
from sim.errors import ConfigError, InvariantError
from sim.kv.access import Recorded
from sim.kv.access.recording_files import read_recording, write_recording

seeds = st.integers(0, 2**32 - 1)


def some_mass(rng, heads: int, tokens: int) -> np.ndarray:
    mass = rng.exponential(size=(heads, tokens)) ** 2
    return mass / mass.sum(axis=1, keepdims=True)


def sampled(sampling: Sampling, context: int, *, layers=3, kv_heads=2, heads=4, seed=0, mass=some_mass):
    """Returns the sampler, and the masses that it was shown, [steps, layers, heads] of arrays."""
    rng = np.random.default_rng(seed)
    sampler = PageSampler(sampling, layers, kv_heads)
    shown = []
    for step in range(sampling.steps):
        shown.append([mass(rng, heads, context + step) for _ in range(layers)])
        for layer in range(layers):
            sampler.add(context + step, layer, shown[-1][layer])
    return sampler, shown


@given(seeds, st.integers(1, 40), st.sampled_from([(4, 4), (4, 2), (6, 1)]), st.integers(1, 9))
def test_mass_is_the_softmax_that_attention_weighs_values_with_and_pages_lose_none(
    seed, tokens, heads, block
):
    rng = np.random.default_rng(seed)
    q, keys, values = (rng.normal(0, 2, shape) for shape in ((heads[0], 8), *[(tokens, heads[1], 8)] * 2))
    mass = token_mass(q, keys)
    assert mass.sum(axis=1) == pytest.approx(1, abs=1e-12)
    own = np.arange(heads[0]) // (heads[0] // heads[1])
    attended = np.einsum("ht,thd->hd", mass, values[:, own])
    expected = reference.causal_attention(q[None], keys, values, tokens - 1, None)[0]
    np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-12)
    pages = page_mass(mass, block)
    assert pages.shape == (heads[0], -(-tokens // block))
    for page in range(pages.shape[1]):
        np.testing.assert_allclose(pages[:, page], mass[:, page * block : (page + 1) * block].sum(axis=1))


@given(seeds, st.integers(1, 30), st.floats(0.01, 1))
def test_covering_takes_the_fewest_pages_that_hold_the_share(seed, pages, share):
    mass = some_mass(np.random.default_rng(seed), 1, pages)[0]
    chosen = Covering(share).choose(mass)
    assert mass[chosen].sum() >= share - 1e-9
    if chosen.sum() > 1 and share < 1:
        assert np.sort(mass)[::-1][: chosen.sum() - 1].sum() < share  # no set with one page less holds it
        assert mass[chosen].min() >= mass[~chosen].max(initial=0)


@given(seeds, st.integers(1, 30), st.integers(1, 40))
def test_the_heaviest_are_so_many_and_none_outweighs_them(seed, pages, count):
    mass = some_mass(np.random.default_rng(seed), 1, pages)[0]
    chosen = Heaviest(count).choose(mass)
    assert chosen.sum() == min(count, pages)
    assert mass[chosen].min() >= mass[~chosen].max(initial=0)


def test_of_equals_the_latest_go_first():
    assert np.flatnonzero(Heaviest(2).choose(np.full(5, 0.2))).tolist() == [3, 4]
    assert np.flatnonzero(Covering(0.5).choose(np.full(5, 0.2))).tolist() == [2, 3, 4]


@settings(deadline=None)
@given(
    seeds,
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([Covering(1.0), Covering(0.7), Heaviest(3)]),
)
def test_layers_are_recorded_with_the_mean_mass_of_their_heads(seed, context, block, steps, choice):
    sampling = Sampling(block, choice, "mean", steps)
    sampler, shown = sampled(sampling, context, seed=seed)
    recording = sampler.recording("x", random_weights=True)
    place = 0
    for step in range(steps):
        for layer in range(3):
            mass = [
                shown[step][layer][:, start : start + block].sum() / 4
                for start in range(0, context + step, block)
            ]
            rows = (recording.step == step) & (recording.layer == layer)
            chosen = np.flatnonzero(choice.choose(np.array(mass)))
            assert recording.page[rows].tolist() == chosen.tolist()
            np.testing.assert_allclose(recording.weight[rows], np.array(mass)[chosen])
            if choice == Covering(1.0):
                assert recording.weight[rows].sum() == pytest.approx(1, abs=1e-9)
            assert np.flatnonzero(rows).tolist() == list(range(place, place + chosen.size))  # sorted
            place += chosen.size
    assert place == recording.page.size


def test_kv_heads_choose_together_each_or_apart():
    masses = {name: sampled(Sampling(4, Heaviest(2), name, 5), 60)[0] for name in ("any", "apart")}
    union, apart = (masses[name].recording("x", random_weights=True) for name in ("any", "apart"))
    assert (apart.header.num_layers, apart.header.heads) == (6, 2)
    assert (union.header.num_layers, union.header.heads) == (3, 1)
    assert np.bincount(apart.step * 6 + apart.layer).tolist() == [2] * 30
    both = {(s, layer // 2, p) for s, layer, p in zip(apart.step, apart.layer, apart.page, strict=True)}
    assert sorted(both) == list(zip(union.step, union.layer, union.page, strict=True))


def test_uniform_attention_reads_all_pages_alike():
    def uniform(_rng, heads, tokens):
        return np.full((heads, tokens), 1 / tokens)

    recording = sampled(Sampling(8, Covering(1.0), "mean", 6), 61, mass=uniform)[0].recording(
        "x", random_weights=True
    )
    for step in range(6):
        for layer in range(3):
            rows = (recording.step == step) & (recording.layer == layer)
            tokens = np.minimum(8, 61 + step - np.arange(0, 61 + step, 8))
            assert recording.page[rows].tolist() == list(range(-(-(61 + step) // 8)))
            np.testing.assert_allclose(recording.weight[rows], tokens / (61 + step))


def test_attention_without_preference_chooses_every_page_as_often():
    recording = sampled(Sampling(1, Heaviest(5), "mean", 1), 20, layers=4000)[0].recording(
        "x", random_weights=True
    )
    counts = np.bincount(recording.page, minlength=20)
    # 4000 layers draw 5 of 20 pages each: a page is drawn with p = 1/4, and counts sum to a constant
    assert ((counts - 1000) ** 2 / (1000 * 0.75)).sum() * 19 / 20 < 44  # chi-squared, 19 degrees, p = 0.001


@settings(deadline=None, max_examples=20)
@given(
    seeds,
    st.integers(1, 60),
    st.sampled_from(["mean", "any", "apart"]),
    st.sampled_from([Covering(0.8), Heaviest(3)]),
    st.sampled_from(["parquet", "jsonl"]),
)
def test_a_recording_comes_back_from_its_file_and_replays_its_pages(
    tmp_path_factory, seed, context, heads, choice, suffix
):
    recording = sampled(Sampling(4, choice, heads, 7), context, seed=seed)[0].recording(
        "of a test", random_weights=True
    )
    path = tmp_path_factory.mktemp("recording") / f"r.{suffix}"
    write_recording(path, recording)
    again = read_recording(path)
    assert again.header == recording.header
    assert again.header.source.startswith("of a test; pages: the ")
    for column in ("step", "layer", "page", "weight"):
        assert np.array_equal(getattr(again, column), getattr(recording, column))
    replay = Recorded(path=str(path)).build(recording.header.num_layers, 4, 0)
    for step in range(7):
        reads, rows = replay.reads(3, context + step), recording.step == step
        assert reads.group.tolist() == recording.layer[rows].tolist()
        assert reads.block.tolist() == recording.page[rows].tolist()
        assert reads.weight.tolist() == recording.weight[rows].tolist()


def test_a_step_that_does_not_follow_begins_anew():
    sampler = PageSampler(Sampling(4, Covering(1.0), steps=3), 2, 1)
    rng = np.random.default_rng(0)
    for context in (10, 11, 15, 16, 17, 18):  # the sequence was preempted at 11, and computed again up to 14
        for layer in range(2):
            sampler.add(context, layer, some_mass(rng, 2, context))
        assert sampler.steps == {10: 1, 11: 2, 15: 1, 16: 2, 17: 3, 18: 3}[context]
    recording = sampler.recording("x", random_weights=False)
    assert recording.header.context_tokens == 15
    assert recording.steps == 3


def test_layers_out_of_turn_and_masses_of_another_length_are_faults():
    mass = np.full((2, 10), 0.1)
    for calls in ([(10, 1)], [(10, 0), (10, 0)], [(10, 0), (11, 1)], [(11, 0)]):
        sampler = PageSampler(Sampling(4, Covering(1.0), steps=3), 2, 1)
        for context, layer in calls[:-1]:
            sampler.add(context, layer, mass)
        with pytest.raises(InvariantError):
            sampler.add(*calls[-1], mass)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Covering(0), "--mass 0: a share"),
        (lambda: Covering(1.5), "--mass 1.5"),
        (lambda: Covering(float("nan")), "--mass nan"),
        (lambda: Heaviest(0), "--pages 0"),
        (lambda: Sampling(16, Heaviest(1), "all"), "--heads all: not one of mean, any, apart"),
        (lambda: Sampling(16, Heaviest(1), steps=0), "--steps 0"),
        (lambda: Sampling(0, Heaviest(1)), "--block-size 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
