"""Prefill: what an extend takes and what a checkpoint publishes, and what a refusal leaves as it was."""

import sys
from pathlib import Path

import pytest

from depthchart import Decision, rule
from depthchart.errors import MisplacedStateError, PoolExhausted, RuleError
from depthchart.events import (
    NotDonated,
)

sys.path.insert(0, str(Path(__file__).parent))
from books import books
from lifecycle_bench import DOC, Bench

# --- extend -----------------------------------------------------------------------------------------------


def test_plan_takes_pages_and_three_slots_and_commit_books_them():
    b = Bench()
    s = b.begin("a", b.doc(1100))
    plan = b.life.plan_extend(s, 600)
    assert (plan.prefix, plan.end, plan.decision.depth, plan.decision.donate) == (0, 600, 512, True)
    assert (len(s.row), s.computed, len({s.working, *s.tracks})) == (2, 0, 3)
    assert [(x.slot, x.wanted, x.depth, x.track) for x in plan.snapshots] == [(s.tracks[0], 512, 512, 0)]
    b.check()
    b.life.commit_extend(plan)
    tags = b.memory.states.tags
    assert (s.computed, s.next_track, s.tracked) == (600, 1, list(plan.snapshots))
    assert (tags[s.working], tags[s.tracks[0]], tags[s.tracks[1]]) == (s.text.tag(600), s.text.tag(512), None)
    b.check()


def test_a_row_grows_by_what_is_missing_only():
    b = Bench()
    s = b.begin("a", b.doc(1100))
    sizes = []
    for end in (1, 512, 513, 1024, 1100):
        b.extend(s, end, checkpoint=False)
        sizes.append(len(s.row))
    assert sizes == [1, 1, 2, 2, 3]
    assert b.memory.free_state_slots == 13
    b.check()


@pytest.mark.parametrize("end", [64, 63, 0, 101])
def test_an_extend_must_move_on_within_the_text(end):
    b = Bench()
    s = b.begin("a", b.doc(100))
    b.extend(s, 64)
    b.refuses(ValueError, lambda: b.life.plan_extend(s, end), rf"end={end}: must lie in \(64, 100\]")


EXHAUSTED = [
    # id, pages, slots, what else runs (tokens), extend to -> words
    ("no KV at all", 1, 8, 0, 513, "2 pages of 512 KV tokens wanted"),
    ("KV held by another", 3, 8, 1024, 513, "2 pages of 512 KV tokens wanted; 512 tokens are free"),
    ("no slot", 8, 3, 1, 10, "needs 3 state slots; 0 are free or evictable"),
    ("two slots of three", 8, 5, 1, 10, "needs 3 state slots; 2 are free or evictable"),
]


@pytest.mark.parametrize("row", EXHAUSTED, ids=[row[0] for row in EXHAUSTED])
def test_an_extend_without_room_changes_nothing(row):
    _, pages, slots, others, end, words = row
    b = Bench(pages=pages, slots=slots)
    if others:
        other = b.begin("other", b.text((7, others)))
        b.extend(other, others, checkpoint=False)
    s = b.begin("a", b.doc(600))
    b.refuses(PoolExhausted, lambda: b.life.plan_extend(s, end), words)
    if others:
        b.life.abort(other)
        b.extend(s, end)
        b.check()


def test_an_extend_without_room_evicts_nothing():
    """KV could be had by eviction, slots could not: the tree must not be touched."""
    b = Bench(pages=4, slots=6)
    b.run("old", b.doc(1024))
    other = b.begin("other", b.text((7, 512)))
    b.extend(other, 512, checkpoint=False)
    held = b.begin("held", b.text((DOC, 512), (8, 100)))  # no state at 512: matches nothing
    lock = b.memory.tree.lookup(b.doc(1024).ids(1024)).node
    b.memory.tree.lock(lock)  # somebody uses the old state
    before = books(b.life)
    with pytest.raises(PoolExhausted, match="needs 3 state slots; 2 are"):
        b.life.plan_extend(held, 600)
    assert books(b.life) == before


def test_spare_pages_are_evicted_on_top():
    kept = {}
    for spare in (0, 1):
        b = Bench(pages=4, spare_pages=spare)
        for segment in (1, 2, 3):
            b.run(str(segment), b.text((segment, 512)))
        s = b.begin("a", b.text((4, 100)))
        b.life.plan_extend(s, 100)
        kept[spare] = len(list(b.memory.tree.root.walk()))
        b.check()
    assert kept == {0: 3, 1: 2}


def test_a_rule_that_raises_changes_nothing(own_rules):

    @rule("broken")
    def broken(g, prefix, end, branch):
        return Decision(end + 1, True, "beyond the end")

    b = Bench("broken")
    s = b.begin("a", b.doc(600))
    assert "'broken'" in b.refuses(RuleError, lambda: b.life.plan_extend(s, 600))


def test_a_depth_off_the_kernels_chunks_gets_the_state_before_it(own_rules):
    """A user's rule that claims any depth on a chunked kernel: the shadow tag tells what is really there."""
    rule("greedy")(lambda g, prefix, end, branch: Decision(end // 512 * 512, end >= 512, ""))
    b = Bench("greedy")
    s = b.begin("a", b.doc(600))
    b.extend(s, 100)
    plan = b.life.plan_extend(s, 600)
    assert [(x.wanted, x.depth) for x in plan.snapshots] == [(512, 484)]  # 100 + 6·64
    b.life.commit_extend(plan)
    b.refuses(
        MisplacedStateError, lambda: b.life.checkpoint(s), "tracked at depth 512 has consumed 484 tokens"
    )


def test_cancel_gives_back_the_slots_of_further_snapshots():
    b = Bench("page_exact")
    b.run("a", b.doc(2048))
    s = b.begin("b", b.doc(1200))  # KV of 1024 is there, no state: branch
    free = b.memory.free_state_slots
    plan = b.life.plan_extend(s, 1200)
    assert [(x.wanted, x.track) for x in plan.snapshots] == [(1024, 0)]
    b.life.cancel_extend(plan)
    s.branch = 512
    plan = b.life.plan_extend(s, 1200)
    assert [(x.wanted, x.track is None) for x in plan.snapshots] == [(512, True), (1024, False)]
    assert b.memory.free_state_slots == free - 4
    b.life.cancel_extend(plan)
    assert (b.memory.free_state_slots, s.computed) == (free - 3, 0)
    b.check()


WAYS_ON = [
    # id, what becomes of the plan
    ("booked", lambda life, s, plan: life.commit_extend(plan)),
    ("cancelled", lambda life, s, plan: life.cancel_extend(plan)),
    ("aborted, then cancelled", lambda life, s, plan: (life.abort(s), life.cancel_extend(plan))),
    ("finished, then cancelled", lambda life, s, plan: (life.finish(s), life.cancel_extend(plan))),
    ("retracted", lambda life, s, plan: life.retract(s)),
]


@pytest.mark.parametrize("row", WAYS_ON, ids=[row[0] for row in WAYS_ON])
def test_further_snapshots_are_accounted_for_while_they_are_only_planned(row):
    b = Bench("page_exact")
    b.run("a", b.text((DOC, 600), (7, 500)))
    s = b.begin("b", b.text((DOC, 600), (8, 1000)))
    plan = b.life.plan_extend(s, 1600)
    assert [(x.wanted, x.track is None) for x in plan.snapshots] == [(512, True), (1536, False)]
    b.check()
    row[1](b.life, s, plan)
    b.check()
    if s.request in b.life.active:
        b.life.abort(s)
        b.check()
    assert b.memory.free_state_slots == 16 - len([d for d in b.states().values() if d is not None])


def test_two_depths_in_one_extend_are_both_filed():
    b = Bench("page_exact")
    b.run("a", b.text((DOC, 600), (7, 500)))  # state at 1024
    s = b.begin("b", b.text((DOC, 600), (8, 1000)))
    assert s.branch == 512
    b.extend(s, 1600)
    assert (s.protected, s.lock.end) == (1536, 1536)
    b.check()
    b.life.finish(s)
    assert sorted(b.states().items()) == [(512, 512), (1024, 1024), (1536, 1536)]
    b.check()


# --- checkpoint ----------------------------------------------------------------------------------------------


def test_checkpoint_inserts_donates_and_moves_the_lock():
    b = Bench()
    s = b.begin("a", b.doc(1200))
    b.extend(s, 576)
    first = s.lock
    assert (first.end, first.state is not None, s.protected, s.tracked) == (512, True, 512, [])
    assert (len(s.own_pages()), len(set(s.tracks))) == (1, 2)
    b.check()
    b.extend(s, 1100)
    assert (s.lock.end, s.lock.parent, first.state_locks, first.kv_locks) == (1024, first, 0, 1)
    assert b.states() == {512: 512, 1024: 1024}
    b.check()


def test_checkpoint_frees_the_copies_of_what_another_inserted_first():
    b = Bench()
    one, two = b.begin("one", b.doc(1100)), b.begin("two", b.doc(1100))
    for s in (one, two):
        b.extend(s, 1100, checkpoint=False)
    free = b.memory.free_kv_tokens
    b.life.checkpoint(one)
    b.life.checkpoint(two)
    assert b.memory.free_kv_tokens == free + 1024
    assert one.row[:2] == two.row[:2]
    assert one.row[2:] != two.row[2:]
    assert one.lock is two.lock
    refused = b.log.of(NotDonated)[0]
    assert (refused.request, refused.outcome, refused.reason) == (
        "two",
        "refused",
        "the node at 1024 has a state already",
    )
    b.check()


def test_nothing_is_tracked_below_the_first_page():
    b = Bench("chunk_grid")
    s = b.begin("a", b.doc(300))
    b.extend(s, 300)
    refused = b.log.of(NotDonated)
    assert [(x.wanted, x.reason) for x in refused] == [(256, "depth 256 is below the first tree page")]
    assert (s.protected, b.states()) == (0, {})
    b.check()


def test_without_a_slot_to_replace_it_the_state_is_kept_and_donated_at_the_end():
    b = Bench(slots=3)
    s = b.begin("a", b.doc(700))
    b.extend(s, 700)
    assert b.log.of(NotDonated)[0].reason == "no state slot is free or evictable to replace it"
    assert (b.states(), [x.wanted for x in s.tracked]) == ({}, [512])
    b.check()
    b.life.finish(s)
    assert b.states() == {512: 512}
    assert b.memory.free_state_slots == 2
    b.check()


def test_a_kept_state_goes_to_its_own_node_when_the_request_is_further_already():
    """One request keeps its state of 512 for want of a slot; meanwhile its lock has moved on to 1024, because
    another donated there. With a slot again, the state belongs to a node at 512."""
    b = Bench(slots=6)
    one, two = b.begin("one", b.doc(1700)), b.begin("two", b.doc(1700))
    b.extend(two, 1100, checkpoint=False)
    b.extend(one, 576)
    assert [x.wanted for x in one.tracked] == [512]
    b.life.finish(two)  # 1024 has a state now, and two slots are free: others take them
    blocked = b.memory.take_slots(2)
    node = b.memory.tree.lookup(b.doc(1700).ids(1024)).node
    b.memory.tree.lock(node)
    b.extend(one, 1100)
    assert (one.protected, [x.wanted for x in one.tracked]) == (1024, [512])
    b.memory.tree.unlock(node)
    for slot in blocked:
        b.memory.states.free(slot)
    b.life.checkpoint(one)
    assert b.states() == {512: 512, 1024: 1024}
    assert (one.protected, one.lock.end, one.tracked) == (1024, 1024, [])
    b.check()
