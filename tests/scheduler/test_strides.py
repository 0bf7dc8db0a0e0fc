"""Rows booked by strides against the same rows booked at every step: what happens, and when, must be the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from depthchart import Geometry
from depthchart.cache import Memory
from depthchart.cost import LinearCost
from depthchart.events import EventLog
from depthchart.scheduler.loop import Scheduler
from depthchart.scheduler.reserve import OutputReserve
from depthchart.simulate import SimulatedExecutor
from depthchart.traces import TraceRequest


class StepByStep:
    """The simulated executor without its foresight."""

    def __init__(self, cost, requests):
        self._executor = SimulatedExecutor(cost, requests)

    def run(self, batch):
        return self._executor.run(batch)


def lived(kind, requests, geometry, pools, aborted=None, **settings):
    """(events with their times, step records, pools at the end); ``aborted``: (step, request)."""
    log = EventLog()
    memory = Memory(geometry, *pools, emit=log)
    reserve = OutputReserve(*settings.pop("reserve", (0.7, 0.1)))
    loop = Scheduler(memory, kind(LinearCost(), requests), log=log, reserve=reserve, **settings)
    for request in requests:
        loop.submit(request)
    records = []
    while not loop.idle:
        if (
            aborted is not None
            and loop.steps == aborted[0]
            and aborted[1] in {**loop.running, **loop.waiting}
        ):
            loop.abort(aborted[1])
            continue
        records.append(loop.step())
        memory.check_invariants(loop.lifecycle.holdings())
    return list(log), records, (memory.free_kv_tokens, memory.free_state_slots, memory.tree.evictable_tokens)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=8
)


@example(  # rows in strides are rows of the step: without that the planner gave up here
    [(0, 61, 0), (1, 29, 15), (1, 74, 9)],
    Geometry(4, chunk_width=4, chunked_prefill_size=12),
    160,
    11,
    True,
    (0.7, 0.1),
    "lof",
    None,
)
@settings(max_examples=150, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(
        [
            Geometry(4, chunk_width=4),
            Geometry(1, chunk_width=8),
            Geometry(16, 2, chunk_width=16),
            Geometry(4, chunk_width=4, chunked_prefill_size=12),
            Geometry(8, 2, chunk_width=16, chunked_prefill_size=32),
        ]
    ),
    st.sampled_from([160, 256, 1024]),
    st.integers(4, 40),
    st.booleans(),
    st.sampled_from([(0.7, 0.1), (0.05, 0.05), (1.0, 1.0)]),
    st.sampled_from(["fcfs", "lof", "priority", "random"]),
    st.none() | st.tuples(st.integers(0, 60), st.integers(0, 7)),
)
def test_strides_change_nothing(drawn, geometry, kv_tokens, slots, mixed, reserve, policy, abort):
    requests = [
        TraceRequest(f"r{at}", 0.0, ((1 + shared, 0, prompt),), ((100 + at, 0, output),), priority=at % 2)
        for at, (shared, prompt, output) in enumerate(drawn)
    ]
    aborted = None if abort is None else (abort[0], f"r{abort[1]}")
    settings = {"mixed": mixed, "reserve": reserve, "policy": policy, "aborted": aborted}
    runs = [
        lived(kind, requests, geometry, (kv_tokens, slots), **settings)
        for kind in (StepByStep, SimulatedExecutor)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("mixed", [False, True])
def test_strides_change_nothing_where_requests_are_retracted(mixed):
    """A pool of 640 tokens for eight requests of up to 200, with next to nothing set aside for their outputs."""
    requests = [TraceRequest(f"r{k}", 0.0, ((k, 0, 60),), ((50 + k, 0, 140),)) for k in range(8)]
    geometry = Geometry(16, chunk_width=16, track_interval=32)
    runs = [
        lived(kind, requests, geometry, (640, 60), mixed=mixed, reserve=(0.01, 0.01))
        for kind in (StepByStep, SimulatedExecutor)
    ]
    assert runs[0] == runs[1]
    assert any(type(entry.event).__name__ == "Retracted" for entry in runs[0][0])
    assert any(
        type(entry.event).__name__ == "Tracked" and entry.event.kind == "decode" for entry in runs[0][0]
    )
