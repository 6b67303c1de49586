"""KV in host memory for real: attention sees the pages that the pattern names, and they were copied before."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hwbackend.engine.host_pages import HostPages, tables_by_group
from hwbackend.engine.page_link import PageLink
from hwbackend.engine.paged_executor import PagedExecutor
from sim.engine.paged_steps import PagedSteps
from sim.kv.access.full import Full
from sim.kv.access.top_k import TopK
from sim.kv.paging.host_paging import HostPaging
from sim.kv.prefetch.attention_weighted import AttentionWeighted
from sim.kv.prefetch.none import NoPrefetch
from sim.kv.prefetch.scheduled import Scheduled
from sim.kv.prefetch.stride import Stride
from tests.hwbackend.engine_reference import logits_of
from tests.hwbackend.test_engine_tokens_and_logits import (
    BLOCK,
    COST,
    MODEL,
    WEIGHTS,
    engine_of,
    serve_on_cpu,
)
from tests.sim.engines import trace_of

GROUPS = 2
TOP_K = TopK(blocks=2, near_tokens=5, sink_tokens=2, locality_blocks=1, churn=0.3)


class PoisonedPages(HostPages):
    """Whatever HBM must not be read for shows when it is."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.fetched = 0
        for layer in self.hbm.layers:
            layer.data.fill(np.nan)

    def keep_only(self, numbers, resident):
        super().keep_only(numbers, resident)
        for layer in self.hbm.layers:
            layer.data[:, numbers[~resident]] = np.nan

    def fetch(self, numbers):
        self.fetched += numbers.size
        super().fetch(numbers)


def serve_paged(trace, pattern, prefetch, *, capacity, blocks=80, bytes_per_s=None):
    access = pattern.build(GROUPS, BLOCK, 11)
    page_bytes = 2 * BLOCK * MODEL.num_kv_heads * MODEL.head_dim * 4 * (MODEL.num_layers // GROUPS)
    paging = HostPaging(access, prefetch.build(access), capacity=capacity, page_bytes=page_bytes)
    kept = []

    class Timed(PagedExecutor):
        def __init__(self, parts, on_logits):
            pages = PoisonedPages(parts.device, MODEL, parts.pool, GROUPS)
            assert pages.page_bytes == page_bytes
            self.link = PageLink(page_bytes, pages.fetch, bytes_per_s=bytes_per_s)
            super().__init__(parts, PagedSteps(paging), pages, self.link, on_logits=on_logits)
            kept.append(pages)

        def run(self, core, plan):
            super().run(core, plan)
            time.sleep(0.0005)  # for prefetches to come
            self.clock.time_ns += COST.mixed_ns(plan.decodes, plan.context_tokens, 0, plan.shapes)

    served, tokens, logits = serve_on_cpu(trace, engine_of(blocks=blocks), executor_class=Timed)
    return served, tokens, logits, paging, access, kept[0]


def assert_sparse_right(served, tokens, logits, access):
    """A query of a decode sees the pages that the pattern names for its context, in each group of layers."""
    per_group = MODEL.num_layers // GROUPS
    assert served.requests.completed.all()
    assert served.core.preemptions == 0
    for index, position in sorted(logits):
        prompt = served.table.input_tokens[index]

        def visible(layer, query, count, index=index, prompt=prompt):
            keys = np.arange(count)
            if query < prompt:
                return keys <= query
            reads = access.reads(index, query + 1)
            blocks = reads.block[reads.group == layer // per_group]
            return (keys <= query) & np.isin(keys // BLOCK, blocks)

        reference = logits_of(MODEL, WEIGHTS, tokens.of(index)[:position], visible)
        np.testing.assert_allclose(logits[index, position], reference, rtol=0, atol=2e-4)


@pytest.mark.parametrize("prefetch", [NoPrefetch(), Stride(), AttentionWeighted(), Scheduled()])
@pytest.mark.parametrize("capacity", [9, 30, 300])
def test_sparse_attention_over_pages(prefetch, capacity):
    trace = trace_of(*((1500 * i, 9 + 11 * i % 31, 7 + 5 * i % 9) for i in range(6)))
    served, tokens, logits, paging, access, pages = serve_paged(trace, TOP_K, prefetch, capacity=capacity)
    assert_sparse_right(served, tokens, logits, access)
    account = paging.account
    assert account.imbalance_bytes == 0
    assert pages.fetched * pages.page_bytes <= account.demand_bytes + account.issued_bytes
    assert (pages.fetched == 0) == (account.demand_bytes + account.issued_bytes == 0)
    if capacity == 9:
        assert account.demanded > 0


def test_full_attention_where_hbm_holds_a_part():
    trace = trace_of(*((0, 13 + 4 * i, 8) for i in range(4)))
    served, tokens, logits, paging, access, _ = serve_paged(trace, Full(), Scheduled(), capacity=40)
    assert_sparse_right(served, tokens, logits, access)
    assert paging.account.demanded > 0


def test_preempted_sequences_come_back_with_new_pages():
    trace = trace_of(*((900 * i, 21, 14) for i in range(6)))
    served, _, logits, paging, _, _ = serve_paged(trace, TOP_K, Stride(), capacity=30, blocks=20)
    assert served.core.preemptions > 0
    assert served.requests.completed.all()
    assert all(np.isfinite(row).all() for row in logits.values())
    assert paging.account.imbalance_bytes == 0


def test_a_paced_link_takes_its_time():
    copied = []
    link = PageLink(
        1000, lambda pages: copied.extend(pages.tolist()), bytes_per_s=1e6
    )  # a page a millisecond
    start = time.perf_counter()
    link.fetch(np.arange(5), 5000)
    assert time.perf_counter() - start >= 0.005
    assert copied == [0, 1, 2, 3, 4]
    stream = link.start(np.arange(1000))
    time.sleep(0.01)
    came = link.stop(stream)
    assert came.tolist() == copied[5:]
    assert 0 < came.size <= 1000 * (time.perf_counter() - start)
    link.close()


def test_tables_by_group():
    group = np.array([0, 0, 0, 1, 1])
    sequence = np.array([0, 0, 2, 1, 2])
    numbers = np.array([10, 12, 20, 15, 21])
    (first, counts), (second, other) = tables_by_group(group, sequence, numbers, 2, 3)
    assert counts.tolist() == [2, 0, 1]
    assert first[0].tolist() == [10, 12]
    assert first[2, 0] == 20
    assert other.tolist() == [0, 1, 1]
    assert second[:, 0].tolist() == [0, 15, 21]
