"""What prompts share, from their text: block ids where a client recorded the prompts but no token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from workloads.trace import BlockHashes, Int64, Trace

BLOCK_TOKENS: Final = 16


def with_prefixes(trace: Trace, prompts: Sequence[str | None]) -> Trace:
    """Return the trace with what its prompts share; as it is where a prompt is missing or none share anything."""
    known = [prompt for prompt in prompts if prompt is not None]
    if len(known) < len(trace):
        return trace
    return replace(trace, hashes=prefix_blocks(known, trace.input_tokens))


def prompt_text(request: Any) -> str | None:  # noqa: ANN401 - whatever a client sent
    """Return the prompt of a request to /v1/completions or /v1/chat/completions; None where it has none as text.

    A request is its JSON, as text or read; guidellm has it under `body`.
    """
    if isinstance(request, str):
        try:
            request = json.loads(request)
        except ValueError:
            return None
    if not isinstance(request, Mapping):
        return None
    if isinstance(request.get("body"), Mapping):
        request = request["body"]
    prompt, messages = request.get("prompt"), request.get("messages")
    if isinstance(messages, list):
        return "\0".join(_said(message) for message in messages)
    return prompt if isinstance(prompt, str) else None


def _said(message: Any) -> str:  # noqa: ANN401 - whatever a client sent
    """Return who says what in a message, as text."""
    if not isinstance(message, Mapping):
        return str(message)
    content = message.get("content")
    said = content if isinstance(content, str) else json.dumps(content)
    return f"{message.get('role')}:{said}"


def prefix_blocks(prompts: Sequence[str], input_tokens: Int64) -> BlockHashes | None:
    """Return ids for blocks of 16 tokens, equal after an equal text; None where no two prompts begin alike.

    Text is cut at the file's mean length of a token, since where tokens end is not known: what two prompts share is
    right within a block or so where their text has the same kind of tokens. A block that the text does not fill, and a
    last one that is not full, is nobody else's.
    """
    width = BLOCK_TOKENS * sum(map(len, prompts)) / int(input_tokens.sum())
    if width < 1:
        return None
    known: dict[tuple[int, str], int] = {}
    counts, ids, shared = [], [], False
    own = -1
    for prompt, tokens in zip(prompts, input_tokens.tolist(), strict=True):
        filled = min(tokens // BLOCK_TOKENS, int(len(prompt) / width))
        counts.append(-(-tokens // BLOCK_TOKENS))
        before = -1
        for block in range(filled):
            key = (before, prompt[int(block * width) : int((block + 1) * width)])
            shared |= key in known
            before = known.setdefault(key, len(known))
            ids.append(before)
        ids += range(own, own - counts[-1] + filled, -1)
        own -= counts[-1] - filled
    return BlockHashes.build(BLOCK_TOKENS, counts, ids) if shared else None
