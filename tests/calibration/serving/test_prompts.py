"""Which prompts share a prefix, by their text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.serving.readers.prompts import BLOCK_TOKENS, prefix_blocks
from sim.simulation import simulate
from tests.calibration.serving.client_files import (
    SCENARIO,
    known_run,
)
from tests.calibration.serving.client_formats import FORMATS, read_one


def text_of(tokens, seed):
    """Words of four characters and a blank: five characters a token."""
    return "".join(f"{word:04x} " for word in np.random.default_rng(seed).integers(0, 65536, tokens))


@pytest.mark.parametrize(("reader", "write"), [pair for name, pair in FORMATS.items() if name != "vllm"])
def test_prompts_that_share_a_prefix_share_blocks(tmp_path, reader, write):
    known = known_run(count=12)
    known.inputs = [160 + 16 * i for i in range(12)]
    known.prompts = [
        text_of(96, i % 2) + text_of(tokens - 96, 100 + i) for i, tokens in enumerate(known.inputs)
    ]
    run = read_one(reader, write(tmp_path, known))
    hashes = run.workload.trace.hashes
    assert hashes.is_chained()
    assert np.diff(hashes.offsets).tolist() == [-(-tokens // BLOCK_TOKENS) for tokens in known.inputs]
    cached = SCENARIO | {"engine": SCENARIO["engine"] | {"enable_prefix_caching": True}}
    (cached_run,) = reader.read(write(tmp_path, known), cached)
    assert simulate(cached_run.scenario, workload=cached_run.workload).summary["sim"]["prefix_hit_rate"] > 0.2
    for i in range(12):
        for j in range(i):
            same = int((hashes.of(i)[:10] == hashes.of(j)[:10]).sum())
            assert same == (96 // BLOCK_TOKENS if (i - j) % 2 == 0 else 0)
    assert any("which prompts share a prefix follows from their text" in caveat for caveat in run.caveats)


@given(texts=st.lists(st.text("ab", min_size=16, max_size=80), min_size=2, max_size=6))
def test_blocks_are_equal_where_texts_are_and_only_there(texts):
    """One character a token: the law of prefix identity, exactly."""
    lengths = np.array([len(text) for text in texts])
    blocks = prefix_blocks(texts, lengths)
    pairs = [(i, j) for i in range(len(texts)) for j in range(i)]
    if blocks is None:
        assert all(texts[i][:16] != texts[j][:16] for i, j in pairs)
        return
    for i, j in pairs:
        for depth in range(min(lengths[i], lengths[j]) // 16):
            same = texts[i][: 16 * depth + 16] == texts[j][: 16 * depth + 16]
            assert (blocks.of(i)[depth] == blocks.of(j)[depth]) == same
