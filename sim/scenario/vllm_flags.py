"""A `vllm serve` command line as the fields of a scenario, and what of it is not simulated."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from sim.cost.cuda_graphs import CudaGraphMode
from sim.errors import ConfigError
from sim.model import load_model

# Flags that change nothing that is simulated: where the server listens, what it logs, where weights lie.
NEUTRAL: Final = frozenset(
    """
    host port uvicorn-log-level api-key served-model-name download-dir load-format tokenizer tokenizer-mode
    trust-remote-code revision disable-log-requests disable-log-stats enable-log-requests chat-template
    response-role ssl-keyfile ssl-certfile root-path middleware max-log-len hf-token generation-config
    enable-auto-tool-choice tool-call-parser reasoning-parser distributed-executor-backend allowed-origins
    allow-credentials allowed-methods allowed-headers seed enable-chunked-prefill config-format hf-overrides
    collect-detailed-traces otlp-traces-endpoint show-hidden-metrics-for-version uds
    """.split()  # noqa: SIM905  a list of words reads better than sixty quoted ones
)
SWITCHES: Final = frozenset(
    """
    enforce-eager enable-prefix-caching no-enable-prefix-caching async-scheduling no-async-scheduling
    enable-chunked-prefill no-enable-chunked-prefill trust-remote-code disable-log-requests disable-log-stats
    enable-log-requests enable-auto-tool-choice allow-credentials enable-expert-parallel enable-lora
    """.split()  # noqa: SIM905
)
SHORT: Final = {
    "-tp": "tensor-parallel-size",
    "-dp": "data-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-q": "quantization",
    "-cc": "compilation-config",
}
_QUANTISED: Final = re.compile(r"-(fp8|fp8-dynamic|fp8-kv|nvfp4|fp4)$", re.IGNORECASE)


@dataclass
class VllmCommand:
    """What a command line says: scenario fields by path, and remarks on what has no counterpart."""

    fields: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def engine_defaults(memory_bytes: int, device: str) -> dict[str, Any]:
    """What `vllm serve` uses where its command line says nothing (vLLM `EngineArgs`, V1, API server)."""
    large = memory_bytes >= 70 * 2**30 and "a100" not in device.lower()
    return {
        "engine.max_num_seqs": 1024 if large else 256,
        "engine.max_num_batched_tokens": 8192 if large else 2048,
        "engine.gpu_memory_utilization": 0.92,
    }


def parse_vllm_command(command: str) -> VllmCommand:
    """Read `vllm serve MODEL --flag value ...`; raises ConfigError where the line itself is wrong."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--from-vllm: not a command line: {error}") from None
    result = VllmCommand()
    model = None
    for name, value in _flags(_after_the_program(words)):
        if name in ("", "model"):
            if model is not None:
                raise ConfigError(f"--from-vllm: two models, {model!r} and {value!r}")
            model = value
        else:
            _apply(name, value, result)
    if model is None:
        raise ConfigError("--from-vllm: names no model; write 'vllm serve MODEL --flag value ...'")
    _name_model(model, result)
    result.fields.setdefault("engine.enable_prefix_caching", True)  # the engine's own default
    return result


def _after_the_program(words: list[str]) -> list[str]:
    """What follows `vllm serve`, `python -m vllm.entrypoints...api_server`, or the image of `docker run`."""
    for at, word in enumerate(words):
        if (
            word == "serve"
            or word.startswith("vllm.entrypoints.")
            or word.split("/")[-1].startswith("vllm-openai")
        ):
            return words[at + 1 :]
    return words


def _name_model(model: str, result: VllmCommand) -> None:
    """Find the shipped model; a quantised checkpoint is its base model with another weight dtype."""
    if Path(model).exists():
        result.fields["model"] = model
        return
    base = _QUANTISED.sub("", model)
    result.fields["model"] = load_model(base).name
    if base != model:
        dtype = "nvfp4" if "fp4" in model.lower() else "fp8"
        result.fields.setdefault("hardware.weight_dtype", dtype)
        result.remarks.append(f"{model}: taken as {base} with weight_dtype {dtype}")


def _flags(words: list[str]) -> list[tuple[str, str | None]]:
    """Split words into (flag without dashes, value); the model has an empty flag."""
    found: list[tuple[str, str | None]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            found.append(("", word))
            continue
        flag, equals, value = word.partition("=")
        name = SHORT.get(flag, flag.lstrip("-").replace("_", "-"))
        if equals:
            found.append((name, value))
        elif name in SWITCHES:
            found.append((name, None))
        elif at < len(words) and not words[at].startswith("--"):
            values = [words[at]]
            at += 1
            while name == "cudagraph-capture-sizes" and at < len(words) and words[at].isdigit():
                values.append(words[at])
                at += 1
            found.append((name, " ".join(values)))
        else:
            found.append((name, None))
    return found


def _apply(name: str, value: str | None, result: VllmCommand) -> None:
    if name in SWITCHES and name in _SWITCH_FIELDS:
        path, setting = _SWITCH_FIELDS[name]
        result.fields[path] = setting
    elif name in _VALUE_FIELDS:
        path, convert = _VALUE_FIELDS[name]
        if value is None:
            raise ConfigError(f"--from-vllm: --{name} needs a value")
        try:
            converted = convert(value)
        except ValueError as error:
            raise ConfigError(f"--from-vllm: --{name} {value}: {error}") from None
        if path and converted is not None:
            result.fields[path] = converted
    elif name == "compilation-config":
        _compilation(value, result)
    elif name == "pipeline-parallel-size":
        if value != "1":
            raise ConfigError(
                f"--from-vllm: --{name} {value}: only 1 is simulated; use tensor parallelism instead"
            )
    elif name not in NEUTRAL:
        result.remarks.append(f"--{name}{f' {value}' if value else ''} is not simulated")


def _compilation(text: str | None, result: VllmCommand) -> None:
    """Read a compilation config; of its many keys those of CUDA graphs are simulated."""
    try:
        config = json.loads(text or "")
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"--from-vllm: --compilation-config {text}: a JSON object is expected")
    for key, value in config.items():
        if key == "cudagraph_mode":
            if str(value).lower() not in get_args(CudaGraphMode):
                known = ", ".join(mode.upper() for mode in get_args(CudaGraphMode))
                raise ConfigError(f"--from-vllm: cudagraph_mode {value} is not simulated; known are {known}")
            result.fields["engine.cudagraph_mode"] = str(value).lower()
        elif key == "cudagraph_capture_sizes":
            result.fields["engine.cudagraph_capture_sizes"] = value
        else:
            result.remarks.append(f"--compilation-config: {key} is not simulated")


def _count(text: str) -> int:
    """Read a whole number as vLLM does: 8k = 8000, 8K = 8192, likewise m and M."""
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    try:
        return int(float(digits) * factor)
    except ValueError:
        raise ValueError("a whole number is expected, such as 8192 or 8k") from None


def _model_len(text: str) -> int | None:
    return None if text in ("auto", "-1") else _count(text)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number between 0 and 1 is expected") from None


def _kv_dtype(text: str) -> str:
    return "fp8" if text.startswith("fp8") else _one_of(text, "auto", "bfloat16")


def _weight_dtype(text: str) -> str:
    known = {"fp8": "fp8", "modelopt": "fp8", "nvfp4": "nvfp4", "modelopt_fp4": "nvfp4"}
    return known.get(text) or _one_of(text, *known)


def _dtype(text: str) -> None:
    """Check only: every 16-bit type costs the same."""
    _one_of(text, "auto", "bfloat16", "float16", "half")


def _one_of(text: str, *known: str) -> str:
    if text not in known:
        raise ValueError(f"is not simulated; known are {', '.join(known)}")
    return text


def _sizes(text: str) -> list[int]:
    return [_count(part) for part in text.replace(",", " ").split()]


_SWITCH_FIELDS: Final[dict[str, tuple[str, Any]]] = {
    "enforce-eager": ("engine.enforce_eager", True),
    "enable-prefix-caching": ("engine.enable_prefix_caching", True),
    "no-enable-prefix-caching": ("engine.enable_prefix_caching", False),
    "async-scheduling": ("engine.async_scheduling", True),
    "no-async-scheduling": ("engine.async_scheduling", False),
    "no-enable-chunked-prefill": ("policies.batcher", "continuous"),
}
_VALUE_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "max-num-seqs": ("engine.max_num_seqs", _count),
    "max-num-batched-tokens": ("engine.max_num_batched_tokens", _count),
    "max-model-len": ("engine.max_model_len", _model_len),
    "block-size": ("engine.block_size", _count),
    "gpu-memory-utilization": ("engine.gpu_memory_utilization", _share),
    "num-gpu-blocks-override": ("engine.num_gpu_blocks_override", _count),
    "kv-cache-dtype": ("engine.kv_cache_dtype", _kv_dtype),
    "cudagraph-capture-sizes": ("engine.cudagraph_capture_sizes", _sizes),
    "tensor-parallel-size": ("hardware.tensor_parallel_size", _count),
    "data-parallel-size": ("cluster.replicas", _count),
    "quantization": ("hardware.weight_dtype", _weight_dtype),
    "dtype": ("", _dtype),
}
