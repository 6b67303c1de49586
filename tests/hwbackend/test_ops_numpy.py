"""The CPU's operations against float64 references, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwbackend.kernels import numpy_ops, reference
from hwbackend.kernels.numpy_ops import NumpyOps, _groups
from hwbackend.kernels.numpy_stream import NumpyStreamOps
from hwbackend.ops import KvPool, ShapeError
from tests.hwbackend.kernel_cases import GARBAGE, Sequences, Shape, lengths, seeds, stored, windows

shapes = st.builds(
    lambda kv, head_dim, kv_heads, group, size: Shape(
        "float32", kv, head_dim, kv_heads * group, kv_heads, size
    ),
    st.sampled_from(["float32", "int8"]),
    st.sampled_from([2, 16, 64]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 20),
)


@given(shape=shapes, lengths=lengths, window=windows, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_decode_attention_is_the_definition(shape, lengths, window, seed):
    Sequences(NumpyOps(), np, shape, lengths, seed).check_decode(window)


@given(shape=shapes, context=st.integers(0, 200), new=st.integers(1, 150), window=windows, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_prefill_attention_is_the_definition(shape, context, new, window, seed):
    Sequences(NumpyOps(), np, shape, [context + new], seed).check_prefill(new, window)


@given(shape=shapes, length=st.integers(1, 120), window=windows, seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_chunk_of_one_token_is_a_decode(shape, length, window, seed):
    ops = NumpyOps()
    sequences = Sequences(ops, np, shape, [length], seed)
    q = sequences.queries(1)
    chunk = ops.prefill_attention(q, sequences.pool, sequences.tables[0], length - 1, window=window)
    decode = ops.decode_attention(q, sequences.pool, sequences.tables, sequences.lengths, window=window)
    np.testing.assert_allclose(chunk, decode, rtol=1e-5, atol=1e-5)


@given(shape=shapes, new=st.integers(2, 120), data=st.data(), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_prompt_in_chunks_is_the_prompt_at_once(shape, new, data, seed):
    ops = NumpyOps()
    sequences = Sequences(ops, np, shape, [new], seed)
    q, cut = sequences.queries(new), data.draw(st.integers(1, new - 1))
    whole = ops.prefill_attention(q, sequences.pool, sequences.tables[0], 0)
    parts = [ops.prefill_attention(q[:cut], sequences.pool, sequences.tables[0], 0)]
    parts.append(ops.prefill_attention(q[cut:], sequences.pool, sequences.tables[0], cut))
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-5)


@given(lens=st.lists(st.integers(0, 40), min_size=1, max_size=5), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_contiguous_attention_is_the_definition(lens, seed):
    random = np.random.default_rng(seed)
    k = random.standard_normal((len(lens), 41, 2, 16)).astype(np.float32)
    v = random.standard_normal(k.shape).astype(np.float32)
    for i, length in enumerate(lens):
        k[i, length:] = v[i, length:] = np.nan
    q = random.standard_normal((len(lens), 6, 16)).astype(np.float32)
    got = NumpyOps().contiguous_decode_attention(q, k, v, np.array(lens, np.int32))
    want = reference.contiguous_decode_attention(*(x.astype(np.float64) for x in (q, k, v)), np.array(lens))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(
    sizes=st.lists(st.integers(0, 500), max_size=30).map(lambda x: np.array(x, np.int64)),
    most=st.integers(1, 2000),
)
def test_groups_take_every_sequence_once_within_their_limits(sizes, most):
    groups = list(_groups(sizes, most))
    taken = np.concatenate([*groups, np.flatnonzero(sizes == 0)]).astype(int)
    assert sorted(taken) == list(range(len(sizes)))
    for group in groups:
        padded = sizes[group[-1]] * len(group)
        assert sizes[group].max() == sizes[group[-1]]
        assert len(group) == 1 or padded <= most
        assert padded <= numpy_ops._GROUP_PADDING * sizes[group].sum()


@pytest.mark.parametrize("poisoned", ["q", "keys", "values"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_nan_in_what_is_read_comes_out(poisoned, dtype):
    ops = NumpyOps()
    sequences = Sequences(ops, np, Shape("float32", dtype, 16, 4, 2, 4), [9, 9], 0)
    q = sequences.queries(2)
    if poisoned == "q":
        q[0, 0, 3] = np.nan
    else:
        k, v = sequences.values(2, 1, 2, 16)
        {"keys": k, "values": v}[poisoned][0, 0, 3] = np.nan
        slot = sequences.tables[0, 1] * 4 + 2
        ops.append_kv(sequences.pool, k, v, np.array([slot]))
    out = ops.decode_attention(q, sequences.pool, sequences.tables, sequences.lengths)
    assert np.isnan(out[0, 0]).any()
    assert np.isfinite(out[1]).all()


@given(seed=seeds, theta=st.sampled_from([1e4, 5e5]))
@settings(deadline=None)
def test_rope_turns_pairs_and_keeps_lengths(seed, theta):
    random = np.random.default_rng(seed)
    ops = NumpyOps()
    qkv = random.standard_normal((5, 4, 16)).astype(np.float32)
    before = qkv.astype(np.float64)
    positions = random.integers(0, 100_000, 5).astype(np.int32)
    ops.rope(qkv[:, :3], qkv[:, 3:], positions, ops.rope_table(100_000, 16, theta))
    np.testing.assert_allclose(qkv, reference.rope(before, positions, theta), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(qkv, axis=2), np.linalg.norm(before, axis=2), rtol=1e-5)


@given(seed=seeds)
@settings(deadline=None)
def test_norm_gate_and_products_are_the_definitions(seed):
    random = np.random.default_rng(seed)
    ops = NumpyOps()
    x = random.standard_normal((7, 24)).astype(np.float32) * 10
    weight = random.standard_normal(24).astype(np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(
        ops.rms_norm(x, weight, 1e-5), reference.rms_norm(wide, weight.astype(np.float64), 1e-5), rtol=1e-5
    )
    np.testing.assert_allclose(ops.silu_mul(x), reference.silu_mul(wide), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ops.matmul(x, x.T.copy()), wide @ wide.T, rtol=1e-4, atol=1e-3)
    small = random.integers(-127, 128, (3, 3000)).astype(np.int8)
    assert (ops.matmul_8bit(small, small) == small.astype(np.int64) @ small.T.astype(np.int64)).all()
    y = x.copy()
    ops.add(y, x)
    assert (y == 2 * x).all()


@given(seed=seeds, scale=st.sampled_from([1e-6, 1.0, 1e4]))
def test_int8_is_within_half_a_step_of_the_row(seed, scale):
    ops = NumpyOps()
    x = np.random.default_rng(seed).standard_normal((4, 3, 16)).astype(np.float32) * np.float32(scale)
    x[0, 0] = 0
    values, scales = ops.quantise(x)
    assert values.dtype == np.int8
    assert (np.abs(ops.dequantise(values, scales) - x) <= 0.501 * scales[..., None]).all()
    np.testing.assert_array_equal(np.abs(values).max(axis=-1), np.where(scales > 0, 127, 0))


@given(seed=seeds, dtype=st.sampled_from(["float32", "int8"]))
@settings(max_examples=20, deadline=None)
def test_blocks_move_whole_and_alone(seed, dtype):
    ops = NumpyOps()
    sequences = Sequences(ops, np, Shape("float32", dtype, 16, 2, 2, 4), [20, 12], seed)
    before = stored(ops, sequences.pool).copy()
    ids = sequences.random.permutation(sequences.pool.num_blocks).astype(np.int32)
    blocks = ops.gather_blocks(sequences.pool, ids[:3])
    np.testing.assert_array_equal(stored(ops, blocks), before[:, ids[:3]])
    ops.copy_blocks(sequences.pool, ids[:3], ids[3:6])
    ops.scatter_blocks(sequences.pool, ids[6:9], blocks)
    after = before.copy()
    after[:, ids[3:6]] = after[:, ids[6:9]] = before[:, ids[:3]]
    np.testing.assert_array_equal(stored(ops, sequences.pool), after)


def test_streams_touch_every_byte():
    streams = NumpyStreamOps()
    x = np.arange(64, dtype=np.float32)
    y = np.zeros_like(x)
    streams.copy(y, x)
    assert (x == y).all()
    digest = streams.read(x)
    x.view(np.uint64)[17] ^= np.uint64(1)
    assert streams.read(x) != digest
    before = x.view(np.uint64).copy()
    streams.flush(x)
    assert (x.view(np.uint64) != before).all()
    streams.write(x)
    assert not x.any()
    streams.empty()


def sequences_of_two():
    return Sequences(NumpyOps(), np, Shape("float32", "float32", 16, 4, 2, 4), [9, 3], 0)


def call(name, *args, **kwargs):
    return lambda: getattr(NumpyOps(), name)(*args, **kwargs)


def floats(*shape):
    return np.zeros(shape, np.float32)


def ints(*values):
    return np.array(values, np.int32)


POOL = KvPool(floats(2, 8, 4, 2, 16), None, "float32")
INT8 = KvPool(np.zeros((2, 8, 4, 2, 16), np.int8), floats(2, 8, 2, 4), "int8")


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (call("matmul", floats(2, 3), floats(2, 3)), "inner sizes"),
        (call("rms_norm", floats(2, 3), floats(2), 1e-5), "rms_norm"),
        (call("silu_mul", floats(2, 3)), "gate beside up"),
        (call("rope", floats(2, 1, 4), floats(2, 1, 4), ints(0), floats(9, 4)), "positions"),
        (call("new_pool", 1, 1, 1, 1, "fp8"), "float32 or int8"),
        (call("append_kv", POOL, floats(1, 2, 16), floats(1, 1, 16), ints(0)), "must be"),
        (call("append_kv", POOL, floats(1, 2, 16), floats(1, 2, 16), ints(32)), "blocks 0 to 7"),
        (call("decode_attention", floats(1, 3, 16), POOL, ints([0]), ints(1)), "multiple of 2 heads"),
        (call("decode_attention", floats(1, 4, 16), POOL, ints([0]), ints(1, 2)), "context_lens"),
        (call("decode_attention", floats(1, 4, 16), POOL, ints([0]), ints(5)), "room for 4"),
        (call("decode_attention", floats(1, 4, 16), POOL, ints([8]), ints(1)), "blocks 0 to 7"),
        (call("decode_attention", floats(1, 4, 16), POOL, ints([-1]), ints(1)), "blocks 0 to 7"),
        (call("decode_attention", floats(1, 4, 16), POOL, ints([0]), ints(1), window=0), "window"),
        (call("prefill_attention", floats(3, 4, 16), POOL, ints(0), 2), "must hold 5 tokens"),
        (call("prefill_attention", floats(3, 4, 16), POOL, ints(0), -1), "negative"),
        (call("prefill_attention", floats(3, 4, 16), POOL, ints(GARBAGE), 0), "blocks 0 to 7"),
        (call("copy_blocks", POOL, ints(0), ints(1, 2)), "targets"),
        (call("gather_blocks", POOL, ints(8)), "blocks 0 to 7"),
        (call("scatter_blocks", POOL, ints(1), POOL), "must be"),
        (call("scatter_blocks", INT8, ints(*range(8)), KvPool(INT8.data, None, "int8")), "scales None"),
        (call("quantise", floats(1, 4), "fp8"), "int8"),
        (call("dequantise", floats(1, 4), floats(4)), "scales"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(refused, message):
    with pytest.raises(ShapeError, match=message):
        refused()
