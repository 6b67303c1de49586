"""Which steps replay graphs, by `cudagraph_mode`: what the host adds, what bounds a step, what memory graphs take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.cost.build import compile_cost
from sim.cost.cuda_graphs import capture_sizes
from sim.cost.eager import calls_per_layer
from sim.memory import GRAPH_LAYER_BYTES, kv_capacity
from sim.model import load_model
from sim.profile import HostOverhead, load_profile
from sim.scenario.sections import EngineConfig
from sim.served import Served

MODES = ("full_and_piecewise", "full_decode_only", "none")
MODEL = load_model("llama-3.1-8b")
LAYERS = MODEL.num_layers
SERVED = Served(compute=1.2, decode_fixed=0.6, source="test")
CALLS = LAYERS * calls_per_layer(MODEL, 1, "bfloat16", compiled=True)
SLOW_S = 1e-3
"""A call so slow that it bounds every step without a graph."""


def cost(mode, *, piece_s=0.0, call_s=0.0, eager=False, **host):
    overhead = HostOverhead(base_s=0.0, piece_s=piece_s, call_s=call_s, source="test", **host)
    profile = load_profile("h100_sxm").model_copy(update={"host": overhead, "served": SERVED})
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    return compile_cost(MODEL, profile, **limits, cudagraph_mode=mode, enforce_eager=eager)


DECODES = (30, 30 * 700, 0, ())
SMALL = (30, 30 * 700, 0, ((270, 0),))  # 300 tokens: the largest captured size is 512
LARGEST = (30, 30 * 700, 0, ((400, 100), (82, 0)))  # 512
LARGE = (30, 30 * 700, 0, ((483, 0),))  # 513


class TestSteps:
    @pytest.mark.parametrize("step", [SMALL, LARGEST])
    def test_mixed_steps_that_replay_graphs_pay_for_their_pieces(self, step):
        plain, pieces = (cost(MODES[0], piece_s=s).mixed_ns(*step) for s in (0.0, 7e-6))
        assert pieces - plain == pytest.approx(LAYERS * 7000, abs=1)
        assert cost(MODES[0], piece_s=7e-6, call_s=SLOW_S).mixed_ns(*step) == pieces  # no call is made
        assert cost(MODES[0], piece_s=7e-6).parts(*step).seconds["host"] == pytest.approx(LAYERS * 7e-6)

    @pytest.mark.parametrize("step", [DECODES, LARGE])
    def test_other_steps_have_no_pieces(self, step):
        plain, pieces = (cost(MODES[0], piece_s=s).mixed_ns(*step) for s in (0.0, 7e-6))
        assert pieces == plain

    @pytest.mark.parametrize("mode", MODES)
    def test_calls_bound_a_step_above_the_largest_size_in_every_mode(self, mode):
        assert cost(mode, call_s=SLOW_S, piece_s=7e-6).mixed_ns(*LARGE) == round(1e9 * SLOW_S * CALLS)

    @pytest.mark.parametrize("mode", MODES[1:])
    @pytest.mark.parametrize("step", [SMALL, LARGEST])
    def test_without_piecewise_graphs_calls_bound_mixed_steps(self, mode, step):
        assert cost(mode, call_s=SLOW_S, piece_s=7e-6).mixed_ns(*step) == round(1e9 * SLOW_S * CALLS)
        waits = cost(mode, call_s=SLOW_S).parts(*step).seconds["host_wait"]
        assert waits == pytest.approx(SLOW_S * CALLS - 1e-9 * cost(mode).mixed_ns(*step), abs=2e-9)

    @pytest.mark.parametrize("mode", MODES[1:])
    def test_without_piecewise_graphs_there_are_no_pieces(self, mode):
        for step in (DECODES, SMALL, LARGEST, LARGE):
            plain, pieces = (cost(mode, piece_s=s) for s in (0.0, 7e-6))
            assert pieces.mixed_ns(*step) == plain.mixed_ns(*step)
            assert pieces.parts(*step) == plain.parts(*step)

    def test_decodes_replay_graphs_unless_there_are_none(self):
        piecewise, decode_only, none = (cost(mode, call_s=SLOW_S) for mode in MODES)
        assert decode_only.decode_ns(*DECODES[:3]) == piecewise.decode_ns(*DECODES[:3])
        assert decode_only.mixed_ns(*DECODES) == decode_only.decode_ns(*DECODES[:3])
        assert none.decode_ns(*DECODES[:3]) == round(1e9 * SLOW_S * CALLS)

    def test_a_step_without_a_graph_is_not_padded(self):
        quick = {mode: cost(mode) for mode in MODES}
        own = compile_cost(
            MODEL,
            load_profile("h100_sxm").model_copy(
                update={"host": HostOverhead(base_s=0.0, call_s=0.0, source="test"), "served": SERVED}
            ),
            max_num_batched_tokens=2048,
            max_num_seqs=256,
            cudagraph_capture_sizes=[30, 300],
        )
        for mode in MODES[1:]:
            assert quick[mode].parts(*SMALL).seconds == pytest.approx(own.parts(*SMALL).seconds)
        padded = quick[MODES[0]].parts(*SMALL)
        assert padded.seconds["gemm"] > own.parts(*SMALL).seconds["gemm"]  # 304 tokens
        for mode, exact in zip(MODES, (False, False, True), strict=True):
            same = quick[mode].parts(*DECODES).seconds["gemm"] == own.parts(*DECODES).seconds["gemm"]
            assert same is exact  # 32 tokens where decodes replay a graph

    def test_compiled_code_without_graphs_makes_fewer_calls_than_an_eager_engine(self):
        eager = cost(MODES[0], call_s=SLOW_S, eager=True).decode_ns(*DECODES[:3])
        assert eager == round(1e9 * SLOW_S * LAYERS * calls_per_layer(MODEL, 1, "bfloat16"))
        assert cost("none", call_s=SLOW_S).decode_ns(*DECODES[:3]) < eager

    @given(
        mode=st.sampled_from(MODES),
        num_seqs=st.integers(0, 256),
        mean=st.integers(1, 3000),
        chunks=st.lists(st.tuples(st.integers(1, 440), st.integers(0, 3000)), max_size=4),
        call_s=st.sampled_from([0.0, 2e-5, SLOW_S]),
        piece_s=st.sampled_from([0.0, 1e-5]),
    )
    @settings(deadline=None, max_examples=60)
    def test_parts_sum_to_the_price(self, mode, num_seqs, mean, chunks, call_s, piece_s):
        if not num_seqs and not chunks:
            return
        price = cost(mode, call_s=call_s, piece_s=piece_s, per_seq_s=1e-6, per_token_s=1e-8, cpu_base_s=1e-3)
        step = (num_seqs, num_seqs * mean, 0, chunks)
        parts = price.parts(*step)
        assert price.mixed_ns(*step) == pytest.approx(1e9 * parts.total_s, abs=1)
        assert all(seconds >= 0 for seconds in parts.seconds.values())


MEMORY = {"memory_bytes": 80 * 10**9, "max_num_batched_tokens": 8192}


class TestMemory:
    @given(
        name=st.sampled_from(["llama-3.1-8b", "qwen3-32b", "gpt-oss-120b"]),
        seats=st.integers(1, 1024),
        sizes=st.none() | st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    )
    @settings(deadline=None)
    def test_fewer_graphs_leave_no_fewer_blocks(self, name, seats, sizes):
        model = load_model(name)

        def capacity(mode, sizes=sizes):
            return kv_capacity(
                model,
                **MEMORY,
                tensor_parallel_size=2,
                max_num_seqs=seats,
                cudagraph_mode=mode,
                cudagraph_capture_sizes=sizes,
            )

        both, decode_only = (capacity(mode) for mode in MODES[:2])
        none = capacity("none", None)
        captured = capture_sizes(seats, 8192, cudagraph_capture_sizes=sizes)
        assert none.graph_bytes == 0
        assert decode_only.graph_bytes == GRAPH_LAYER_BYTES * model.num_layers * sum(
            s <= seats for s in captured
        )
        assert both.graph_bytes - decode_only.graph_bytes == GRAPH_LAYER_BYTES * model.num_layers * len(
            captured
        )
        assert both.num_gpu_blocks <= decode_only.num_gpu_blocks <= none.num_gpu_blocks
        shared_out = [one.kv_bytes + one.graph_bytes for one in (both, decode_only, none)]
        assert max(shared_out) - min(shared_out) < both.block_bytes  # what graphs leave goes to blocks

    def test_no_graphs_take_what_an_eager_engine_takes(self):
        none = kv_capacity(MODEL, **MEMORY, max_num_seqs=256, cudagraph_mode="none")
        assert none == kv_capacity(MODEL, **MEMORY, max_num_seqs=256, enforce_eager=True)


class TestScenario:
    @pytest.mark.parametrize("mode", MODES[1:])
    def test_an_eager_engine_has_no_mode(self, mode):
        with pytest.raises(ValidationError, match="leave cudagraph_mode out"):
            EngineConfig(enforce_eager=True, cudagraph_mode=mode)

    def test_none_captures_nothing(self):
        with pytest.raises(ValidationError, match="leave cudagraph_capture_sizes out"):
            EngineConfig(cudagraph_mode="none", cudagraph_capture_sizes=(1, 2))
        assert capture_sizes(256, 8192, cudagraph_mode="none") == ()

    def test_another_mode_is_refused(self):
        with pytest.raises(ValidationError, match="cudagraph_mode"):
            EngineConfig(cudagraph_mode="piecewise")
