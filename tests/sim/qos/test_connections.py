"""A tier's requests in flight, over all replicas."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.records import Status
from sim.metrics import peak_concurrency
from tests.sim.doubles import constant_cost
from tests.sim.engines import run
from tests.sim.qos.tiers import contracts, tenants_trace, tier

loads = st.lists(
    st.tuples(
        st.integers(0, 30).map(lambda step: step * 700),
        st.integers(1, 20),
        st.integers(1, 9),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=40,
).map(sorted)


@settings(deadline=None)
@given(load=loads, most=st.integers(1, 4), replicas=st.integers(1, 3))
def test_the_cap_is_kept_and_used(load, most, replicas):
    """Never more than so many at once; one is refused only while just so many are in flight."""
    what = contracts(tier("a", "0.5", connections=most), tier("b", "0.5"), hard=True)
    done, _ = run(tenants_trace(*load), constant_cost(1000), contracts=what, replicas=replicas)
    columns = done.columns
    tenant = np.array([request[3] for request in load])
    refused = columns["status"] == Status.EXCEEDS_CONNECTIONS
    assert not refused[tenant == 1].any()
    assert (done.completed | refused).all()
    mine = (tenant == 0) & done.completed
    start, end = columns["arrival_ns"][mine], columns["last_token_ns"][mine]
    assert peak_concurrency(start, end) <= most
    for at in columns["arrival_ns"][refused]:
        # At one instant steps end first; whoever arrived then and got in may have come before or after.
        assert ((start <= at) & (end > at)).sum() == most
    assert (columns["replica"][refused] == -1).all()


def test_a_closed_loop_goes_on_after_a_refusal():
    load = [(0, 4, 5, 0)] * 6
    what = contracts(tier("a", "0.5", connections=1), tier("b", "0.5"), hard=True)
    done, _ = run(tenants_trace(*load), constant_cost(1000), contracts=what, max_concurrency=2)
    statuses = done.columns["status"].tolist()
    assert statuses[0] == Status.COMPLETED
    assert statuses.count(Status.EXCEEDS_CONNECTIONS) == 5  # each is refused at once, while the first runs
