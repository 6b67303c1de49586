"""Put questions to a peer, in the interpreter that has it: `python peer_driver.py PEER QUESTIONS ANSWERS`.

QUESTIONS is a JSON list of what `tests/fidelity/peers.py` asks, one a run. ANSWERS becomes a JSON object: `version` of
the peer, `answers` with one entry a question (`ttft_ms`, `tpot_ms`, `passed`: what the peer was given, or `refused`:
why it gave nothing); or `absent`, where the peer cannot be imported. Beside the peer the standard library alone is
imported: the interpreter need not have this project.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

Question = dict[str, Any]
Answer = dict[str, Any]

MODELS: Final = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
}
"""Names under which both peers ship what they need to know of a model."""
CHECKPOINTS: Final = {
    ("qwen3-235b-a22b", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("qwen3-235b-a22b", "fp8_block"): "Qwen/Qwen3-235B-A22B-FP8",
}
"""Checkpoints whose description names their number formats: nothing is said over them (blocks of 8 bits, here)."""
KV_DTYPES: Final = {"auto": "bfloat16", "fp8": "fp8", "bfloat16": "bfloat16"}


def checkpoint(question: Question) -> str:
    return CHECKPOINTS.get((question["model"], question["weight_dtype"]), MODELS[question["model"]])


def dtypes(question: Question) -> dict[str, str]:
    """Number formats by the peers' names; what is left out, they take from the checkpoint's own description."""
    found = {"kvcache": KV_DTYPES[question["kv_cache_dtype"]]}
    if question["weight_dtype"] != "auto" and checkpoint(question) == MODELS[question["model"]]:
        found["gemm"] = question["weight_dtype"]
        if question["is_moe"]:
            found["moe"] = question["weight_dtype"]
    return found


class Aiconfigurator:
    """Its estimate of aggregated serving at a steady batch of as many requests as are in flight."""

    def __init__(self) -> None:
        self._estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
        self._newest = importlib.import_module("aiconfigurator.sdk.perf_database").get_latest_database_version

    def ask(self, question: Question) -> Answer:
        """As its authors map such rows in their own regression test: nominal lengths, concurrency as batch size."""
        passed = {
            "mode": "agg",
            "model_path": checkpoint(question),
            "system_name": question["system"],
            "backend_name": "vllm",
            "backend_version": self._newest(system=question["system"], backend="vllm"),
            "isl": question["input_tokens"][1],
            "osl": question["output_tokens"][1],
            "batch_size": question["concurrency"],
            "tp_size": question["tensor_parallel_size"],
            "free_gpu_memory_fraction": question["gpu_memory_utilization"],
            "max_seq_len": question["max_model_len"],
            **(
                {"moe_tp_size": question["tensor_parallel_size"], "moe_ep_size": 1}
                if question["is_moe"]
                else {}
            ),
            **{f"{name}_quant_mode": dtype for name, dtype in dtypes(question).items()},
        }
        said = self._estimate(**passed)
        return {"ttft_ms": float(said.ttft), "tpot_ms": float(said.tpot), "passed": passed}


class Aisimulate:
    """Its replay of the closed loop, request by request, in its own engine."""

    def __init__(self) -> None:
        replay = importlib.import_module("aisimulate.sweeper.replay")
        self._spec, self._deployment = replay.ReplaySpec, replay.BackendDeploymentSpec
        self._runners = importlib.import_module("aisimulate.runner").EngineReplayRunnerFactory()
        self._newest = importlib.import_module("aisimulate.sdk.perf_database").get_latest_database_version

    def ask(self, question: Question) -> Answer:
        """As its authors replay such rows to judge it; several seeds, averaged, where ours are."""
        engine = self._engine(question)
        drawn = [self._replay(question, engine, seed) for seed in range(question["seeds"])]
        return {
            "ttft_ms": sum(one["mean_ttft_ms"] for one in drawn) / len(drawn),
            "tpot_ms": sum(one["mean_tpot_ms"] for one in drawn) / len(drawn),
            "passed": {**engine, **self._workload(question, 0), "seeds": question["seeds"]},
        }

    def _engine(self, question: Question) -> dict[str, Any]:
        names = {"gemm": "aic_gemm_dtype", "moe": "aic_moe_dtype", "kvcache": "aic_kv_cache_dtype"}
        experts = {"aic_moe_tp_size": question["tensor_parallel_size"], "aic_moe_ep_size": 1}
        return {
            "engine_type": "vllm",
            "aic_backend": "vllm",
            "aic_backend_version": self._newest(system=question["system"], backend="vllm"),
            "aic_system": question["system"],
            "aic_model_path": checkpoint(question),
            "aic_tp_size": question["tensor_parallel_size"],
            "aic_pp_size": 1,
            "aic_attention_dp_size": 1,
            **(experts if question["is_moe"] else {}),
            **{names[name]: dtype for name, dtype in dtypes(question).items()},
            "block_size": question["block_size"],
            "max_num_seqs": question["max_num_seqs"],
            "max_num_batched_tokens": question["max_num_batched_tokens"],
            "max_model_len": question["max_model_len"],
            "gpu_memory_utilization": question["gpu_memory_utilization"],
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
        }

    def _workload(self, question: Question, seed: int) -> dict[str, Any]:
        low, high = question["input_tokens"]
        return {
            "isl": high,
            "osl": question["output_tokens"][1],
            "request_count": question["requests"],
            "concurrency": question["concurrency"],
            "replay_concurrency": question["concurrency"],
            "random_range_ratio": round(low / high, 3),
            "random_seed": seed,
            "length_sampler": "numpy_random_state",
            "ignore_eos": True,
        }

    def _replay(self, question: Question, engine: dict[str, Any], seed: int) -> dict[str, float]:
        spec = self._spec(
            backend_deployment=self._deployment(
                deployment_mode="agg",
                backend="vllm",
                backend_version=engine["aic_backend_version"],
                agg_engine_args=engine,
                num_workers=1,
            ),
            workload=self._workload(question, seed),
            goal={},
            concurrency=question["concurrency"],
        )
        runner = self._runners.create(0)
        try:
            metrics: dict[str, float] = runner.run(spec).metrics
        finally:
            runner.close()
        if metrics["completed_requests"] != question["requests"]:
            raise ValueError(
                f"{metrics['completed_requests']:.0f} of {question['requests']} requests completed"
            )
        return metrics


PEERS: Final = {"aiconfigurator": Aiconfigurator, "aisimulate": Aisimulate}


def answers(name: str, questions: list[Question]) -> dict[str, Any]:
    """Ask everything; a question that the peer gives no answer to costs that answer alone."""
    try:
        peer = PEERS[name]()
    except ImportError as error:
        return {"absent": str(error)}
    return {"version": _version(name), "answers": [_answer(peer, question) for question in questions]}


def _answer(peer: Aiconfigurator | Aisimulate, question: Question) -> Answer:
    try:
        return peer.ask(question)
    except Exception as error:  # noqa: BLE001  whatever a peer raises is its refusal, and is printed as such
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of no installed distribution"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    peer_name, asked, answered = sys.argv[1:]
    found = answers(peer_name, json.loads(Path(asked).read_text(encoding="utf-8")))
    Path(answered).write_text(json.dumps(found), encoding="utf-8")
