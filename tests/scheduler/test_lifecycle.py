"""Each step of a request's life: what it takes, what it gives back, and what a refusal leaves as it was."""

import sys
from pathlib import Path

import pytest

from depthchart import RULES, Decision, Geometry, rule
from depthchart.cache import Memory
from depthchart.errors import InvariantError, MisplacedStateError, PageSharedError, PoolExhausted, RuleError
from depthchart.events import (
    Aborted,
    Donated,
    EventLog,
    Finished,
    Freed,
    NotDonated,
    Retracted,
    Tracked,
    Violation,
)
from depthchart.scheduler.lifecycle import Lifecycle, StateCopy
from depthchart.tokens import TAINTED, Tag, Text

sys.path.insert(0, str(Path(__file__).parent))
from books import books, totals

SEED = Geometry(64, 8)  # tree page and grid 512, chunk 64
DOC = 1


class Bench:
    """A lifecycle with its log, and requests named by their texts: ``doc`` is a text of one segment."""

    def __init__(self, rule="absolute", geometry=SEED, pages=16, slots=16, *, strict=True, **options):
        self.log = EventLog()
        self.memory = Memory(geometry, pages * geometry.tree_page, slots, emit=self.log)
        self.life = Lifecycle(self.memory, rule, strict=strict, emit=self.log, **options)

    def text(self, *runs, namespace=""):
        return Text(self.memory.index, [(segment, 0, length) for segment, length in runs], namespace)

    def doc(self, length):
        return self.text((DOC, length))

    def begin(self, name, text):
        return self.life.begin(name, text)

    def extend(self, sequence, *ends, checkpoint=True):
        for end in ends:
            self.life.commit_extend(self.life.plan_extend(sequence, end))
            if checkpoint:
                self.life.checkpoint(sequence)

    def decode(self, sequence, tokens):
        plans = []
        for _ in range(tokens):
            sequence.text.append([(99, len(sequence.text), 1)])
            plans.append(self.life.plan_decode(sequence))
            self.life.commit_decode(plans[-1])
        return plans

    def run(self, name, text, *ends):
        """A whole life without decode."""
        sequence = self.begin(name, text)
        self.extend(sequence, *(ends or (len(text),)))
        self.life.finish(sequence)

    def states(self):
        """{end: depth of its state or None} of the nodes on one path."""
        tags = self.memory.states.tags
        return {n.end: None if n.state is None else tags[n.state].depth for n in self.memory.tree.root.walk()}

    def check(self):
        self.life.check_invariants()
        assert totals(self.life) == (self.memory.allocator.total_tokens, self.memory.states.total_slots)

    def refuses(self, error, call, match=None):
        """The call raises and every structure is as it was."""
        before = books(self.life)
        with pytest.raises(error, match=match) as caught:
            call()
        assert books(self.life) == before
        self.check()
        return str(caught.value)


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


def test_a_rule_that_raises_changes_nothing(monkeypatch):
    monkeypatch.setattr(RULES, "_rules", dict(RULES._rules))

    @rule("broken")
    def broken(g, prefix, end, branch):
        return Decision(end + 1, True, "beyond the end")

    b = Bench("broken")
    s = b.begin("a", b.doc(600))
    assert "'broken'" in b.refuses(RuleError, lambda: b.life.plan_extend(s, 600))


def test_a_depth_off_the_kernels_chunks_gets_the_state_before_it(monkeypatch):
    """A user's rule that claims any depth on a chunked kernel: the shadow tag tells what is really there."""
    monkeypatch.setattr(RULES, "_rules", dict(RULES._rules))
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


# --- checkpoint -------------------------------------------------------------------------------------------


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


# --- decode -----------------------------------------------------------------------------------------------

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


# --- leaving ----------------------------------------------------------------------------------------------


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


# --- the seed bug: sglang#39115 ---------------------------------------------------------------------------


def seed(rule, *, strict, checkpoint=False):
    """A cut at 64, an extend to 604, one token decoded: 605 tokens owned at the end."""
    b = Bench(rule, strict=strict)
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=checkpoint)
    b.decode(s, 1)
    assert s.computed == 605
    return b, s


@pytest.mark.parametrize("rule", ["absolute", "dcp_gated", "page_exact", "marconi"])
def test_seed_bug_under_a_sound_rule(rule):
    b, s = seed(rule, strict=True)
    assert [x.wanted for x in s.tracked] == [512]
    assert b.life.finish(s) == ((512, 605),)
    assert b.states() == {512: 512}
    b.check()


@pytest.mark.parametrize("rule", ["prefix_relative", "chunk_grid"])
@pytest.mark.parametrize("how", ["finish", "retract"])
def test_seed_bug_refused_with_the_books_as_they_were(rule, how):
    b, s = seed(rule, strict=True)
    assert [x.wanted for x in s.tracked] == [576]
    message = b.refuses(PageSharedError, lambda: getattr(b.life, how)(s))
    for word in ("[512, 576)", "[576, 605)", "page 1"):
        assert word in message
    assert b.life.abort(s) == ((0, 605),)
    assert (b.memory.free_kv_tokens, b.memory.free_state_slots) == (16 * 512, 16)


def test_seed_bug_refused_at_a_checkpoint_with_the_books_as_they_were():
    b = Bench("prefix_relative")
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=False)
    message = b.refuses(MisplacedStateError, lambda: b.life.checkpoint(s))
    assert "tracked at depth 576 has consumed 576 tokens" in message
    assert "ends at 512" in message


def test_seed_bug_at_a_checkpoint_without_a_free_slot_evicts_nothing():
    b = Bench("prefix_relative", slots=5)
    for segment in (7, 8):
        b.run(str(segment), b.text((segment, 512)))
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=False)
    assert b.memory.free_state_slots == 0
    b.refuses(MisplacedStateError, lambda: b.life.checkpoint(s))


def test_seed_bug_with_an_older_state_beside_it_changes_nothing():
    """The older ping-pong state must not be given up before the refusal."""
    b = Bench("prefix_relative", slots=3)
    s = b.begin("a", b.doc(1200))
    b.extend(s, 64, 600, checkpoint=False)  # tracks 576
    b.extend(s, 1200, checkpoint=False)  # tracks 600 + 512 = 1112
    assert [x.wanted for x in s.tracked] == [576, 1112]
    b.refuses(PageSharedError, lambda: b.life.finish(s))


def test_seed_bug_without_the_check():
    b, s = seed("prefix_relative", strict=False)
    assert b.life.finish(s) == ((512, 576), (576, 605))
    assert [v.kind for v in b.log.of(Violation)] == ["PageSharedError", "MisplacedStateError"]
    assert b.states() == {512: 576}
    assert b.memory.free_kv_tokens == 15 * 512, "the shared page goes back once"
    with pytest.raises(MisplacedStateError, match="node ending at 512 has consumed 576 tokens: 64 too many"):
        b.life.check_invariants()
    assert b.memory.violations(misplaced=False) == []


def test_seed_bug_spreads_to_whoever_matches_the_node():
    """The next request runs [512, 576) through the recurrence twice, and donates what comes of it."""
    b, s = seed("prefix_relative", strict=False)
    b.life.finish(s)
    two = b.begin("b", b.doc(1100))
    assert two.computed == 512
    b.extend(two, 1100)  # a sound depth now: 512 + 512
    tags = b.memory.states.tags
    assert tags[two.working] == Tag(1100 + 64, TAINTED)
    assert b.states() == {512: 576, 1024: 1024 + 64}
    assert b.log.of(Violation)[-1].message.endswith("has consumed 1088 tokens: 64 too many")
    assert b.memory.violations(b.life.holdings(), misplaced=False) == []


def test_seed_bug_strict_at_the_second_request_is_refused():
    """A tainted state never enters the tree in strict mode, even at a depth that looks right."""
    b, s = seed("prefix_relative", strict=False)
    b.life.finish(s)
    strict = Lifecycle(b.memory, "absolute", strict=True, emit=b.log)
    two = strict.begin("b", b.doc(1100))
    strict.commit_extend(strict.plan_extend(two, 1100))
    with pytest.raises(InvariantError, match="tracked at depth 1024 has consumed 1088 tokens"):
        strict.checkpoint(two)
    strict.abort(two)
    assert b.states() == {512: 576}
