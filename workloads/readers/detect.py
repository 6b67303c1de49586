"""Which format a file has, by its content, and the one door to all readers."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from workloads.errors import ConfigError, TraceFormatError
from workloads.readers.source import parse_json, read_bytes, read_text, shown
from workloads.trace import Trace


class Reader(Protocol):
    """A module of this package: one function."""

    def read(self, path: Path, *, drop_failed: bool) -> Trace:
        """Read the file."""


FORMATS = (
    "parquet",
    "azure",
    "mooncake",
    "bailian",
    "burstgpt",
    "vidur",
    "vllm",
    "guidellm",
    "aiperf",
    "inference-perf",
)

_CSV = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "vidur": {"num_prefill_tokens", "num_decode_tokens"},
}
_SUMMARIES = {  # files of the same clients that people try first
    "aiperf_version": "profile_export.jsonl",
    "benchmark_time_seconds": "per_request_lifecycle_metrics.json",
    "Run Info": "benchmarks.json",
}
_NEAR = 2  # columns of a format that name it, though one is missing


def read_trace(path: str | Path, *, format: str | None = None, drop_failed: bool = False) -> Trace:  # noqa: A002
    """Read a trace of any known format; failed requests are an error unless `drop_failed` keeps them out."""
    where = Path(path)
    name = detect_format(where) if format is None else check_format(format)
    return load_reader(name).read(where, drop_failed=drop_failed)


def load_reader(name: str) -> Reader:
    """Import the reader of a format: each is only loaded when used."""
    module: Any = importlib.import_module(f"workloads.readers.{name.replace('-', '_')}")
    reader: Reader = module
    return reader


def check_format(name: str) -> str:
    """Return the name if it is a format's."""
    if name in FORMATS:
        return name
    near = difflib.get_close_matches(name, FORMATS, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FORMATS)}"
    raise ConfigError(f"format: {name!r} is not a trace format; {hint}")


def detect_format(path: str | Path) -> str:
    """Return the format's name, by content alone."""
    where = Path(path)
    if read_bytes(where).startswith(b"PAR1"):
        return "parquet"
    text = read_text(where)
    first = text.lstrip()[:1]
    if first == "[":
        return _of_list(where, text)
    if first == "{":
        return _of_object(where, text)
    return _of_header(where, text)


def _of_header(path: Path, text: str) -> str:
    first = text.strip().partition("\n")[0]
    header = {name.strip().strip('"') for name in first.split(",")}
    hits = {name: len(columns & header) for name, columns in _CSV.items()}
    best = max(hits, key=lambda name: hits[name])
    if hits[best] >= min(_NEAR, len(_CSV[best])) or hits[best] == len(_CSV[best]):
        return best
    if hits["vidur"]:
        return "vidur"
    raise _unknown(path, "the first line is " + shown(first))


def _of_list(path: Path, text: str) -> str:
    records = parse_json(path, None, text)
    if records and isinstance(records[0], dict) and {"start_time", "info"} <= records[0].keys():
        return "inference-perf"
    if not records:
        raise TraceFormatError(path, None, "an empty list; a trace has at least one request")
    raise _unknown(path, "a JSON list of other things than inference-perf's records")


def _of_object(path: Path, text: str) -> str:
    head, _, rest = text.lstrip().partition("\n")
    try:
        first: Any = json.loads(head)
    except (ValueError, RecursionError):
        one_a_line = rest.lstrip()[:1] in {"{", ""}
        first = parse_json(path, 1 if one_a_line else None, head if one_a_line else text)
    name = _of_keys(first) if isinstance(first, dict) else None
    if name is None:
        raise _unknown(path, f"a JSON object with the keys {', '.join(list(first)[:8])}")
    return name


def _of_keys(row: Mapping[str, Any]) -> str | None:
    if "benchmarks" in row:
        return "guidellm"
    if {"metadata", "metrics"} <= row.keys():
        return "aiperf"
    if "num_prompts" in row or {"input_lens", "output_lens"} <= row.keys():
        return "vllm"
    if "chat_id" in row or "parent_chat_id" in row:
        return "bailian"
    text = {"text", "text_input", "messages", "input_length", "hash_ids"}
    return "mooncake" if row.keys() & text else None


def _unknown(path: Path, what: str) -> TraceFormatError:
    for sign, instead in _SUMMARIES.items():
        if sign in what:
            return TraceFormatError(path, None, f"a summary without requests; give {instead} instead")
    return TraceFormatError(path, 1, f"unknown format: {what}; known formats: {', '.join(FORMATS)}")
