"""Counts of a run against the events, the memory and arithmetic."""

import pytest

from depthchart.counters import counters
from depthchart.events import Donated, NodeRemoved, NotDonated, StateDropped
from depthchart.geometry import Geometry
from depthchart.simulate import simulate
from depthchart.traces import Trace, TraceRequest, load_trace


def test_by_hand():
    """Two prompts of 200 tokens share 100: one page of 64. Each leaves KV and a state at 192; the second one at the fork as
    well, which page_exact keeps beside its last page."""
    texts = [((1, 0, 100), (at, 0, 100)) for at in (7, 8)]
    requests = [
        TraceRequest(f"r{at}", 1000.0 * at, text, ((90 + at, 0, 1),)) for at, text in enumerate(texts)
    ]
    run = simulate(Trace("two", tuple(requests)), Geometry(64), "page_exact", kv_tokens=4096, state_slots=16)
    found = run.counters()
    assert found["checkpoints donated"] == 3
    assert found["KV tokens in the tree"] == 64 + 128 + 128
    assert (found["nodes in the tree"], found["nodes with a state"]) == (3, 3)
    assert (found["forks"], found["forks with a state"], found["tombstones"]) == (1, 1, 0)
    assert not any("removed" in name or "dropped" in name for name in found)


@pytest.fixture(scope="module")
def tight():
    return simulate(load_trace("agentic", limit=80), Geometry(64), kv_tokens=1 << 15, state_slots=16)


def test_what_went_in_is_there_or_went_out(tight):
    found = tight.counters()
    dropped = sum(count for name, count in found.items() if name.startswith("states dropped"))
    assert found["checkpoints donated"] == dropped + found["nodes with a state"]
    assert dropped == len(tight.log.of(StateDropped))
    removed = sum(tokens for name, tokens in found.items() if name.startswith("KV tokens removed"))
    assert removed == sum(event.tokens for event in tight.log.of(NodeRemoved)) > 0
    kept_not = found.get("checkpoints refused", 0) + found.get("checkpoints superseded", 0)
    assert kept_not == len(tight.log.of(NotDonated))
    assert found["checkpoints donated"] == len(tight.log.of(Donated))


def test_nothing_happened():
    assert counters([])["checkpoints donated"] == counters([])["nodes in the tree"] == 0
