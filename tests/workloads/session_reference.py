"""Sessions token by token: what every prompt and answer consists of, by the rules as they are told."""

from __future__ import annotations

from workloads.context.full import Full
from workloads.context.sliding_window import SlidingWindow
from workloads.context.summary import Summary

Token = tuple
Text = list[Token]


def requests_of(session: int, system: Text, talk: list[tuple[int, int]], policy) -> list[tuple[Text, Text]]:
    """Prompt and answer of every request of a session; `talk` holds the new and the answered tokens of each turn."""
    turns: list[tuple[Text, Text]] = []
    for number, (new, output) in enumerate(talk):
        turns.append(
            (
                [("said", session, number, at) for at in range(new)],
                [("answered", session, number, at) for at in range(output)],
            )
        )
    if isinstance(policy, Summary):
        return _summarising(session, system, turns, policy)
    sent = []
    for number, (new, answer) in enumerate(turns):
        kept = turns[:number]
        if isinstance(policy, SlidingWindow):
            kept = _latest(kept, policy)
        else:
            assert isinstance(policy, Full)
        sent.append((system + _text(kept) + new, answer))
    return sent


def _text(turns: list[tuple[Text, Text]]) -> Text:
    return [token for new, answer in turns for token in new + answer]


def _latest(turns, policy):
    kept = []
    for turn in reversed(turns):
        if policy.window_turns is not None and len(kept) == policy.window_turns:
            break
        if policy.window_tokens is not None and len(_text([turn, *kept])) > policy.window_tokens:
            break
        kept.insert(0, turn)
    return kept


def _summarising(session, system, turns, policy):
    sent, summary, kept, since, made = [], [], [], 0, 0
    for new, answer in turns:
        prompt = system + summary + _text(kept) + new
        due = policy.context_tokens is not None and len(prompt) > policy.context_tokens
        due |= policy.summarise_every is not None and since >= policy.summarise_every
        old, latest = kept[: max(len(kept) - policy.keep_turns, 0)], kept[-policy.keep_turns :]
        if policy.keep_turns == 0:
            latest = []
        if due and old:
            replaced = summary + _text(old)
            length = max(round(policy.summary_ratio * len(replaced)), 1)
            made += 1
            summary, kept, since = [("summary", session, made, at) for at in range(length)], latest, 0
            if policy.summary_request:
                sent.append((system + replaced, summary))
            prompt = system + summary + _text(kept) + new
        sent.append((prompt, answer))
        kept = [*kept, (new, answer)]
        since += 1
    return sent


def prefixes(text: Text, block: int, tokens: int | None = None) -> list[tuple]:
    """What each full block stands for: all tokens up to its end."""
    count = (len(text) if tokens is None else tokens) // block
    return [tuple(text[: (at + 1) * block]) for at in range(count)]


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
