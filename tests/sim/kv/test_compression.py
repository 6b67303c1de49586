"""Shares of a plain cache: what is stored, and what attention reads."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.kv.compression import KvCompression

shares = st.integers(1, 100).map(lambda percent: percent / 100)
thirds = st.tuples(shares, shares, shares)


def test_the_default_is_a_plain_cache():
    plain = KvCompression()
    assert plain.stored_share(32) == 1
    assert plain.reads(32) == ((1.0, 1.0),)
    assert plain.footprint(16, 128) is None


@given(own=shares, keep=thirds, layers=st.integers(1, 100))
def test_attention_reads_of_each_layer_what_its_owner_stores(own, keep, layers):
    compression = KvCompression(owning_layers=own, layer_keep=keep)
    owners = compression.num_owners(layers)
    assert abs(owners - own * layers) <= 1
    stored = compression.stored_share(layers) * layers
    assert owners * min(keep) <= stored + Fraction(1, 10**6)
    assert stored <= owners * max(keep) + Fraction(1, 10**6)
    reads = compression.reads(layers)
    assert sum(weight for weight, _ in reads) == pytest.approx(1)
    assert {share for _, share in reads} <= set(keep)
    everything = sum(weight * share for weight, share in reads)
    assert everything >= compression.stored_share(layers) - 1e-9  # what is stored is read at least once
    if owners == layers:
        assert everything == pytest.approx(float(compression.stored_share(layers)))


@given(own=shares, layers=st.integers(1, 100))
def test_sharing_between_layers_shrinks_what_is_stored_and_not_what_is_read(own, layers):
    compression = KvCompression(owning_layers=own)
    assert compression.stored_share(layers) == Fraction(compression.num_owners(layers), layers)
    assert compression.reads(layers) == ((1.0, 1.0),)


def test_layers_keep_by_thirds():
    """Of 36 layers the low 12 keep 75.3%, the high 12 keep 42.7% [K13]."""
    compression = KvCompression(layer_keep=(0.753, 1.0, 0.427))
    assert compression.stored_share(36) == Fraction(753 + 1000 + 427, 3000)
    assert compression.reads(36) == ((12 / 36, 0.753), (12 / 36, 1.0), (12 / 36, 0.427))


def test_older_bytes_by_hand():
    def older(dtype):
        return KvCompression(recent_tokens=64, older_dtype=dtype).older_bytes(128)

    assert [older(dtype) for dtype in ("bfloat16", "fp8", "int8")] == [1, Fraction(1, 2), Fraction(33, 64)]


def test_a_window_keeps_nothing_older():
    assert KvCompression(recent_tokens=64, older_kept=Fraction(0)).sliding_window == 64
    assert KvCompression(recent_tokens=64, older_kept=Fraction(1, 2)).sliding_window is None
