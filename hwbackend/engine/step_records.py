"""What an engine did, step by step: enough to replay every decision, and to fit the cost of a step.

Beside memory, as the run directory of `servetwin validate steps` (calibration/step_log.py reads it): meta.json,
requests.csv, steps.csv. Times there are seconds with nine decimals, so that whole nanoseconds come back.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable
from sim.kv.transfer import Transfer


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step; or, where nobody computes, a look that changed something all the same. Sequences are named by requests.

    chunks     (request, tokens computed before, new tokens) of the prompts
    decoding   requests that took a token, in running order
    contexts   tokens that each of these attended to
    read_tokens  tokens that the decodes attend to together: all contexts, or what an access pattern reads of them
    landed     numbers of the transfers (in the order in which they were asked for) that the step learnt of
    waited_ns  of its time, spent waiting for transfers
    """

    start_ns: int
    end_ns: int
    chunks: tuple[tuple[int, int, int], ...]
    decoding: tuple[int, ...]
    contexts: tuple[int, ...]
    preempted: tuple[int, ...]
    running: int
    waiting: int
    used_blocks: int
    read_tokens: int = 0
    landed: tuple[int, ...] = ()
    waited_ns: int = 0

    @property
    def computes(self) -> bool:
        """Whether it is a step."""
        return bool(self.chunks or self.decoding)

    @property
    def batch(self) -> tuple[Any, ...]:
        """What was decided, without when."""
        return self.chunks, self.decoding, self.preempted, self.running, self.waiting


@dataclass(frozen=True, slots=True)
class Batch:
    """A plan as facts, taken before the step changes the sequences."""

    chunks: tuple[tuple[int, int, int], ...]
    decoding: tuple[int, ...]
    contexts: tuple[int, ...]
    preempted: tuple[int, ...]
    running: int
    waiting: int
    used_blocks: int

    @classmethod
    def of(cls, core: EngineCore, plan: BatchPlan) -> Batch:
        decoding = [seq for seq in core.running if seq.joined_step >= 0]
        return cls(
            tuple((seq.index, seq.computed, new_tokens) for seq, new_tokens in plan.chunks),
            tuple(seq.index for seq in decoding),
            tuple(seq.target + core.step - seq.joined_step + 1 for seq in decoding),
            tuple(seq.index for seq in plan.preempted),
            core.num_running,
            core.num_waiting,
            plan.memory[0],
        )

    def ran(
        self,
        start_ns: int,
        end_ns: int,
        read_tokens: int = 0,
        landed: Sequence[int] = (),
        waited_ns: int = 0,
    ) -> StepRecord:
        """Return the same with its times."""
        return StepRecord(
            start_ns,
            end_ns,
            self.chunks,
            self.decoding,
            self.contexts,
            self.preempted,
            self.running,
            self.waiting,
            self.used_blocks,
            read_tokens,
            tuple(landed),
            waited_ns,
        )


def looked(core: EngineCore, now_ns: int, landed: Sequence[int]) -> StepRecord:
    """A look that found nothing to compute, and changed something all the same."""
    counts = core.num_running, core.num_waiting, core.allocator.used_blocks
    return StepRecord(now_ns, now_ns, (), (), (), (), *counts, landed=tuple(landed))


class TransferNumbers:
    """Names transfers by the order in which an engine asked for them."""

    def __init__(self) -> None:
        self._number: dict[Transfer, int] = {}
        self._asked = 0

    def asked(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self._number[transfer] = self._asked
            self._asked += 1

    def landed(self, transfer: Transfer) -> int:
        return self._number.pop(transfer)


def write_step_log(
    directory: Path,
    records: Sequence[StepRecord],
    table: RequestTable,
    core: EngineCore,
    *,
    engine: str,
    version: str,
    name: str,
    prefix_caching: bool,
) -> None:
    """Write the run into an existing folder."""
    meta = {
        "run": name,
        "engine": engine,
        "version": version,
        "block_size": core.limits.block_size,
        "num_kv_blocks": core.num_blocks + 1,  # with the engine's own null block, as engines count
        "engine_args": {
            "max_num_seqs": core.limits.max_num_seqs,
            "max_num_batched_tokens": core.limits.max_num_batched_tokens,
            "max_model_len": core.max_model_len,
            "enable_prefix_caching": prefix_caching,
        },
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    served = sorted({index for record in records for index, _, _ in record.chunks})
    _write(directory / "requests.csv", [_request(index, table) for index in served])
    _write(directory / "steps.csv", [_step(record, core.num_blocks) for record in records if record.computes])


def _request(index: int, table: RequestTable) -> dict[str, Any]:
    arrival = _seconds(table.arrival_ns[index])
    return {
        "request_id": f"r{index}",
        "arrival_s": arrival,
        "admit_s": arrival,
        "prompt_tokens": table.input_tokens[index],
        "output_tokens": table.output_tokens[index],
    }


def _step(record: StepRecord, num_blocks: int) -> dict[str, Any]:
    return {
        "t_start_s": _seconds(record.start_ns),
        "iter_s": _seconds(record.end_ns - record.start_ns),
        "n_prefill_tokens": sum(new for _, _, new in record.chunks),
        "n_decode_seqs": len(record.decoding),
        "decode_ctx_tokens": sum(record.contexts) - len(record.contexts),
        "n_preempted": len(record.preempted),
        "n_running": record.running,
        "n_waiting": record.waiting,
        "kv_usage": round(record.used_blocks / num_blocks, 4),
        "prefill_detail": ";".join(f"r{index}:{before}+{new}" for index, before, new in record.chunks),
    }


def _seconds(time_ns: int) -> str:
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["request_id"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
