"""Multi-turn sessions: a prompt repeats the talk so far and adds new tokens; prefixes grow and are shared.

A session starts with one of a few system prompts. The prompt of a turn is the system prompt, all earlier
prompts and answers, and the new user tokens. Turns follow each other by a gap from arrival to arrival (answer
and thinking time together: an open stream does not wait for answers).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from workloads.lengths import Lengths


class SessionsConfig(BaseModel):
    """Shape of the sessions; input_tokens of the workload are then the new tokens of a turn."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    turns: Lengths = 4
    """Turns of a session; a length like any other, at least 1."""
    turn_gap_s: Annotated[float, Field(gt=0)] = 30.0
    """Mean seconds from one turn's arrival to the next."""
    turn_gap_burstiness: Annotated[float, Field(gt=0)] = 1.0
    """Gamma shape of that gap; 1 is exponential."""
    system_prompt_tokens: Annotated[int, Field(strict=True, ge=0)] = 0
    """Tokens of the system prompt in front of every session."""
    system_prompts: Annotated[int, Field(strict=True, ge=1)] = 1
    """How many different system prompts there are; each session has one of them."""
    max_input_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """A session ends before the turn whose prompt would be longer."""
    block_tokens: Annotated[int, Field(strict=True, ge=1)] = 16
    """Tokens of a prefix block."""
