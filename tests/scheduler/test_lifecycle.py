"""A request's way through the cache: begin, decode, leave."""

import sys
from pathlib import Path

import pytest

from depthchart import Geometry
from depthchart.errors import PoolExhausted
from depthchart.events import (
    Aborted,
    Donated,
    Finished,
    Freed,
    NotDonated,
    Retracted,
    Tracked,
)
from depthchart.scheduler.lifecycle import StateCopy

sys.path.insert(0, str(Path(__file__).parent))
from books import books
from lifecycle_bench import DOC, Bench

# --- begin ------------------------------------------------------------------------------------------------


def test_begin_without_a_match_holds_nothing():
    b = Bench()
    s = b.begin("a", b.doc(600))
    assert (s.computed, s.protected, list(s.row), s.working, s.branch, s.tracks) == (0, 0, [], None, None, [])
    assert s.lock is b.memory.tree.root
    assert b.life.copies == []
    b.check()


def test_begin_copies_the_matched_state_and_locks_its_node():
    b = Bench()
    b.run("a", b.doc(1100))
    assert b.states() == {1024: 1024}
    s = b.begin("b", b.doc(1100))
    node = s.lock
    assert (s.computed, s.protected, node.end, node.kv_locks, node.state_locks) == (1024, 1024, 1024, 1, 1)
    assert s.row == b.memory.tree.pages_of(node)
    assert list(s.own_pages()) == []
    assert b.life.copies == [StateCopy(node.state, s.working)]
    assert s.working != node.state
    assert b.memory.states.tags[s.working] == s.text.tag(1024)
    b.check()


MATCHES = [
    # id, donated depths (each by a request of its own), asked -> matched, branch
    ("one token must be left to run", [512], 512, 0, None),
    ("one token more", [512], 513, 512, None),
    ("the deepest state", [512, 1536], 2000, 1536, None),
    ("KV beyond the state", [1536], 1537, 1536, None),
    ("KV without a state in reach: a branch depth", [1536], 1200, 0, 1024),
    ("state, then KV: a branch depth", [512, 2048], 1800, 512, 1536),
    ("shorter than a page", [512], 100, 0, None),
]


@pytest.mark.parametrize("row", MATCHES, ids=[row[0] for row in MATCHES])
def test_what_begin_matches(row):
    _, donated, asked, matched, branch = row
    b = Bench()
    for depth in donated:
        b.run(f"to {depth}", b.doc(depth))
    s = b.begin("b", b.doc(asked))
    assert (s.computed, s.branch) == (matched, branch)
    b.check()


def test_begin_without_a_slot_for_the_copy_holds_nothing():
    b = Bench(slots=4)
    b.run("a", b.doc(512))
    other = b.begin("other", b.text((7, 100)))
    b.extend(other, 100)
    assert b.memory.free_state_slots == 0
    before = books(b.life)
    assert b.begin("b", b.doc(600)) is None
    after = books(b.life)
    assert {**after, "nodes": [n[:-1] for n in after["nodes"]]} == {
        **before,
        "nodes": [n[:-1] for n in before["nodes"]],
    }, "only the time of last use may have moved"
    b.life.abort(other)
    assert b.begin("b", b.doc(600)).computed == 512
    b.check()


def test_begin_evicts_another_state_for_its_copy_never_its_own():
    b = Bench(slots=5)
    b.run("old", b.doc(512))
    b.run("other", b.text((7, 512)))
    s = b.begin("busy", b.text((8, 100)))
    b.extend(s, 100)
    assert b.memory.free_state_slots == 0
    assert b.begin("b", b.doc(600)).computed == 512  # "old" is the least recently used, and in use now
    assert b.states() == {512: 512}
    b.check()


def test_namespaces_do_not_match():
    b = Bench()
    b.run("a", b.text((DOC, 1024), namespace="one"))
    assert b.begin("b", b.text((DOC, 1024), namespace="two")).computed == 0
    assert b.begin("c", b.text((DOC, 1100), namespace="one")).computed == 1024
    b.check()


def test_begin_refuses_a_running_name_and_an_empty_text():
    b = Bench()
    b.begin("a", b.doc(10))
    b.refuses(ValueError, lambda: b.begin("a", b.doc(20)), "request='a': is running already")
    b.refuses(ValueError, lambda: b.begin("b", b.doc(0)), "at least one token")


@pytest.mark.parametrize(("prompt", "nearest"), [(0, 1), (-5, 1), (601, 600)])
def test_begin_refuses_a_prompt_that_is_no_part_of_the_text(prompt, nearest):
    b = Bench()
    words = rf"prompt_tokens={prompt}: must lie in \[1, 600\].*nearest legal: {nearest}"
    b.refuses(ValueError, lambda: b.life.begin("a", b.doc(600), prompt), words)
    assert b.life.begin("a", b.doc(600), 600).prompt_tokens == 600


# --- decode --------------------------------------------------------------------------------------------------


DENSE = Geometry(2, 2, 2, track_interval=4)  # tree page, grid and track grid 4


def test_decode_checkpoints_alternate_and_the_newest_is_donated():
    b = Bench(geometry=DENSE)
    s = b.begin("a", b.doc(3))
    b.extend(s, 3)
    plans = b.decode(s, 11)
    taken = [(p.position + 1, p.snapshot.depth, p.snapshot.track) for p in plans if p.snapshot]
    assert taken == [(4, 4, 0), (8, 8, 1), (12, 12, 0)]
    assert [x.wanted for x in s.tracked] == [8, 12]
    assert b.memory.states.tags[s.tracks[0]] == s.text.tag(12)
    assert [(x.wanted, x.outcome) for x in b.log.of(NotDonated)] == [(4, "superseded")]
    b.check()
    assert b.life.finish(s) == ((12, 14),)
    assert b.states() == {12: 12}
    assert [(x.kind, x.depth) for x in b.log.of(Tracked)] == [("decode", 4), ("decode", 8), ("decode", 12)]
    assert [x.wanted for x in b.log.of(Donated)] == [12]
    assert b.log.of(Finished) == [Finished("a", 14, 11)]
    b.check()


def test_prefill_and_decode_share_the_ping_pong():
    b = Bench(geometry=DENSE)
    s = b.begin("a", b.doc(10))
    b.extend(s, 10, checkpoint=False)  # tracks 8
    b.decode(s, 2)  # tracks 12 in the other slot
    assert [(x.wanted, x.track) for x in s.tracked] == [(8, 0), (12, 1)]
    b.life.finish(s)
    assert b.states() == {12: 12}
    b.check()


def test_a_state_beyond_what_counts_at_the_end_is_not_donated():
    """An engine that runs ahead may have computed more than the reply keeps."""
    b = Bench(geometry=DENSE)
    s = b.begin("a", b.doc(3))
    b.extend(s, 3)
    b.decode(s, 9)
    s.computed = 10  # 12 was the last
    assert b.life.finish(s) == ((8, 10),)
    assert b.states() == {8: 8}
    assert b.memory.free_kv_tokens == 16 * 4 - 8
    b.check()


TRACK_GRIDS = [
    # id, geometry, decode to -> depths tracked (sglang#35412: lcm(512, 256) = 512)
    ("interval below the grid", Geometry(2, 4, 2, track_interval=4), 25, [8, 16, 24]),
    ("interval beside the grid", Geometry(2, 4, 2, track_interval=12), 60, [24, 48]),
    ("interval above the grid", Geometry(2, 1, 2, track_interval=8), 20, [8, 16]),
]


@pytest.mark.parametrize("row", TRACK_GRIDS, ids=[row[0] for row in TRACK_GRIDS])
def test_decode_depths_lie_on_the_track_grid(row):
    _, geometry, end, depths = row
    b = Bench(geometry=geometry, pages=64)
    s = b.begin("a", b.doc(1))
    b.extend(s, 1)
    plans = b.decode(s, end - 1)
    assert [p.snapshot.depth for p in plans if p.snapshot] == depths
    assert all(d % geometry.tree_page == 0 for d in depths)


def test_decode_without_a_page_changes_nothing():
    b = Bench(geometry=DENSE, pages=1)
    s = b.begin("a", b.doc(3))
    b.extend(s, 3)
    b.decode(s, 1)
    s.text.append([(99, 4, 1)])
    b.refuses(
        PoolExhausted, lambda: b.life.plan_decode(s), "1 pages of 4 KV tokens wanted; 0 tokens are free"
    )


def test_decode_needs_a_token_to_run():
    b = Bench(geometry=DENSE)
    s = b.begin("a", b.doc(4))
    b.extend(s, 4)
    b.refuses(ValueError, lambda: b.life.plan_decode(s), "request 'a' has no token 4")


# --- leaving -------------------------------------------------------------------------------------------------


LEAVING = [
    # id, ends of the extends, checkpoint each, then -> freed ranges, nodes with their states
    ("finish below a page", [100], True, "finish", ((0, 100),), {}),
    ("finish on a page", [512], True, "finish", (), {512: 512}),
    ("finish after the checkpoint", [600], True, "finish", ((512, 600),), {512: 512}),
    ("finish with the state still tracked", [600], False, "finish", ((512, 600),), {512: 512}),
    ("finish far off", [576, 2000], False, "finish", ((1536, 2000),), {1536: 1536}),
    ("finish before anything ran", [], True, "finish", (), {}),
    ("abort after the checkpoint", [600], True, "abort", ((512, 600),), {512: 512}),
    ("abort donates nothing", [600], False, "abort", ((0, 600),), {}),
    ("abort before anything ran", [], True, "abort", (), {}),
    ("retract keeps the state", [600], False, "retract", ((512, 600),), {512: 512}),
]


@pytest.mark.parametrize("row", LEAVING, ids=[row[0] for row in LEAVING])
def test_leaving(row):
    _, ends, checkpoint, how, freed, states = row
    b = Bench()
    s = b.begin("a", b.doc(2000))
    b.extend(s, *ends, checkpoint=checkpoint)
    answer = getattr(b.life, how)(s)
    assert answer in (freed, None)
    assert b.log.of(Freed) == [Freed("a", freed)]
    assert b.states() == states
    assert b.life.active == {}
    assert b.memory.free_kv_tokens == 16 * 512 - sum(512 for _ in range(max(states, default=0) // 512))
    assert b.memory.free_state_slots == 16 - len(states)
    assert b.memory.tree.protected_tokens == b.memory.tree.protected_states == 0
    b.check()


def test_a_planned_step_that_never_ran_leaks_nothing():
    """sglang#12693, #16067, #26941: whatever way out is taken between planning and running."""
    for how in ("finish", "abort", "retract"):
        b = Bench("page_exact")
        b.run("before", b.doc(2048))
        s = b.begin("a", b.doc(1700))
        plan = b.life.plan_extend(s, 1700)
        b.life.cancel_extend(plan)
        getattr(b.life, how)(s)
        b.check()
        b.memory.tree.reset()
        assert b.memory.free_kv_tokens == b.memory.allocator.total_tokens
        assert b.memory.free_state_slots == 16


def test_leaving_takes_the_pending_copy_back():
    b = Bench()
    b.run("a", b.doc(512))
    s = b.begin("b", b.doc(600))
    assert len(b.life.copies) == 1
    b.life.abort(s)
    assert b.life.copies == []
    b.check()


def test_a_state_that_is_there_already_is_refused_at_the_end():
    b = Bench()
    one, two = b.begin("one", b.doc(600)), b.begin("two", b.doc(600))
    for s in (one, two):
        b.extend(s, 600, checkpoint=False)
    b.life.finish(one)
    assert b.life.finish(two) == ((0, 600),)
    assert b.log.of(NotDonated)[-1].reason == "the node at 512 has a state already"
    assert b.memory.free_kv_tokens == 15 * 512
    b.check()


def test_a_retracted_request_resumes_from_its_state():
    b = Bench()
    s = b.begin("a", b.doc(2000))
    b.extend(s, 1100, checkpoint=False)
    b.life.retract(s)
    assert b.log.of(Retracted) == [Retracted("a", 1100)]
    again = b.begin("a", s.text)
    assert again.computed == 1024
    b.extend(again, 2000)
    b.life.finish(again)
    b.check()


def test_abort_is_told():
    b = Bench()
    s = b.begin("a", b.doc(100))
    b.extend(s, 100)
    b.life.abort(s)
    assert b.log.of(Aborted) == [Aborted("a", 100)]
