"""Time travel over a run's events: any moment, in any order, and each node's history."""

import random

import pytest

from depthchart import Geometry, load_trace
from depthchart.cache import Memory
from depthchart.events import (
    Donated,
    Entry,
    EventLog,
    Locked,
    Matched,
    NodeAdded,
    NodeRemoved,
    NodeSplit,
    StateDropped,
    StateFiled,
    Violation,
)
from depthchart.redraw import redraw
from depthchart.rewind import LEAST_APART, Rewind
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.simulate import simulate
from depthchart.tokens import Text

# Worked out by hand: a makes [0, 1024) with a state; b forks at 512, so node 1 is split and node 2 is its upper half;
# b's own tail is node 3; then node 1 loses its state and goes.
EVENTS = [
    (0.0, 0, NodeAdded(1, 0, 0, 1024, "a", "")),
    (0.0, 0, StateFiled(1, 1024, 1024, True)),
    (1.0, 1, NodeSplit(1, 2, 512)),
    (1.0, 1, Matched("b", 0, 512, 512, 0)),
    (2.0, 2, NodeAdded(3, 2, 512, 1536, "b", "")),
    (2.0, 2, StateFiled(3, 1536, 1600, False)),
    (2.0, 2, Donated("b", 3, 1600, 1600, 1536, False)),
    (3.0, 3, Locked(3, True)),
    (4.0, 4, Matched("c", 1536, 1536, None, 3)),
    (5.0, 5, StateDropped(1, "evicted")),
    (6.0, 6, NodeRemoved(1, 512, "KV evicted")),
]
BY_HAND = [Entry(*row) for row in EVENTS]


def drawn(view):
    return {n.node_id: (n.parent_id, n.start, n.end, n.status) for n in view.nodes.values()}


def test_the_tree_of_each_step_is_as_worked_out_by_hand():
    tree = Rewind(BY_HAND)
    after = {m.step: drawn(tree.at(m.count)) for m in tree.moments()}
    assert after[0] == {1: (-1, 0, 1024, "state")}
    assert after[1] == {2: (-1, 0, 512, "bare"), 1: (2, 512, 1024, "state")}
    assert after[2] == after[1] | {3: (2, 512, 1536, "misplaced")}
    assert after[5] == after[2] | {1: (2, 512, 1024, "tombstone")}
    assert after[6] == {2: (-1, 0, 512, "bare"), 3: (2, 512, 1536, "misplaced")}
    assert tree.deepest == 1536


def test_a_match_of_kv_alone_is_a_use_of_its_nodes():
    """b found node 2's KV and no state; c passed nodes 2 and 3. Node 1 was used by nobody but its maker."""
    told = [
        Entry(e.time_s, e.step, e.event._replace(kv_node_id=2))
        if e.time_s == 1.0 and isinstance(e.event, Matched)
        else e
        for e in BY_HAND
    ]
    last_use = {n.node_id: n.last_used_s for n in redraw(told[:9]).nodes.values()}
    assert last_use == {1: 0.0, 2: 4.0, 3: 4.0}
    assert {n.node_id: n.last_used_s for n in redraw(told[:7]).nodes.values()} == {1: 0.0, 2: 1.0, 3: 2.0}


def test_the_drawn_last_use_is_that_of_the_real_tree():
    """Two texts share 512 tokens and no state lies there: the second finds KV alone, at 1 s."""
    log = EventLog()
    memory = Memory(Geometry(64, 8), 4096, 16, emit=log)
    life = Lifecycle(memory, emit=log)
    for at, tail in enumerate((7, 8)):
        log.time_s = float(at)
        s = life.begin(str(at), Text(memory.index, [(1, 0, 600), (tail, 0, 600)]))
        assert s.computed == 0
        if at == 0:
            life.commit_extend(life.plan_extend(s, 1200))
            life.finish(s)
    drawn = {(n.start, n.end): n.last_used_s for n in redraw(log.entries).nodes.values()}
    assert drawn == {(0, 512): 1.0, (512, 1024): 0.0}


def test_moments_are_where_the_tree_changed():
    tree = Rewind(BY_HAND)
    assert [(m.step, m.count) for m in tree.moments()] == [(0, 0), (0, 2), (1, 4), (2, 7), (5, 10), (6, 11)]
    assert [m.count for m in tree.moments("event")] == [0, 1, 2, 3, 5, 6, 10, 11]
    with pytest.raises(ValueError, match="by='day': must be 'step' or 'event'"):
        tree.moments("day")


def test_what_a_moment_changed():
    tree = Rewind(BY_HAND)
    assert [tree.changed(m) for m in tree.moments()] == [set(), {1}, {1, 2}, {3}, {1}, set()]


def test_the_history_of_a_node_in_words():
    tree = Rewind(BY_HAND)
    assert [(past.step, past.what) for past in tree.history(3)] == [
        (2, "it is made by b: tokens [512, 1,536)"),
        (2, "it gets a state that has read 1,600 tokens, but the node ends at 1,536: MISPLACED"),
        (2, "b donates its state of 1,600 tokens to it, which ends at 1,536: WRONG by 64 tokens"),
        (3, "locked by a request"),
        (4, "c reuses 1,536 tokens"),
    ]
    assert [past.what for past in tree.history(2)] == [
        "made by splitting node 1: takes its tokens above 512",
        "c reuses 1,536 tokens",
    ]
    assert tree.history(99) == []
    assert tree.node_ids == [1, 2, 3]


def test_the_nodes_of_a_request():
    tree = Rewind(BY_HAND)
    assert tree.nodes_of("a", 2) == {1}
    assert tree.nodes_of("a", 4) == {1, 2}  # the upper half of its node is still its own
    assert tree.nodes_of("b", len(tree)) == {2, 3}
    assert tree.nodes_of("c", 8) == set()  # c has not come yet
    assert tree.nodes_of("c", 9) == {2, 3}


def test_a_moment_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="count=12: must lie between 0 and the 11 events"):
        Rewind(BY_HAND).at(12)


def test_the_count_at_a_time():
    tree = Rewind(BY_HAND)
    assert [tree.count_at(t) for t in (-1.0, 0.0, 0.5, 2.0, 9.0)] == [0, 2, 2, 7, 11]


def test_a_broken_invariant_is_a_moment_of_its_own():
    entries = [Entry(0.0, 0, NodeAdded(1, 0, 0, 64, "a", "")), Entry(1.0, 7, Violation("X", "broke", "a"))]
    assert [m.step for m in Rewind(entries).moments()] == [0, 0, 7]


@pytest.fixture(scope="module")
def run():
    geometry = Geometry(64, dcp_size=8, chunk_width=64)
    trace = load_trace("agentic", limit=80)
    return simulate(trace, geometry, "prefix_relative", kv_tokens=65_536, state_slots=24, strict=False)


def test_any_order_gives_what_the_events_give_from_the_start(run):
    assert len(run.log) > 4 * LEAST_APART  # several copies
    tree = Rewind(run.log)
    rng = random.Random(0)
    for count in [rng.randrange(len(run.log) + 1) for _ in range(40)] + [0, len(run.log)]:
        assert tree.at(count).nodes == redraw(tree.entries[:count]).nodes


def test_going_back_costs_no_more_events_than_lie_between_two_copies(run, monkeypatch):
    from depthchart.redraw import TreeView

    tree, applied = Rewind(run.log), []
    apply = TreeView.apply
    monkeypatch.setattr(TreeView, "apply", lambda view, entry: (applied.append(1), apply(view, entry)))
    tree.at(len(run.log) - 1)
    assert len(applied) < LEAST_APART


def test_reading_tells_its_progress_and_can_be_stopped(run):
    told = []
    Rewind(run.log, told.append)
    assert sum(told) > len(run.log) - LEAST_APART

    class Stop(Exception): ...

    def stop(count):
        raise Stop

    with pytest.raises(Stop):
        Rewind(run.log, stop)
