"""A stream against the same trace held whole; and what is kept of it."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from depthchart import Geometry, tokens
from depthchart.cache import Memory
from depthchart.serial import serve, serve_each
from depthchart.simulate import simulate
from depthchart.streaming import stream
from depthchart.tokens import FEW_STRETCHES, Text
from depthchart.traces import TraceRequest, load_trace
from depthchart.traces.trace import Trace

G = Geometry(64, dcp_size=2, chunk_width=64)


@pytest.mark.parametrize("arrivals", ["causal", "trace"])
@pytest.mark.parametrize(
    "pools",
    [
        pytest.param({"kv_tokens": 200_000, "state_slots": 100}, id="roomy"),
        pytest.param({"kv_tokens": 24_576, "state_slots": 24}, id="tight"),
    ],
)
def test_a_stream_is_the_simulation_of_the_same_trace(arrivals, pools):
    """Event for event and step for step; the totals are sums over the simulation's own table."""
    trace, entries, records = load_trace("agentic", limit=80), [], []
    totals = stream(iter(trace), G, **pools, arrivals=arrivals, tell=entries.append, record=records.append)
    run = simulate(trace, G, **pools, arrivals=arrivals, strict=False)
    assert entries == list(run.log)
    assert records == run.records
    table, summary = run.requests, run.summary()
    for name in ("prompt_tokens", "kv_hit_tokens", "reused_tokens", "retractions"):
        assert getattr(totals, name) == table[name].sum()
    for name in ("requests", "finished", "rejected", "steps", "simulated_s", "violations"):
        assert getattr(totals, name) == summary[name]
    assert totals.ttft_mean_s == pytest.approx(summary["ttft_mean_s"])


def test_served_one_by_one_is_served_at_once():
    trace = load_trace("agentic", limit=60)
    pools = {"kv_tokens": 24_576, "state_slots": 24}
    assert (
        tuple(serve_each(iter(trace), G, "absolute", **pools))
        == serve(trace, G, "absolute", **pools).requests
    )


def fresh_chat(count):
    """Texts that are never seen again once their two turns are over."""
    for number in range(count):
        session, turn = divmod(number, 2)
        yield TraceRequest(
            f"{number}",
            number * 10.0,
            ((1, 0, 100), (2 + session, 0, 100 + 60 * turn)),
            ((2 + session, 100 + 60 * turn, 5),),
        )


@pytest.mark.parametrize("how", ["stream", "serve"])
def test_memory_does_not_grow_with_the_stream(how, monkeypatch):
    """What Python holds after 400 and after 2,000 requests, the tree being as large: less than 32 bytes a request more,
    where one stretch of the index, one node or one result alone takes hundreds."""
    monkeypatch.setattr(tokens, "FEW_STRETCHES", 64)
    geometry, pools, held = Geometry(1, chunk_width=4), {"kv_tokens": 2_000, "state_slots": 40}, []

    def watched():
        for number, request in enumerate(fresh_chat(2_001)):
            if number in (400, 2_000):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            yield request

    tracemalloc.start()
    try:
        if how == "stream":
            assert stream(watched(), geometry, **pools).finished == 2_001
        else:
            assert sum(1 for _ in serve_each(watched(), geometry, "absolute", **pools)) == 2_001
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 32 * 1_600


def test_forgetting_changes_no_result(monkeypatch):
    """With an index that is given, nothing is forgotten; with one of its own, from the first stretch on."""
    trace = Trace(
        "chat",
        tuple(fresh_chat(300))
        + tuple(
            TraceRequest(f"again {k}", 4000.0 + k, r.prompt, r.output) for k, r in enumerate(fresh_chat(300))
        ),
    )
    for eviction in ("lru", "s3fifo", "gain"):
        pools = {"kv_tokens": 4_000, "state_slots": 30, "eviction": eviction}
        kept = serve(trace, Geometry(4, chunk_width=4), "absolute", **pools, index=tokens.PrefixIndex(4))
        monkeypatch.setattr(tokens, "FEW_STRETCHES", 1)
        assert serve(trace, Geometry(4, chunk_width=4), "absolute", **pools) == kept
        monkeypatch.undo()
        assert kept.reused_tokens > 0


def test_what_is_forgotten_and_what_is_not():
    memory = Memory(Geometry(4, chunk_width=4), 4096, 4)
    index = memory.index
    held = Text(index, [(1, 0, 40), (2, 0, 40)])
    in_tree = Text(index, [(3, 0, 40)])
    ids = held.ids(80)
    memory.tree.insert(in_tree.ids(40), memory.take_pages(10))
    for segment in range(10, 10 + 2 * FEW_STRETCHES + 1):
        Text(index, [(segment, 0, 4)]).ids(4)
    lost = Text(index, [(10, 0, 4)]).ids(4)[0]
    assert index.crowded
    memory.forget([held])
    assert len(index) == 3
    assert index.text_of(ids[-1]) == ((1, 0, 40), (2, 0, 40))
    assert Text(index, held.runs).ids(80) == ids
    assert Text(index, in_tree.runs).ids(40) == in_tree.ids(40)
    again = Text(index, [(10, 0, 4)]).ids(4)[0]
    assert again != lost
    assert not index.crowded
