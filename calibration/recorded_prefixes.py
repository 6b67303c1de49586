"""What the prompts of a recorded run share, as block contents: token ids are not recorded, and are not needed.

A prompt is its parent's prompt, the parent's answer, and new tokens; a first prompt starts with one of the system
prompts. Two blocks are equal where their tokens come from the same places after equal prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibration.step_log import RecordedRequest
from workloads.errors import ConfigError
from workloads.trace import BlockHashes

SYSTEM_PROMPT_TOKENS = 256
"""Length of each system prompt of the recorded multi-turn runs, as their description says."""

Run = tuple[str, int]
"""Tokens of one origin, and how many."""


def block_contents(requests: Sequence[RecordedRequest], block_size: int) -> BlockHashes:
    """Contents of the full blocks of every prompt and answer, in the order of `requests`."""
    by_id = {request.request_id: request for request in requests}
    known: dict[tuple[object, ...], int] = {}
    counts: list[int] = []
    ids: list[int] = []
    for request in requests:
        origins = _origins(request, by_id)
        answer = (f"answer {request.request_id}", request.output_tokens)
        blocks = _blocks([*origins, answer], block_size)
        before = -1
        for block in blocks:
            before = known.setdefault((before, *block), len(known))
            ids.append(before)
        counts.append(len(blocks))
    return BlockHashes.build(block_size, counts, ids)


def _origins(request: RecordedRequest, by_id: dict[str, RecordedRequest]) -> list[Run]:
    """Where the tokens of a prompt come from, in order."""
    if request.parent:
        parent = by_id.get(request.parent)
        if parent is None:
            raise ConfigError(
                f"requests.csv: {request.request_id} names a parent {request.parent} that is not there"
            )
        runs = [*_origins(parent, by_id), (f"answer {parent.request_id}", parent.output_tokens)]
    elif request.system_prompt:
        runs = [(f"system {request.system_prompt}", min(SYSTEM_PROMPT_TOKENS, request.prompt_tokens))]
    else:
        runs = []
    new = request.prompt_tokens - sum(length for _, length in runs)
    if new < 0:
        raise ConfigError(f"requests.csv: {request.request_id} is shorter than the talk that it continues")
    return [*runs, (f"prompt {request.request_id}", new)]


def _blocks(runs: Sequence[Run], block_size: int) -> list[tuple[tuple[str, int, int], ...]]:
    """Cut runs of tokens into full blocks of (origin, first, last) pieces."""
    blocks: list[tuple[tuple[str, int, int], ...]] = []
    block: list[tuple[str, int, int]] = []
    room = block_size
    for origin, length in runs:
        at = 0
        while at < length:
            taken = min(room, length - at)
            block.append((origin, at, at + taken))
            at += taken
            room -= taken
            if room == 0:
                blocks.append(tuple(block))
                block, room = [], block_size
    return blocks
