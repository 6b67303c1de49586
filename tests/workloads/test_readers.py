"""Each format by a small file whose every figure is known, and the traps of real result files."""

import json

import numpy as np
import pytest

from workloads.errors import TraceFormatError
from workloads.readers import detect_format, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00.0000001,879,55"""


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def test_azure_2023_subtracts_the_first_stamp_exactly(put):
    path = put("a.csv", AZURE)
    trace = read_trace(path)
    assert detect_format(path) == "azure"
    assert trace.arrival_ns.tolist() == [0, 4_314_579_000, 13_319_410_100]
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.has_arrivals
    assert trace.failed == 0
    assert trace.hashes is None


def test_azure_2024_has_offsets_and_other_columns_in_any_order(put):
    text = (
        "GeneratedTokens,TIMESTAMP,ContextTokens,NumImages\n"
        "5,2024-05-12 01:00:00.123456789+02:00,10,1\n"
        "6,2024-05-11 23:00:01+00:00,20,0\r\n"
        "\n"
        "7,2024-05-11T23:00:02.000000000123Z,30,0\n"
    )
    trace = read_trace(put("a.csv", text))
    assert trace.arrival_ns.tolist() == [0, 876_543_211, 1_876_543_211]
    assert trace.input_tokens.tolist() == [10, 20, 30]
    assert trace.warnings == ("columns not used: NumImages",)


def test_mooncake_blocks_of_512_tokens(put):
    path = put(
        "m.jsonl",
        lines(
            {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]},
            {"timestamp": 27.5, "input_length": 1025, "output_length": 4, "hash_ids": [1, 2, 3]},
        ),
    )
    trace = read_trace(path)
    assert detect_format(path) == "mooncake"
    assert trace.arrival_ns.tolist() == [0, 27_500_000]
    assert trace.hashes.block_tokens == 512
    assert [trace.hashes.of(i).tolist() for i in (0, 1)] == [[1, 2], [1, 2, 3]]
    assert trace.warnings == ()


def test_mooncake_block_size_follows_from_the_lengths(put):
    row = {"timestamp": 8, "input_length": 128, "output_length": 64, "hash_ids": list(range(8))}
    trace = read_trace(put("m.jsonl", lines(row, {**row, "input_length": 120})))
    assert trace.hashes.block_tokens == 16
    assert trace.warnings == ("16 tokens a block, as the lengths imply",)


def test_mooncake_with_the_keys_of_aiperf(put):
    rows = (
        {"timestamp": 0, "input_length": 5, "output_length": 3, "session_id": "b"},
        {"timestamp": 1, "input_length": 6, "output_length": 4},
        {"timestamp": 2, "input_length": 7, "output_length": 5, "session_id": "b"},
    )
    assert read_trace(put("m.jsonl", lines(*rows))).session.tolist() == [0, -1, 0]
    untimed = [{"input_length": 5, "output_length": 3}] * 2
    assert not read_trace(put("n.jsonl", lines(*untimed))).has_arrivals


def test_ids_beyond_64_bits_keep_their_equality(put):
    row = {"timestamp": 0, "input_length": 1000, "output_length": 1}
    rows = [{**row, "hash_ids": [2**70, 5]}, {**row, "hash_ids": [2**70, 6]}]
    first, second = (
        read_trace(put("m.jsonl", lines(*rows))).hashes.of(0),
        read_trace(put("m.jsonl", lines(*rows))).hashes.of(1),
    )
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_ids_that_do_not_stand_for_a_prefix_are_noticed(put):
    row = {"timestamp": 0, "input_length": 1000, "output_length": 1}
    trace = read_trace(put("m.jsonl", lines({**row, "hash_ids": [1, 2]}, {**row, "hash_ids": [3, 2]})))
    assert "do not stand for a whole prefix" in trace.warnings[0]


def test_a_late_start_is_kept_and_said(put):
    rows = [{"timestamp": t, "input_length": 5, "output_length": 3} for t in (60_000, 60_100, 60_200)]
    trace = read_trace(put("m.jsonl", lines(*rows)))
    assert trace.arrival_ns[0] == 60 * 10**9
    assert trace.warnings == ("the first request arrives at 60 s; times are kept as they are",)


def test_bailian_chats_become_sessions(put):
    row = {"type": "text", "turn": 1, "input_length": 33, "output_length": 2, "hash_ids": [1, 2, 3]}
    path = put(
        "b.jsonl",
        lines(
            {**row, "chat_id": 10, "parent_chat_id": -1, "timestamp": 0.5},
            {**row, "chat_id": 11, "parent_chat_id": -1, "timestamp": 0.75},
            {**row, "chat_id": 12, "parent_chat_id": 10, "timestamp": 1.25},
            {**row, "chat_id": 13, "parent_chat_id": 12, "timestamp": 61.114},
            {**row, "chat_id": 14, "parent_chat_id": 3, "timestamp": 61.114},
        ),
    )
    trace = read_trace(path)
    assert detect_format(path) == "bailian"
    assert trace.session.tolist() == [0, 1, 0, 0, 2]
    assert trace.arrival_ns.tolist() == [
        500_000_000,
        750_000_000,
        1_250_000_000,
        61_114_000_000,
        61_114_000_000,
    ]
    assert trace.hashes.block_tokens == 16


BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,8.5,ChatGPT,472,18,490,Conversation log
45.5,,2,GPT-4,1087,0,1087,API log
118,s1,1,ChatGPT,417,276,693,Conversation log
"""


def test_burstgpt_failed_requests_are_kept_out_only_on_request(put):
    path = put("b.csv", BURST)
    assert detect_format(path) == "burstgpt"
    with pytest.raises(TraceFormatError, match=r":3: a failed request .*--drop-failed \(drop_failed: true\)"):
        read_trace(path)
    trace = read_trace(path, drop_failed=True)
    assert trace.failed == 1
    assert trace.arrival_ns.tolist() == [5 * 10**9, 118 * 10**9]
    assert trace.session.tolist() == [0, 0]
    assert trace.output_tokens.tolist() == [18, 276]


def test_vidur_with_and_without_arrivals(put):
    timed = put("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.000000001,5,6\n2.5,7,8\n")
    assert read_trace(timed).arrival_ns.tolist() == [1, 2_500_000_000]
    path = put(
        "w.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n"
    )
    trace = read_trace(path)
    assert detect_format(path) == "vidur"
    assert not trace.has_arrivals
    assert trace.arrival_ns.tolist() == [0]
    assert trace.warnings == ()


def vllm_run(**changes):
    return {
        "date": "20260101-000000",
        "num_prompts": 3,
        "request_rate": "inf",
        "max_concurrency": None,
        "input_lens": [10, 20, 30],
        "output_lens": [4, 0, 6],
        "start_times": [100.5, 101.0, 103.25],
        "queue_times": [0.0, 0.5, 2.75],
        "itls": [[0.02, 0.03, 0.02], [], [0.02] * 5],
        "errors": ["", "Bad Request", ""],
    } | changes


def test_vllm_result(put):
    path = put("r.json", json.dumps(vllm_run()))
    assert detect_format(path) == "vllm"
    with pytest.raises(TraceFormatError, match=r"request 1: a failed request"):
        read_trace(path)
    trace = read_trace(path, drop_failed=True)
    assert trace.failed == 1
    assert trace.arrival_ns.tolist() == [0, 2_750_000_000]
    assert trace.input_tokens.tolist() == [10, 30]
    assert trace.warnings == ()


def test_vllm_closed_loop_gives_hand_over_times_and_says_so(put):
    trace = read_trace(put("r.json", json.dumps(vllm_run(max_concurrency=2))), drop_failed=True)
    assert trace.arrival_ns.tolist() == [0, 0]
    assert "max_concurrency 2" in trace.warnings[0]


def test_vllm_runs_appended_line_by_line(put):
    later = vllm_run(start_times=[200.0, 201.0, 202.0])
    trace = read_trace(put("r.json", lines(vllm_run(), later)), drop_failed=True)
    assert len(trace) == 4
    assert trace.failed == 2
    assert trace.arrival_ns[-1] == 101_500_000_000
    assert trace.warnings == ("2 runs follow each other, with the pauses between them",)
    with pytest.raises(TraceFormatError, match=r":2: a run that starts before the one above ends"):
        read_trace(put("s.json", lines(later, vllm_run())), drop_failed=True)


def guide(start, conversation="c", turn=0, **changes):
    return {
        "info": {
            "conversation_id": conversation,
            "turn_index": turn,
            "timings": {"targeted_start": start},
        },
        "request_start_time": start + 0.01,
        "prompt_tokens": 12,
        "output_tokens": 3,
    } | changes


def test_guidellm_is_sorted_by_intended_start(put):
    requests = {
        "successful": [guide(1001.0, "a", 1), guide(1000.0, "b"), guide(1000.25, "a")],
        "errored": [guide(1000.5, prompt_tokens=None, output_tokens=None)],
        "incomplete": [],
        "total": None,
    }
    path = put("g.json", json.dumps({"metadata": {}, "benchmarks": [{"requests": requests}]}, indent=1))
    assert detect_format(path) == "guidellm"
    trace = read_trace(path, drop_failed=True)
    assert trace.arrival_ns.tolist() == [0, 250_000_000, 1_000_000_000]
    assert trace.failed == 1
    assert trace.session.tolist() == [-1, 0, 0]


def aiperf(number, issued, phase="profiling", **changes):
    return {
        "metadata": {
            "session_num": number,
            "credit_issued_ns": issued,
            "benchmark_phase": phase,
            "conversation_id": f"session_{number}",
            "turn_index": 0,
        },
        "metrics": {
            "usage_prompt_tokens": {"value": 116, "unit": "tokens"},
            "usage_completion_tokens": {"value": 47, "unit": "tokens"},
            "output_sequence_length": {"value": 45, "unit": "tokens"},
        },
    } | changes


def test_aiperf_leaves_warm_up_out_and_sorts_by_issue(put):
    base = 1_795_996_547_579_438_097
    path = put(
        "p.jsonl",
        lines(
            aiperf(0, base, "warmup"),
            aiperf(1, base + 1_000_000_001),
            aiperf(0, base + 1),
            aiperf(2, base + 5, metrics={}, error={"type": "E"}),
        ),
    )
    assert detect_format(path) == "aiperf"
    trace = read_trace(path, drop_failed=True)
    assert trace.arrival_ns.tolist() == [0, 1_000_000_000]
    assert trace.output_tokens.tolist() == [47, 47]
    assert trace.failed == 1
    assert trace.warnings == ("1 warm-up requests are left out",)


def record(start, usage, error=None):
    response = None if error else {"output_tokens": 9, "server_usage": usage}
    request = {"text": {"input_tokens": 200 if not error else 0}}
    return {
        "start_time": start,
        "end_time": start + 1,
        "info": {"request_metrics": request, "response_metrics": response},
        "error": error,
    }


def test_inference_perf_takes_the_servers_counts(put):
    usage = {"prompt_tokens": 205, "completion_tokens": 38}
    failed = record(11.5, None, {"error_type": "x", "error_msg": "y"})
    path = put("i.json", json.dumps([record(12.0, usage), record(11.0, None), failed]))
    assert detect_format(path) == "inference-perf"
    trace = read_trace(path, drop_failed=True)
    assert trace.arrival_ns.tolist() == [0, 1_000_000_000]
    assert trace.input_tokens.tolist() == [200, 205]
    assert trace.output_tokens.tolist() == [9, 38]
    assert "1 output lengths are the client's re-tokenisation" in trace.warnings[0]
    assert trace.failed == 1


REAL = [
    ("traces/azure_2023_conv.csv", "azure", 19_366, 0),
    ("traces/azure_2023_code.csv", "azure", 8_819, 0),
    ("traces/mooncake_fast25_conversation.jsonl", "mooncake", 12_031, 0),
    ("traces/vidur_arxiv_summarization.csv", "vidur", 28_257, 0),
    ("bench_clients/vllm_bench_serve/random_rate1.5/result.json", "vllm", 80, 0),
    ("bench_clients/vllm_bench_serve/timed_trace_failures/result.json", "vllm", 20, 4),
    ("bench_clients/guidellm/poisson_rate1.2/benchmarks.json", "guidellm", 36, 0),
    ("bench_clients/aiperf/poisson_rate1.2/artifacts/profile_export.jsonl", "aiperf", 36, 0),
    (
        "bench_clients/inference-perf/shared_prefix_2stages/reports/per_request_lifecycle_metrics.json",
        "inference-perf",
        45,
        0,
    ),
]


@pytest.mark.parametrize(("file", "kind", "requests", "failed"), REAL)
def test_real_files(data, file, kind, requests, failed):
    assert detect_format(data / file) == kind
    trace = read_trace(data / file, drop_failed=True)
    assert (len(trace), trace.failed) == (requests, failed)


def test_real_totals(data):
    clients = data / "bench_clients"
    run = json.loads((clients / "vllm_bench_serve/timed_trace_failures/result.json").read_text())
    trace = read_trace(clients / "vllm_bench_serve/timed_trace_failures/result.json", drop_failed=True)
    assert trace.input_tokens.sum() == run["total_input_tokens"]
    assert trace.output_tokens.sum() == run["total_output_tokens"]
    sent = read_trace(clients / "vllm_bench_serve/inputs/trace_some_too_long.jsonl")
    all_starts = np.array(run["start_times"]) - run["start_times"][0]
    planned = (sent.arrival_ns - sent.arrival_ns[0]) / 1e9
    assert np.abs(all_starts - planned).max() < 0.01


def test_starved_client_is_flagged_and_healthy_ones_are_not(data):
    runs = data / "bench_clients/vllm_bench_serve"
    bad = read_trace(runs / "random_rate1.5_starved_client/result.json", drop_failed=True)
    assert bad.warnings[0].startswith("starved client: 79% of the token gaps are below 0.5 ms")
    assert read_trace(runs / "random_rate1.5/result.json").warnings == ()


@pytest.mark.parametrize(
    "file",
    [
        "aiperf/connection_refused/artifacts/profile_export.jsonl",
        "inference-perf/connection_refused/reports/per_request_lifecycle_metrics.json",
    ],
)
def test_nothing_but_failures(data, file):
    with pytest.raises(TraceFormatError, match=r"all \d requests failed; no workload is left"):
        read_trace(data / "bench_clients" / file, drop_failed=True)
