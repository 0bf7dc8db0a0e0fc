"""The Chrome trace of a run: its schema, its counts against the run's frames, and a lifecycle by hand."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from depthchart import Geometry, load_trace
from depthchart.cost import LinearCost
from depthchart.events import Donated, Extended, NodeRemoved, StateDropped, Violation
from depthchart.perfetto import trace_events
from depthchart.simulate import simulate
from depthchart.traces import Trace, TraceRequest

ONE_SECOND = LinearCost(base_s=1.0, prefill_token_s=0, decode_row_s=0, context_token_s=0, state_copy_s=0)
# Trace Event Format: which keys each phase must have beside name, ph, ts, pid and tid
NEEDED = {"X": {"dur"}, "i": {"s"}, "C": {"args"}, "M": {"args"}}


@pytest.fixture(scope="module")
def run():
    """Tight pools, checks off: evictions, retractions and a misplaced state happen."""
    return simulate(
        load_trace("agentic", limit=150),
        Geometry(64, dcp_size=8, chunk_width=64),
        "prefix_relative",
        kv_tokens=32_768,
        state_slots=32,
        strict=False,
    )


@pytest.fixture(scope="module")
def told(run, tmp_path_factory):
    path = run.to_perfetto(tmp_path_factory.mktemp("trace") / "deep" / "x.json")
    return json.loads(path.read_text())


def test_the_schema(told):
    assert told["displayTimeUnit"] == "ms"
    assert told["otherData"]["geometry.dcp_size"] == 8
    assert told["otherData"]["depthchart"]
    last = 0.0
    for event in told["traceEvents"]:
        assert {"name", "ph", "ts", "pid", "tid"} <= set(event)
        assert set(event) >= NEEDED[event["ph"]]
        assert event["ts"] >= last
        last = event["ts"]
        assert event.get("dur", 0) >= 0
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_every_track_is_named_once(told):
    named = [
        (e["pid"], e["tid"], e["args"]["name"]) for e in told["traceEvents"] if e["name"] == "thread_name"
    ]
    assert len(named) == len({(pid, tid) for pid, tid, _ in named})
    used = {(e["pid"], e["tid"]) for e in told["traceEvents"] if e["ph"] in "Xi"}
    assert used <= {(pid, tid) for pid, tid, _ in named}


def test_counts_agree_with_the_run(run, told):
    count = Counter((e["ph"], e["name"].split(" ")[0], e["pid"]) for e in told["traceEvents"])
    assert count["X", "prefill", 1] == len(run.log.of(Extended))
    assert count["i", "donate", 1] == len(run.log.of(Donated))
    assert count["i", "finished", 1] == int((run.requests["status"] == "finished").sum())
    assert count["i", "retracted", 1] == int(run.requests["retractions"].sum()) > 0
    evictions = sum(e.get("cat") == "evict" for e in told["traceEvents"])
    assert evictions == len(run.log.of(NodeRemoved, StateDropped)) > 0
    assert sum(e.get("cat") == "fault" for e in told["traceEvents"]) == len(run.log.of(Violation)) > 0
    assert sum(e["ph"] == "C" for e in told["traceEvents"]) == 3 * len(run.records)
    assert sum("MISPLACED" in e["name"] for e in told["traceEvents"]) == int(
        (run.checkpoints["outcome"] == "misplaced").sum()
    )


def test_tokens_agree_with_the_run(run, told):
    slices = [e for e in told["traceEvents"] if e["ph"] == "X"]
    prefill = sum(e["args"]["tokens"] for e in slices if e["name"] == "prefill")
    assert prefill == int(run.steps["prefill_tokens"].sum())
    decode = sum(e["args"]["tokens"] for e in slices if e["name"] == "decode")
    assert decode == int(run.steps["decode_rows"].sum())


def test_slices_of_a_request_do_not_overlap(told):
    by_track = {}
    for e in told["traceEvents"]:
        if e["ph"] == "X":
            by_track.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    for slices in by_track.values():
        for (_, end), (start, _) in pairwise(slices):
            assert start >= end - 0.001


def test_one_request_by_hand():
    """Arrives at 5 s; 20 tokens in steps of 16 and 4 of one second each; three output tokens, of which prefill samples
    the first: two decode steps."""
    geometry = Geometry(4, chunk_width=4, chunked_prefill_size=16, track_interval=8)
    request = TraceRequest("r", 5.0, ((1, 0, 20),), ((2, 0, 3),))
    run = simulate(Trace("one", (request,)), geometry, kv_tokens=64, state_slots=8, cost=ONE_SECOND)
    slices = [e for e in trace_events(run.log, run.records) if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [
        ("wait", 5e6, 0),
        ("prefill", 5e6, 1e6),
        ("prefill", 6e6, 1e6),
        ("decode", 7e6, 2e6),
    ]
    assert [e["args"].get("tokens") for e in slices[1:]] == [16, 4, 2]


def test_a_strict_run_ends_with_its_fault():
    run = simulate(
        load_trace("agentic", limit=150),
        Geometry(64, dcp_size=8, chunk_width=64),
        "prefix_relative",
        kv_tokens=65_536,
        state_slots=48,
    )
    assert run.fault is not None
    events = trace_events(run.log, run.records)
    (fault,) = [e for e in events if e.get("cat") == "fault"]
    assert fault["name"] == run.fault.kind
    assert max(e["ts"] + e.get("dur", 0) for e in events) <= run.fault.time_s * 1e6 + 0.001
    assert any(e["args"].get("unfinished") for e in events)
