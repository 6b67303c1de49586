"""The step log of an engine as columns: what a fit to it takes, and the model that it serves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.step_log import StepLogRun, read_step_log
from sim.cost.cuda_graphs import capture_sizes, padded_tokens
from sim.curves.term import Float
from sim.model import ModelSpec, load_model
from workloads.errors import ConfigError

_ROWS_AVX512: Final = 6
"""Rows of a register block of oneDNN's matrix products, which engines on x86 CPUs call: of 32 vector registers one
holds an input and 4 hold weights, so (32 - 1 - 4) / 4 rows of 4 registers of outputs fit (`brgemm_utils.cpp`).
Decodes in batches of 1, 2, 4, 8, 16 and 32, as calibration sweeps have them, cannot tell such blocks from a cost by the
row. Served loads do: on a vLLM engine on a Xeon the 2nd to 6th sequence add 0.5 ms each, the 7th 3 to 5 ms."""


@dataclass(frozen=True)
class Steps:
    """Steps of a run as columns; chunks lie flat, `chunk_step` names their step."""

    run: str
    duration_s: Float
    decodes: Float
    context_tokens: Float
    prompt_tokens: Float
    sequences: Float
    computed_tokens: NDArray[np.int64]
    """Tokens that the products run over: padded to captured sizes."""
    chunk_new: Float
    chunk_context: Float
    chunk_step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.duration_s)

    def where(self, mask: NDArray[np.bool_]) -> Steps:
        place = np.cumsum(mask) - 1
        kept = mask[self.chunk_step]
        return Steps(
            run=self.run,
            duration_s=self.duration_s[mask],
            decodes=self.decodes[mask],
            context_tokens=self.context_tokens[mask],
            prompt_tokens=self.prompt_tokens[mask],
            sequences=self.sequences[mask],
            computed_tokens=self.computed_tokens[mask],
            chunk_new=self.chunk_new[kept],
            chunk_context=self.chunk_context[kept],
            chunk_step=place[self.chunk_step[kept]],
        )


@dataclass(frozen=True)
class EngineLog:
    """Runs of one engine serving one model."""

    model: ModelSpec
    engine: str
    runs: tuple[Steps, ...]
    kv_bytes: int
    """Of the engine's KV blocks."""
    row_block: int
    """Rows that products compute together; a part of a block takes as long as the whole."""


def read_engine_log(directories: Sequence[Path], model: str | None = None) -> EngineLog:
    """Read run directories; the model is that of their meta.json unless one is named."""
    runs = [read_step_log(directory) for directory in directories]
    named = load_model(model) if model else _model_of(directories[0])
    steps = tuple(_columns(run, _engine_args(path)) for run, path in zip(runs, directories, strict=True))
    blocks = max(run.num_gpu_blocks * run.block_size for run in runs)
    kv_bytes = blocks * named.kv_bytes_per_token()
    return EngineLog(named, runs[0].engine, steps, kv_bytes, _row_block(directories[0]))


def _columns(run: StepLogRun, args: dict[str, Any]) -> Steps:
    """Steps in which something was computed; contexts count the new token, as the price list has it."""
    busy = [step for step in run.steps if (step.prefill_tokens or step.decode_seqs) and step.duration_s > 0]
    if not busy:
        raise ConfigError(f"{run.name}: no step in which a token was computed")
    chunks = [(i, before, new) for i, step in enumerate(busy) for _, before, new in step.prefill_detail]
    flat = np.array(chunks, dtype=np.int64).reshape(-1, 3)
    decodes = np.array([step.decode_seqs for step in busy], dtype=np.float64)
    prompt = np.array([step.prefill_tokens for step in busy], dtype=np.float64)
    sizes = capture_sizes(
        run.max_num_seqs, run.max_num_batched_tokens, enforce_eager=bool(args.get("enforce_eager", False))
    )
    tokens = (decodes + prompt).astype(np.int64)
    padded = padded_tokens(sizes, int(max(tokens.max(), 1)))
    return Steps(
        run=run.name,
        duration_s=np.array([step.duration_s for step in busy]),
        decodes=decodes,
        context_tokens=np.array([step.decode_context_tokens for step in busy], dtype=np.float64) + decodes,
        prompt_tokens=prompt,
        sequences=decodes + np.bincount(flat[:, 0], minlength=len(busy)),
        computed_tokens=padded[tokens],
        chunk_new=flat[:, 2].astype(np.float64),
        chunk_context=flat[:, 1].astype(np.float64),
        chunk_step=flat[:, 0],
    )


def _engine_args(directory: Path) -> dict[str, Any]:
    args: dict[str, Any] = _meta(directory)["engine_args"]
    return args


def _row_block(directory: Path) -> int:
    """6 where the log names a CPU with AVX-512, else 1: a GPU's tiles are hidden by the weights that they read."""
    return _ROWS_AVX512 if "AVX512" in str(_meta(directory).get("cpu", "")) else 1


def _meta(directory: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    return meta


def _model_of(directory: Path) -> ModelSpec:
    """Return the model whose config stands in meta.json."""
    path, config = directory / "meta.json", _meta(directory).get("model")
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: no model config under 'model'; name one with --model")
    return replace(load_model(path), name=str(config.get("model_type", "logged")))
