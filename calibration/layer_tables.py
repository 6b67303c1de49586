"""Tables of whole layers: what each operation of a model takes inside the engine, as LLMServingSim's profiler writes.

    GPU/MODEL/meta.yaml                     engine version and GPU of the measurement
    GPU/MODEL/tpN/dense.parquet             layer, tokens, time_us: one instance of an operation, on one of N GPUs
    GPU/MODEL/tpN/per_sequence.parquet      layer, sequences, time_us: LM head and sampler
    GPU/MODEL/tpN/attention.parquet         prefill_chunk, kv_prefill, n_decode, kv_decode, time_us

The operations of one layer run one after the other, so the weights of the others push keys and values out of L2 between
two visits, as they do in a served model; a table of kernels run over and over does not see that. One attention launch
computes a chunk, or decodes of equal context, or both. All in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from calibration.collection import LAYERS, Collection
from calibration.devices import LAYER_DEVICES
from calibration.tables import KEYS, Column, Table, TableError, clean, read_columns
from sim.model import ModelSpec, load_model

DTYPE: Final = "bfloat16"
MODELS: Final = {"Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b"}
"""Folders whose name is not that of a model here."""


def read_layers(folder: Path) -> Collection:
    """Read all models of one GPU."""
    if folder.name not in LAYER_DEVICES:
        raise TableError(
            f"{folder}: layer tables of an unknown GPU; a folder is named {', '.join(LAYER_DEVICES)}"
        )
    name, device = LAYER_DEVICES[folder.name]
    layouts = [_Layout.of(path.parent) for path in sorted(folder.glob(LAYERS))]
    if not layouts:
        raise TableError(f"{folder}: no layer tables; {LAYERS} are expected")
    parts: dict[str, list[Table]] = {}
    for layout in layouts:
        for table in layout.tables():
            parts.setdefault(table.name, []).append(table)
    tables = {name: _together(folder, tables) for name, tables in parts.items()}
    engines = sorted({layout.engine for layout in layouts})
    return Collection(name, ", ".join(engines), device, tables, layers=True)


@dataclass(frozen=True)
class _Layout:
    """The tables of one model on `tp` GPUs."""

    folder: Path
    engine: str
    model: ModelSpec
    tp: int

    @classmethod
    def of(cls, folder: Path) -> _Layout:
        path = folder.parent / "meta.yaml"
        try:
            meta = yaml.safe_load(path.read_text(encoding="utf-8"))
            engine, tp = f"vLLM {meta['vllm_version']}", int(folder.name.removeprefix("tp"))
        except OSError as error:
            raise TableError(f"{path}: cannot be read ({error.strerror})") from error
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise TableError(f"{path}: not the settings of a layer profile ({error!r})") from error
        model = folder.parent.name
        return cls(folder, engine, load_model(MODELS.get(model, model.lower())), tp)

    def tables(self) -> Iterator[Table]:
        dense = _read(self.folder / "dense.parquet", ("layer", "tokens"))
        heads = _read(self.folder / "per_sequence.parquet", ("layer", "sequences"))
        yield self._gemms(dense, heads)
        yield self._elementwise(dense)
        attention = _read(
            self.folder / "attention.parquet", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        yield from self._attention(attention)

    @property
    def _heads(self) -> tuple[int, int]:
        return self.model.num_heads // self.tp, self.model.kv_heads_per_gpu(self.tp)

    def _gemms(self, dense: Mapping[str, Column], heads: Mapping[str, Column]) -> Table:
        model, tp = self.model, self.tp
        queries, keys = self._heads
        hidden, inter = model.hidden_size, model.intermediate_size // tp
        shapes = {
            "qkv_proj": ((queries + 2 * keys) * model.head_dim, hidden),
            "o_proj": (hidden, queries * model.head_dim),
            "gate_up_proj": (2 * inter, hidden),
            "down_proj": (hidden, inter),
        }
        rows = [_rows(dense, layer, "tokens", shape) for layer, shape in shapes.items()]
        rows.append(_rows(heads, "lm_head", "sequences", (model.vocab_size // tp, hidden)))
        m, (n, k), us = (np.concatenate(part, axis=-1) for part in zip(*rows, strict=True))
        return self._table("gemm", {"dtype": np.full(len(m), DTYPE), "m": m, "n": n, "k": k}, us)

    def _elementwise(self, dense: Mapping[str, Column]) -> Table:
        """Bytes as `sim/cost/terms.py` counts them: what the operation before left in L2 does not count."""
        model, (queries, keys) = self.model, self._heads
        norm = 2 * model.hidden_size
        values = {
            "layernorm": norm,
            "final_layernorm": norm,
            "rotary_emb": (queries + keys) * model.head_dim,
            "act_fn": 3 * model.intermediate_size // self.tp,
        }
        rows = [_rows(dense, layer, "tokens", (1, 2 * count)) for layer, count in values.items()]
        tokens, (kernels, size), us = (np.concatenate(part, axis=-1) for part in zip(*rows, strict=True))
        return self._table("elementwise", {"kernels": kernels, "tokens": tokens, "bytes_per_token": size}, us)

    def _attention(self, rows: Mapping[str, Column]) -> Iterator[Table]:
        chunk, past, batch, kv_len, us = (
            rows[name] for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
        )
        prompts, decodes = batch == 0, chunk == 0
        one = np.ones_like(batch)
        yield self._table(
            "attention_prefill",
            self._layout(prompts) | {"batch": one[prompts], "isl": chunk[prompts], "past_kv": past[prompts]},
            us[prompts],
        )
        yield self._table(
            "attention_decode",
            self._layout(decodes) | {"batch": batch[decodes], "kv_len": kv_len[decodes]},
            us[decodes],
        )
        fresh = prompts & (past == 0)
        alone = dict(zip(chunk[fresh].tolist(), (1e-6 * us[fresh]).tolist(), strict=True))
        if not alone:
            raise TableError(
                f"{self.folder}: attention.parquet has no chunk alone without context (n_decode and kv_prefill 0)"
            )
        both = ~prompts & ~decodes & (past == 0) & np.isin(chunk, list(alone))
        chunk_s = np.array([alone[length] for length in chunk[both].tolist()])
        known = {
            "chunk": chunk[both],
            "chunk_s": chunk_s,
            "launch_s": np.full(len(chunk_s), min(alone.values())),
        }
        yield self._table(
            "attention_shared",
            self._layout(both) | {"batch": batch[both], "kv_len": kv_len[both]} | known,
            us[both],
        )

    def _layout(self, chosen: NDArray[np.bool_]) -> dict[str, Column]:
        count = int(chosen.sum())
        heads, kv_heads = self._heads
        fixed = {"heads": heads, "kv_heads": kv_heads, "head_dim": self.model.head_dim, "window": 0}
        return {"kv_dtype": np.full(count, DTYPE)} | {
            name: np.full(count, value) for name, value in fixed.items()
        }

    def _table(self, name: str, columns: dict[str, Column], time_us: Column) -> Table:
        return clean(self.folder, name, {key: columns[key] for key in KEYS[name]}, 1e-6 * time_us)


def _read(path: Path, axes: tuple[str, ...]) -> dict[str, Column]:
    columns = read_columns(path, [*axes, "time_us"])
    return {
        name: values if name == "layer" else values.astype(np.float64) for name, values in columns.items()
    }


def _rows(
    columns: Mapping[str, Column], layer: str, axis: str, shape: tuple[int, int]
) -> tuple[Column, Column, Column]:
    """Counts, shape (two rows of constants) and times of one operation; none where the model lacks it."""
    chosen = columns["layer"] == layer
    count = columns[axis][chosen]
    return (
        count,
        np.repeat(np.array(shape, dtype=np.float64)[:, None], len(count), axis=1),
        columns["time_us"][chosen],
    )


def _together(folder: Path, tables: list[Table]) -> Table:
    """Rows of several models as one table; shapes that two have in common are merged."""
    columns: dict[str, Any] = {
        key: np.concatenate([table[key] for table in tables]) for key in KEYS[tables[0].name]
    }
    return clean(folder, tables[0].name, columns, np.concatenate([table.time_s for table in tables]))
