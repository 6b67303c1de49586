"""A second opinion on attention: PyTorch's scaled_dot_product_attention, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from hwbackend.kernels import reference
from hwbackend.kernels.numpy_ops import NumpyOps
from tests.hwbackend.kernel_cases import Sequences, Shape, stored

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("context", [0, 37])
def test_attention_agrees_with_pytorch(context):
    ops, new = NumpyOps(), 20
    sequences = Sequences(ops, np, Shape("float32", "float32", 64, 8, 2, 16), [context + new], 0)
    q, table = sequences.queries(new), sequences.tables[0]
    keys, values = (reference.tokens_of(x, table, context + new) for x in stored(ops, sequences.pool))
    mask = np.arange(context + new) <= context + np.arange(new)[:, None]
    heads = [
        torch.from_numpy(x.astype(np.float32).transpose(1, 0, 2)[None].copy()) for x in (q, keys, values)
    ]
    want = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=torch.from_numpy(mask), enable_gqa=True
    )
    got = ops.prefill_attention(q, sequences.pool, table, context)
    np.testing.assert_allclose(got, want[0].numpy().transpose(1, 0, 2), rtol=0, atol=1e-5)
    decoded = ops.decode_attention(q[-1:], sequences.pool, sequences.tables, sequences.lengths)
    np.testing.assert_allclose(decoded[0], want[0, :, -1].numpy(), rtol=0, atol=1e-5)
