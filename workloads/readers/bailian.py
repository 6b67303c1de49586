"""Alibaba Bailian (Qwen) usage traces: JSONL with 16-token prefix blocks and chat turns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.errors import TraceFormatError
from workloads.readers.blocks import read_hashes
from workloads.readers.draft import Draft
from workloads.readers.source import json_time, json_whole, read_json_lines, shown
from workloads.trace import NS_PER_S, Int64, Trace, session_codes

KEYS = ("timestamp", "input_length", "output_length")
BLOCK_TOKENS = (16,)

_NO_PARENT = -1


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read Bailian JSONL: timestamps in s; the chats that follow a first one are its session."""
    rows = list(read_json_lines(path))
    lines = [line for line, _ in rows]
    columns = {name: [row.get(name) for _, row in rows] for name in KEYS}
    output = json_whole(path, lines, "output_length", columns["output_length"])
    inputs = json_whole(path, lines, "input_length", columns["input_length"])
    hashes, warnings = read_hashes(path, rows, inputs, BLOCK_TOKENS)
    return Draft(
        path=path,
        lines=lines,
        arrival_ns=json_time(path, lines, "timestamp", columns["timestamp"], NS_PER_S),
        input_tokens=inputs,
        output_tokens=output,
        failed=output == 0,
        names=KEYS,
        session=_sessions(path, rows),
        hashes=hashes,
        warnings=warnings,
    ).finish(drop_failed=drop_failed)


def _sessions(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> Int64:
    """Return the session of each row: that of its parent; a parent before the file began is a session too."""
    session: dict[Hashable, Hashable] = {}
    parents: dict[Hashable, Hashable] = {}
    names: list[Hashable] = []
    for line, row in rows:
        chat, parent = row.get("chat_id"), row.get("parent_chat_id", _NO_PARENT)
        for name, value in (("chat_id", chat), ("parent_chat_id", parent)):
            if type(value) not in (int, str):
                message = f"{name} is {shown(value)}; a number or text is expected (parent -1: a first turn)"
                raise TraceFormatError(path, line, message)
        if chat in session:
            raise TraceFormatError(path, line, f"chat_id {shown(chat)} appears a second time")
        parents[chat] = parent
        root = chat if parent == _NO_PARENT else session.get(parent, parent)
        session[chat] = root
        names.append(root)
    _check_cycles(path, parents, [line for line, _ in rows])
    return session_codes(names)


def _check_cycles(path: Path, parents: Mapping[Hashable, Hashable], lines: Sequence[int]) -> None:
    """Reject a chat that comes before itself; `parents` are in the order of the lines."""
    cleared: set[Hashable] = set()
    for line, first in zip(lines, parents, strict=True):
        trail: dict[Hashable, None] = {}
        chat = first
        while chat in parents and chat not in cleared and chat not in trail:
            trail[chat] = None
            chat = parents[chat]
        if chat in trail:
            steps = [*list(trail)[list(trail).index(chat) :], chat]
            chain = " <- ".join(shown(step) for step in steps[:4]) + (" <- ..." if len(steps) > 4 else "")
            raise TraceFormatError(path, line, f"parent_chat_id makes a chat its own parent: {chain}")
        cleared.update(trail)
