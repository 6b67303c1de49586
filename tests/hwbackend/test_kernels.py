"""The CUDA kernels against float64 references: their very source on the host, and on a GPU where there is one."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwbackend.kernels import reference
from hwbackend.kernels.cuda_ops import CudaOps
from hwbackend.kernels.cuda_stream import CudaStreamOps
from hwbackend.kernels.cupy_runtime import CupyRuntime
from hwbackend.kernels.splits import plan_splits
from hwbackend.ops import ShapeError
from tests.hwbackend.cuda_on_cpu import COMPILER, CpuRuntime, KernelFaultError
from tests.hwbackend.kernel_cases import Sequences, Shape, e4m3_values, poison, seeds, stored, to_host, wide

SHAPES = [
    Shape("bfloat16", "bfloat16", 128, 8, 2, 16),
    Shape("float16", "float16", 64, 3, 3, 16),
    Shape("float16", "int8", 128, 4, 1, 32),
    Shape("bfloat16", "int8", 64, 12, 1, 5),
    Shape("bfloat16", "fp8", 128, 20, 1, 16),
    Shape("float16", "fp8", 64, 4, 2, 8),
    Shape("bfloat16", "bfloat16", 64, 9, 1, 1),
]
few = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def make_runtime(request):
    """Runtimes for kernels on the host, with an order of the threads, or the device."""
    if request.param == "host":
        if COMPILER is None:
            pytest.skip("no g++ to run the kernels on the host with")
        return CpuRuntime
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    runtime = CupyRuntime()
    return lambda num_multiprocessors=0, order=0: runtime


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_attention_is_the_definition(make_runtime, shape):
    @given(
        lengths=st.lists(st.integers(0, 150), min_size=1, max_size=3),
        window=st.none() | st.integers(1, 100),
        order=st.integers(0, 2),
        seed=seeds,
    )
    @few
    def check(lengths, window, order, seed):
        runtime = make_runtime(order=order)
        Sequences(CudaOps(runtime, shape.dtype), runtime.xp, shape, lengths, seed).check_decode(window)

    check()


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("window", [None, 300])
def test_long_contexts_are_split_and_merged(make_runtime, shape, window):
    runtime = make_runtime(num_multiprocessors=64)
    sequences = Sequences(CudaOps(runtime, shape.dtype), runtime.xp, shape, [777, 0, 65, 256], 1)
    sequences.check_decode(window)
    if isinstance(runtime, CpuRuntime):
        parts = {name: grid for name, grid in runtime.launches if name == "decode_attention"}
        assert parts["decode_attention"][0] > 1
        assert "merge_splits" in dict(runtime.launches)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_attention_is_the_definition(make_runtime, shape):
    @given(
        context=st.integers(0, 130),
        new=st.integers(1, 100),
        window=st.none() | st.integers(1, 150),
        order=st.integers(0, 2),
        seed=seeds,
    )
    @few
    def check(context, new, window, order, seed):
        runtime = make_runtime(order=order)
        ops = CudaOps(runtime, shape.dtype)
        Sequences(ops, runtime.xp, shape, [context + new], seed).check_prefill(new, window)

    check()


@pytest.mark.parametrize("window", [1, 16, 63, 64, 65, 100, 129])
def test_edges_of_windows_cross_tiles(make_runtime, window):
    runtime = make_runtime(order=2)
    ops = CudaOps(runtime, "float16")
    sequences = Sequences(ops, runtime.xp, Shape("float16", "float16", 64, 1, 1, 8), [231], 0)
    sequences.check_prefill(101, window)
    sequences.check_decode(window)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_contiguous_attention_is_the_definition(make_runtime, dtype, head_dim):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, dtype), runtime.xp
    random = np.random.default_rng(0)
    lens = np.array([100, 0, 33], np.int32)
    k, v = random.standard_normal((2, 3, 101, 2, head_dim)).astype(np.float32)
    for i, length in enumerate(lens):
        k[i, length:] = v[i, length:] = np.nan
    q = random.standard_normal((3, 6, head_dim)).astype(np.float32)
    q, k, v = (ops.to_values(xp.asarray(x)) for x in (q, k, v))
    got = wide(ops, ops.contiguous_decode_attention(q, k, v, xp.asarray(lens)))
    want = reference.contiguous_decode_attention(*(wide(ops, x) for x in (q, k, v)), lens)
    np.testing.assert_allclose(got, want, rtol=0, atol=4 * {"float16": 2**-10, "bfloat16": 2**-8}[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_append_stores_each_token_and_nothing_else(make_runtime, shape):
    runtime = make_runtime()
    ops = CudaOps(runtime, shape.dtype)
    sequences = Sequences(ops, runtime.xp, shape, [40, 7], 3)
    slots, k, v = sequences.written
    kept = stored(ops, sequences.pool).reshape(2, -1, *k.shape[1:])
    written = slots >= 0
    step = {"int8": np.abs((k, v)).max(axis=-1, keepdims=True)[:, written] / 254, "fp8": None}
    for plane, x in enumerate((k[written], v[written])):
        found = kept[plane, slots[written]]
        if shape.kv_dtype == shape.dtype:
            np.testing.assert_array_equal(found, x)
        elif shape.kv_dtype == "int8":
            assert (np.abs(found - x) <= 1.01 * step["int8"][plane]).all()
        else:
            assert_nearest_e4m3(found / (0.5, 2.0)[plane], x / (0.5, 2.0)[plane])
    rest = np.ones(kept.shape[1], bool)
    rest[slots[written]] = False
    assert np.isnan(kept[:, rest]).all()


def assert_nearest_e4m3(found, x):
    """No code is nearer to x than the found one; beyond the largest, the largest."""
    codes = e4m3_values()
    codes = codes[np.isfinite(codes)]
    distance = np.abs(x[..., None] - codes).min(axis=-1)
    np.testing.assert_allclose(np.abs(found - x), distance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bits_and_back(make_runtime, dtype, head_dim, kind):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, dtype), runtime.xp
    x = np.random.default_rng(0).standard_normal((9, 3, head_dim)).astype(np.float32)
    x[1] *= 1000
    x[2] *= 0.01
    x[3, 0] = 0
    values = ops.to_values(xp.asarray(x))
    scale = None if kind == "int8" else xp.asarray([0.25], dtype=np.float32)
    narrow, scales = ops.quantise(values, kind, scale)
    x = wide(ops, values)
    if kind == "int8":
        steps = to_host(scales).astype(np.float64)
        np.testing.assert_allclose(steps, np.abs(x).max(axis=-1) / 127, rtol=1e-6)
        exact = to_host(narrow) * steps[..., None]
        assert (np.abs(exact - x) <= 0.501 * steps[..., None]).all()
    else:
        exact = e4m3_values()[to_host(narrow)] * 0.25
        assert_nearest_e4m3(exact / 0.25, x / 0.25)
    back = wide(ops, ops.dequantise(narrow, scales))
    np.testing.assert_allclose(back, exact, rtol={"float16": 2**-11, "bfloat16": 2**-8}[dtype], atol=1e-6)


def test_every_e4m3_code_is_read_as_defined(make_runtime):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, "float16"), runtime.xp
    codes = xp.arange(256, dtype=np.uint8).reshape(2, 128)
    back = wide(ops, ops.dequantise(codes, xp.ones(1, np.float32)))
    np.testing.assert_array_equal(back.reshape(-1), e4m3_values())
    again, _ = ops.quantise(ops.to_values(xp.asarray(back.astype(np.float32))), "fp8", xp.ones(1, np.float32))
    np.testing.assert_array_equal(e4m3_values()[to_host(again)], e4m3_values()[to_host(codes)])


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("poisoned", ["q", "keys", "values"])
def test_nan_in_what_is_read_comes_out(make_runtime, shape, poisoned):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, shape.dtype), runtime.xp
    sequences = Sequences(ops, xp, shape, [70, 70], 0)
    q = wide(ops, sequences.queries(2)).astype(np.float32)
    new = np.zeros((2, 1, shape.num_kv_heads, shape.head_dim), np.float32)
    if poisoned == "q":
        q[0, 0, 3] = np.nan
    else:
        new[["keys", "values"].index(poisoned), 0, 0, 3] = np.nan
    slot = sequences.tables[0, 40 // shape.block_size] * shape.block_size + 40 % shape.block_size
    k, v = (ops.to_values(xp.asarray(x)) for x in new)
    ops.append_kv(sequences.pool, k, v, xp.asarray([slot]))
    q = ops.to_values(xp.asarray(q))
    tables, lengths = xp.asarray(sequences.tables), xp.asarray(sequences.lengths)
    out = wide(ops, ops.decode_attention(q, sequences.pool, tables, lengths))
    assert np.isnan(out[0, 0]).any()
    assert np.isfinite(out[1]).all()
    out = wide(ops, ops.prefill_attention(q, sequences.pool, tables[0], 68))
    assert np.isnan(out[0 if poisoned == "q" else 1, 0]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_stands_between_the_products(make_runtime, dtype):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, dtype), runtime.xp
    random = np.random.default_rng(0)
    # As an engine has them: rows of x are slices of wider ones, q and k of one product.
    x = ops.to_values(xp.asarray(random.standard_normal((5, 1000)).astype(np.float32)))[:, :520]
    weight = ops.to_values(xp.asarray(random.standard_normal(520).astype(np.float32)))
    rounding = {"float16": 2**-10, "bfloat16": 2**-7}[dtype]
    got = wide(ops, ops.rms_norm(x, weight, 1e-5))
    np.testing.assert_allclose(
        got, reference.rms_norm(wide(ops, x), wide(ops, weight), 1e-5), rtol=rounding, atol=1e-6
    )
    gate_up = xp.ascontiguousarray(x)
    np.testing.assert_allclose(
        wide(ops, ops.silu_mul(gate_up[:, :512].copy())),
        reference.silu_mul(wide(ops, gate_up[:, :512])),
        rtol=rounding,
        atol=1e-5,
    )
    qkv = ops.to_values(xp.asarray(random.standard_normal((5, 6, 64)).astype(np.float32)))
    before, positions = wide(ops, qkv), np.array([0, 1, 77, 4000, 5], np.int32)
    ops.rope(qkv[:, :3], qkv[:, 3:5], xp.asarray(positions), ops.rope_table(4001, 64, 1e4))
    after = wide(ops, qkv)
    np.testing.assert_allclose(
        after[:, :5], reference.rope(before[:, :5], positions, 1e4), rtol=0, atol=4 * rounding
    )
    np.testing.assert_array_equal(after[:, 5], before[:, 5])
    total = gate_up.copy()
    ops.add(total, gate_up)
    np.testing.assert_array_equal(wide(ops, total), 2 * wide(ops, gate_up))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products(make_runtime, dtype):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, dtype), runtime.xp
    random = np.random.default_rng(0)
    x, w = (
        ops.to_values(xp.asarray(random.standard_normal(s).astype(np.float32))) for s in ((5, 64), (64, 24))
    )
    want = wide(ops, x) @ wide(ops, w)
    np.testing.assert_allclose(
        wide(ops, ops.matmul(x, w)), want, rtol={"float16": 2**-10, "bfloat16": 2**-7}[dtype], atol=1e-2
    )
    a, b = random.integers(-127, 128, (4, 64)), random.integers(-127, 128, (8, 64))
    got = to_host(ops.matmul_8bit(xp.asarray(a, dtype=np.int8), xp.asarray(b, dtype=np.int8)))
    np.testing.assert_array_equal(got, a @ b.T)


@pytest.mark.parametrize("shape", SHAPES[2:5], ids=str)
def test_blocks_move_whole_and_alone(make_runtime, shape):
    shape = Shape(shape.dtype, shape.kv_dtype, shape.head_dim, 4, 4, 16)
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, shape.dtype), runtime.xp
    sequences = Sequences(ops, xp, shape, [80, 70], 0)
    before = stored(ops, sequences.pool)
    ids = np.random.default_rng(0).permutation(sequences.pool.num_blocks).astype(np.int32)
    blocks = ops.gather_blocks(sequences.pool, xp.asarray(ids[:3]))
    np.testing.assert_array_equal(stored(ops, blocks), before[:, ids[:3]])
    ops.copy_blocks(sequences.pool, xp.asarray(ids[:3]), xp.asarray(ids[3:6]))
    ops.scatter_blocks(sequences.pool, xp.asarray(ids[6:9]), blocks)
    after = before.copy()
    after[:, ids[3:6]] = after[:, ids[6:9]] = before[:, ids[:3]]
    np.testing.assert_array_equal(stored(ops, sequences.pool), after)


@pytest.mark.parametrize("words", [1, 511, 512 * 31 + 5])
def test_streams_touch_every_byte(make_runtime, words):
    runtime = make_runtime()
    streams, xp = CudaStreamOps(runtime), runtime.xp
    x = xp.asarray(np.random.default_rng(0).integers(0, 2**32, 4 * words, dtype=np.uint32))
    y = xp.zeros_like(x)
    streams.copy(y, x)
    assert (to_host(y) == to_host(x)).all()
    assert np.bitwise_xor.reduce(to_host(streams.read(x))) == np.bitwise_xor.reduce(to_host(x))
    streams.flush(y)
    assert (to_host(y)[::4] == to_host(x)[::4] + np.uint32(1)).all()
    streams.write(y)
    assert not to_host(y).any()
    streams.empty()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_to_nearest_even(make_runtime, dtype):
    runtime = make_runtime()
    ops, xp = CudaOps(runtime, dtype), runtime.xp
    step = {"float16": 2**-10, "bfloat16": 2**-7}[dtype]
    x = xp.asarray([1 + step / 2, 1 + 1.5 * step, -1 - 0.51 * step, np.nan, 0], dtype=np.float32)
    np.testing.assert_array_equal(wide(ops, ops.to_values(x)), [1, 1 + 2 * step, -1 - step, np.nan, 0])


@given(
    blocks=st.integers(1, 5000),
    tokens=st.integers(0, 200_000),
    size=st.none() | st.integers(1, 256),
    multiprocessors=st.integers(1, 200),
)
def test_splits_cover_the_context_and_fit_shared_memory(blocks, tokens, size, multiprocessors):
    splits = plan_splits(blocks, tokens, size, multiprocessors)
    assert splits.num_splits >= 1
    assert (
        (splits.num_splits - 1) * splits.split_tokens
        < max(tokens, 1)
        <= splits.num_splits * splits.split_tokens
    )
    assert splits.split_tokens % 64 == 0
    if size is not None:
        # A part may start at the last token of a block.
        assert 4 * ((size - 1 + splits.split_tokens - 1) // size + 1) <= splits.table_bytes <= 12 << 10


def test_what_does_not_fit_is_refused_before_a_launch():
    runtime = CpuRuntime()
    ops = CudaOps(runtime, "float16")
    pool = ops.new_pool(4, 16, 2, 64)
    q = np.zeros((1, 4, 64), np.float16)
    lens, table = np.array([1], np.int32), np.zeros((1, 1), np.int32)
    refused = [
        (lambda: CudaOps(runtime, "float32"), "float16 or bfloat16"),
        (lambda: ops.new_pool(4, 16, 2, 96), "heads of 96"),
        (lambda: ops.new_pool(4, 16, 2, 64, "bfloat16"), "must be float16"),
        (lambda: ops.decode_attention(q[:, :3], pool, table, lens), "multiple of 2 heads"),
        (lambda: ops.decode_attention(q, pool, table, lens, max_context_len=17), "room for 16"),
        (lambda: ops.decode_attention(q.transpose(1, 0, 2)[:1], pool, table, lens), "multiple|contiguous"),
        (lambda: ops.rms_norm(q[0, :, :60], q[0, 0, :60], 1e-5), "multiple of 8"),
        (lambda: ops.matmul(q[0].T, q[0]), "contiguous"),
        (lambda: ops.matmul_8bit(np.zeros((2, 6), np.int8), np.zeros((4, 6), np.int8)), "by 4"),
        (lambda: ops.quantise(q, "fp8"), "fp8 needs one"),
        (lambda: CudaStreamOps(runtime).write(np.zeros(3, np.float32)), "multiple of 16"),
    ]
    for attempt, message in refused:
        with pytest.raises(ShapeError, match=message):
            attempt()
    assert runtime.launches == []


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the kernels on the host with")
def test_the_host_catches_what_is_written_beside_an_array():
    runtime = CpuRuntime()
    target = np.zeros(16, np.uint32)
    with pytest.raises(KernelFaultError, match="beside"):
        runtime.kernel("stream", "stream_write")((1,), (256,), (target, np.uint32(7), np.int64(5)))


def test_poison_is_seen_by_the_reference():
    """The checks above stand on it: what a pool holds before it is written is NaN in every dtype."""
    for dtype in ("float16", "int8", "fp8"):
        ops = CudaOps(CpuRuntime(), "float16")
        pool = ops.new_pool(2, 4, 2, 64, dtype)
        poison(pool)
        assert np.isnan(stored(ops, pool)).all()
