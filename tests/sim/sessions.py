"""Traces of sessions for engine tests: turns that wait for the one before, with think times on a coarse clock."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from workloads.trace import BlockHashes, Trace, Turns

Session = tuple[
    int, list[tuple[int, int, int]]
]  # start [ns]; per turn: think time [ns], new and answered tokens

sessions = st.lists(
    st.tuples(
        st.integers(0, 30).map(lambda t: t * 1000),
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 1000, 2500, 20_000]),
                st.integers(1, 40),
                st.integers(1, 20),
            ),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=10,
)


def session_trace(talks: list[Session], block_size: int, *, closed: bool = False) -> Trace:
    """Prompts repeat everything said; block ids belong to the session. `closed`: all may start at once."""
    rows = []
    for code, (start, turns) in enumerate(talks):
        due, said = start, 0
        for number, (think, new, output) in enumerate(turns):
            due += think if number else 0
            rows.append((0 if closed else due, code, number, think if number else 0, said + new, output))
            said += new + output
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])
    place = {row: at for at, row in enumerate(order)}
    before = [-1 if rows[row][2] == 0 else place[row - 1] for row in order]
    due, code, _, think, prompt, output = (
        np.array(c) for c in zip(*(rows[row] for row in order), strict=True)
    )
    counts = -(-prompt // block_size)
    ids = [int(c) * 10_000 + at for c, count in zip(code, counts, strict=True) for at in range(count)]
    for row, end in enumerate(np.cumsum(counts).tolist()):
        if prompt[row] % block_size:
            ids[end - 1] = 10**9 + row
    return Trace.build(
        due,
        prompt,
        output,
        session=code,
        hashes=BlockHashes.build(block_size, counts, ids),
        turns=Turns.build(before, before, think),
    )
