"""The radix tree: tables by hand, and a slow twin without nodes compared after every operation."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from depthchart.cache import PageAllocator, RadixTree, StatePool
from depthchart.events import EventLog, NodeAdded, NodeSplit, StateFiled
from depthchart.tokens import PrefixIndex, Tag, Text, raw, runs_to_tokens

sys.path.insert(0, str(Path(__file__).parent))
from prefix_twin import PrefixTwin

PAGE = 4


class Tree:
    """A tree over plain token lists, so that tables can be written by hand. ``states=0`` means many."""

    def __init__(self, page=PAGE, grid=PAGE, pages=64, states=16, **options):
        self.index = PrefixIndex(page)
        self.allocator, self.pool = PageAllocator(pages * page, page), StatePool(states)
        self.log = EventLog()
        self.tree = RadixTree(self.allocator, self.pool, grid, emit=self.log, **options)
        self.page = page

    def ids(self, tokens, namespace=""):
        return Text(self.index, raw(tokens), namespace).ids(len(tokens))

    def insert(self, tokens, state=False, namespace=""):
        """Insert whole pages; with ``state`` file one at the end. Returns the tokens that were there."""
        ids = self.ids(tokens, namespace)
        pages = self.allocator.allocate(len(ids))
        done = self.tree.insert(ids, pages, namespace=namespace)
        self.allocator.free(pages[: done.existing // self.page])
        if state:
            slot = self.pool.allocate()
            self.pool.tags[slot] = Tag(done.node.end, ids[-1])
            if not self.tree.file_state(done.node, slot):
                self.pool.free(slot)
        return done.existing

    def match(self, tokens, namespace=""):
        return self.tree.match(self.ids(tokens, namespace))

    def shape(self):
        """(start, end, has a state) of every node, depth first."""
        return [(n.start, n.end, n.state is not None) for n in self.tree.root.walk()]

    def owned(self):
        nodes = list(self.tree.root.walk())
        self.allocator.check(page for n in nodes for page in n.pages)
        self.pool.check(n.state for n in nodes if n.state is not None)


A = list(range(100, 120))  # five pages of 4
B = A[:8] + list(range(200, 212))  # parts from A after two pages

LOOKUPS = [
    # id, inserted (tokens, with state), asked, grid -> tokens, kv_tokens, branch
    ("empty tree", [], A, 4, 0, 0, None),
    ("empty text", [(A, True)], [], 4, 0, 0, None),
    ("below one page", [(A, True)], A[:3], 4, 0, 0, None),
    ("whole", [(A, True)], A, 4, 20, 20, None),
    ("longer text", [(A[:8], True)], A, 4, 8, 8, None),
    ("inside the edge: its state is out of reach", [(A, True)], A[:12], 4, 0, 12, 12),
    ("a partial page does not count", [(A, True)], A[:15], 4, 0, 12, 12),
    ("KV without state", [(A, False)], A, 4, 0, 20, 20),
    ("a state above", [(A[:8], True), (A, False)], A, 4, 8, 20, 20),
    ("two states: the deeper", [(A[:8], True), (A, True)], A, 4, 20, 20, None),
    ("two states: the one in reach", [(A[:8], True), (A, True)], A[:16], 4, 8, 16, 16),
    ("parted after two pages", [(A, True)], B, 4, 0, 8, 8),
    ("both branches", [(A, True), (B, True)], B, 4, 20, 20, None),
    ("branch on the grid only", [(A, True)], A[:12], 8, 0, 12, 8),
    ("no grid point in the KV match", [(A, True)], A[:4], 8, 0, 4, None),
    ("grid point not beyond the state", [(A[:8], True), (A, False)], A[:12], 8, 8, 12, None),
    ("first token differs", [(A, True)], [1, *A[1:]], 4, 0, 0, None),
]


@pytest.mark.parametrize("row", LOOKUPS, ids=[row[0] for row in LOOKUPS])
def test_lookup(row):
    _, inserted, asked, grid, *right = row
    t = Tree(grid=grid)
    for tokens, state in inserted:
        t.insert(tokens, state)
    before = t.shape()
    found = t.tree.lookup(t.ids(asked))
    assert [found.tokens, found.kv_tokens, found.branch] == right
    assert found.node.end == found.tokens
    assert t.shape() == before
    used = t.match(asked)
    assert used[1:4] == found[1:4]
    assert used.kv_node.end == used.kv_tokens, "after a match, a node ends where its KV ended"


SHAPES = [
    # id, operations -> shape, events of growth
    ("one edge", [("insert", A, True)], [(0, 20, True)]),
    ("again", [("insert", A, True), ("insert", A, True)], [(0, 20, True)]),
    ("shorter key: the state stays with the old end", [("insert", A, True), ("insert", A[:8], False)],
     [(0, 8, False), (8, 20, True)]),
    ("shorter key with a state", [("insert", A, True), ("insert", A[:8], True)], [(0, 8, True), (8, 20, True)]),
    ("a fork", [("insert", A, True), ("insert", B, True)], [(0, 8, False), (8, 20, True), (8, 20, True)]),
    ("grown", [("insert", A[:8], True), ("insert", A, False)], [(0, 8, True), (8, 20, False)]),
    ("a match splits where its KV ends", [("insert", A, True), ("match", A[:12])], [(0, 12, False), (12, 20, True)]),
    ("a match of all splits nothing", [("insert", A, True), ("match", A)], [(0, 20, True)]),
    ("a miss splits nothing", [("insert", A, True), ("match", [7] * 8)], [(0, 20, True)]),
    ("nothing", [("insert", [], False)], []),
]  # fmt: skip


@pytest.mark.parametrize("row", SHAPES, ids=[row[0] for row in SHAPES])
def test_shapes(row):
    _, operations, shape = row
    t = Tree()
    for name, *arguments in operations:
        getattr(t, name)(*arguments)
    assert t.shape() == shape
    t.owned()


def test_insert_tells_what_was_there_and_keeps_the_trees_pages():
    t = Tree()
    assert t.insert(A[:8]) == 0
    node = next(t.tree.root.walk())
    pages = list(node.pages)
    assert t.insert(A) == 8
    assert t.insert(B) == 8
    assert t.insert(A[:4]) == 4
    assert list(t.tree.pages_of(t.match(A[:8], "").node)) == []  # no state: the match is empty
    assert [p for n in t.tree.root.walk() if n.end <= 8 for p in n.pages] == pages
    t.owned()


def test_as_many_pages_as_ids():
    t = Tree()
    with pytest.raises(ValueError, match="1 pages for 2 page ids"):
        t.tree.insert(t.ids(A[:8]), [0])


def test_namespaces_share_nothing():
    t = Tree()
    t.insert(A, True)
    assert t.match(A, "lora").tokens == 0
    assert t.insert(A, True, "lora") == 0
    assert t.match(A, "lora").node is not t.match(A).node
    assert t.shape() == [(0, 20, True), (0, 20, True)]


def test_growth_is_told_in_events():
    t = Tree()
    t.insert(A, True)
    t.insert(B, True)
    first, second, upper = 1, 3, 2
    assert t.log.of(NodeAdded) == [
        NodeAdded(first, 0, 0, 20, "", ""),
        NodeAdded(second, upper, 8, 20, "", ""),
    ]
    assert t.log.of(NodeSplit) == [NodeSplit(first, upper, 8)]
    assert [(e.node_id, e.end, e.state_depth) for e in t.log.of(StateFiled)] == [
        (first, 20, 20),
        (second, 20, 20),
    ]


def test_a_node_takes_one_state_and_the_root_none():
    t = Tree()
    t.insert(A, True)
    node, slot = t.match(A).node, t.pool.allocate()
    assert t.tree.file_state(node, slot) is False
    t.pool.free(slot)
    with pytest.raises(ValueError, match="the root cannot hold a state"):
        t.tree.file_state(t.tree.root, slot)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": 0}, "grid=0"),
        ({"max_states_per_path": 0}, "max_states_per_path=0"),
        ({"eviction": "lrru"}, "lru, lfu"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        Tree(**options)


# --- locks ------------------------------------------------------------------------------------------------


def test_a_lock_covers_the_kv_of_the_path_and_the_state_of_one_node():
    t = Tree()
    t.insert(A[:8], True)
    t.insert(A, True)
    t.insert(B, True)
    node = t.match(A).node
    t.tree.lock(node)
    upper = node.parent
    assert (t.tree.protected_tokens, t.tree.evictable_tokens) == (20, 12)
    assert (t.tree.protected_states, t.tree.evictable_states) == (1, 2)
    assert (upper.kv_locks, upper.state_locks, node.kv_locks, node.state_locks) == (1, 0, 1, 1)
    t.match(A[:16])  # splits the locked edge: both halves stay locked, the state's lock stays below
    assert (node.start, node.parent.kv_locks, node.parent.state_locks, node.state_locks) == (16, 1, 0, 1)
    with pytest.raises(ValueError, match="still locked"):
        t.tree.reset()
    t.tree.unlock(node)
    assert (t.tree.protected_tokens, t.tree.protected_states) == (0, 0)
    t.tree.reset()
    assert (t.shape(), t.allocator.free_tokens, t.pool.free_slots) == ([], 64 * PAGE, 16)


def test_a_lock_without_the_state_leaves_it_evictable():
    t = Tree()
    t.insert(A, True)
    node = t.match(A).node
    t.tree.lock(node, state=False)
    assert tuple(t.tree.evict(kv_tokens=20)) == (0, 0)
    assert tuple(t.tree.evict(states=1)) == (0, 1)
    assert t.shape() == [(0, 20, False)]
    t.tree.unlock(node, state=False)
    t.tree.reset()
    assert t.shape() == []


def test_a_locked_tombstone_outlives_its_children():
    t = Tree()
    t.insert(A[:8], True)
    t.insert(A, True)
    node = t.match(A[:8]).node
    t.tree.lock(node, state=False)
    t.match(A)  # the state of 8 is the older one now
    assert tuple(t.tree.evict(states=1)) == (0, 1)
    assert tuple(t.tree.evict(kv_tokens=100)) == (12, 1)
    assert t.shape() == [(0, 8, False)]
    t.tree.unlock(node, state=False)
    assert tuple(t.tree.evict(kv_tokens=100)) == (8, 0)
    t.owned()


def test_locking_the_root_protects_nothing():
    t = Tree()
    t.insert(A, True)
    t.tree.lock(t.tree.root)
    assert t.tree.protected_tokens == t.tree.protected_states == 0
    t.tree.unlock(t.tree.root)


@pytest.mark.parametrize("state", [True, False])
def test_unlocking_what_is_not_locked_is_refused(state):
    t = Tree()
    t.insert(A, True)
    with pytest.raises(AssertionError, match="not locked"):
        t.tree.unlock(t.match(A).node, state=state)


# --- the cap of states per path (sglang#31230) ------------------------------------------------------------


CAPS = [
    # id, pages of A that get a state in this order, cap, fork at, lock at -> pages that keep one
    ("no cap", [1, 2, 3, 4], None, None, None, [1, 2, 3, 4]),
    ("within the cap", [1, 2], 2, None, None, [1, 2]),
    ("shallow inner states go", [1, 2, 3, 4], 2, None, None, [3, 4]),
    ("a fork stays", [1, 2, 3, 4], 2, 2, None, [2, 4]),
    ("a locked one stays, the cap is soft", [1, 2, 3], 1, None, 1, [1, 3]),
]


@pytest.mark.parametrize("row", CAPS, ids=[row[0] for row in CAPS])
def test_cap_of_states_per_path(row):
    _, pages, cap, fork, locked, left = row
    t = Tree(max_states_per_path=cap)
    for page in pages:
        t.insert(A[: page * PAGE], True)
        if page == fork:
            t.insert([*A[: page * PAGE], *[9] * PAGE])
        if page == locked:
            t.tree.lock(t.match(A[: page * PAGE]).node)
    assert sorted(end // PAGE for _, end, state in t.shape() if state) == left
    t.owned()


def test_the_cap_keeps_forks():
    t = Tree(max_states_per_path=1)
    t.insert(A[:8], True)
    t.insert(B, True)  # 8 has one child when this state comes: pruned
    t.insert(A[:8], True)
    t.insert(A, True)  # now 8 is a fork: kept
    assert sorted(t.shape()) == [(0, 8, True), (8, 20, True), (8, 20, True)]


# --- the twin ---------------------------------------------------------------------------------------------


# Texts that share beginnings: a number of 0s, then a tail that soon differs; now and then in a namespace.
TOKENS = st.builds(
    lambda zeros, tail: [0] * zeros + tail, st.integers(0, 12), st.lists(st.integers(0, 2), max_size=6)
)
TEXTS = st.tuples(TOKENS, st.sampled_from(["", "", "", "lora"]))


class TreeAgainstTwin(RuleBasedStateMachine):
    """Every operation on both; after each one the twin must explain every node, lock and count."""

    @initialize(
        page=st.integers(1, 3), factor=st.integers(1, 3), pages=st.integers(1, 30), slots=st.integers(1, 6)
    )
    def build(self, page, factor, pages, slots):
        self.t = Tree(page, page * factor, pages, slots)
        self.twin = PrefixTwin(page, page * factor)
        self.held = []

    @staticmethod
    def plain(text):
        """Tokens of a namespaced text as the twin sees them: no token is in two namespaces."""
        tokens, namespace = text
        return [token + 10 * bool(namespace) for token in tokens]

    def room(self, pages, slot):
        """Evict on both until ``pages`` and ``slot`` slots are free; False where locks forbid it."""
        need = max(0, pages * self.t.page - self.t.allocator.free_tokens), slot - self.t.pool.free_slots
        if any(need):
            self.evict(*(max(n, 0) for n in need))
        return self.t.allocator.free_tokens >= pages * self.t.page and self.t.pool.free_slots >= slot

    @rule(text=TEXTS, state=st.booleans())
    def insert(self, text, state):
        pages = len(text[0]) // self.t.page
        if not self.room(pages, int(state)):
            return
        whole = text[0][: pages * self.t.page]
        existing = self.twin.insert(self.plain((whole, text[1])))
        key = tuple(self.plain((whole, text[1])))
        if state and key:
            self.twin.file_state(key, 0)
        assert self.t.insert(whole, state and bool(key), text[1]) == existing

    @rule(text=TEXTS)
    def match(self, text):
        assert self.t.match(*text)[1:4] == self.twin.match(self.plain(text))

    @rule(text=TEXTS)
    def lookup(self, text):
        assert self.t.tree.lookup(self.t.ids(*text))[1:4] == self.twin.lookup(self.plain(text))

    @rule(text=TEXTS, state=st.sampled_from([True, True, False]))
    def lock(self, text, state):
        found = self.t.match(*text)
        tokens, _, _ = self.twin.match(self.plain(text))
        self.t.tree.lock(found.node, state=state)
        prefix = tuple(self.plain(text)[:tokens])
        self.twin.lock(prefix, 1, state)
        self.held.append((found.node, prefix, state))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data):
        node, prefix, state = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.t.tree.unlock(node, state=state)
        self.twin.lock(prefix, -1, state)

    @rule(states=st.integers(1, 2))
    def evict_states(self, states):
        self.evict(0, states)

    @rule(kv_tokens=st.integers(1, 9), states=st.integers(0, 1))
    def evict_both(self, kv_tokens, states):
        self.evict(kv_tokens, states)

    def evict(self, kv_tokens, states):
        assert tuple(self.t.tree.evict(kv_tokens, states)) == self.twin.evict(kv_tokens, states)

    @invariant()
    def same(self):
        if not hasattr(self, "t"):
            return
        tree, shown = self.t.tree, {}
        for node in tree.root.walk():
            tokens = runs_to_tokens(self.t.index.text_of(node.ids[-1])).tolist()
            state = None if node.state is None else 0
            shown[tuple(self.plain((tokens, node.namespace)))] = (state, node.kv_locks, node.state_locks)
            assert node.check(self.t.page) is None
        assert shown == self.twin.ends()
        assert tree.evictable_tokens == self.twin.evictable_tokens()
        assert tree.evictable_states == self.twin.evictable_states()
        order = [runs_to_tokens(self.t.index.text_of(n.ids[-1])).tolist() for n in tree.state_order]
        assert order == [[token % 10 for token in prefix] for prefix in self.twin.states]
        self.t.owned()

    def teardown(self):
        if not hasattr(self, "t"):
            return
        for node, _, state in self.held:
            self.t.tree.unlock(node, state=state)
        self.t.tree.reset()
        assert self.t.shape() == []
        assert self.t.allocator.free_tokens == self.t.allocator.total_tokens
        assert self.t.pool.free_slots == self.t.pool.total_slots


def test_tree_against_twin():
    run_state_machine_as_test(
        TreeAgainstTwin, settings=settings(max_examples=250, stateful_step_count=40, deadline=None)
    )


@pytest.mark.slow
def test_tree_against_twin_at_length():
    run_state_machine_as_test(
        TreeAgainstTwin, settings=settings(max_examples=3000, stateful_step_count=80, deadline=None)
    )
