"""Eviction: which leaf goes first under each policy, tombstones, and which state goes first (sglang#31648)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart.cache import PageAllocator, StatePool
from depthchart.cache.eviction import POLICIES, LeafQueue
from depthchart.cache.node import Node
from depthchart.cache.tree import RadixTree
from depthchart.events import EventLog, NodeRemoved, StateDropped
from depthchart.tokens import PrefixIndex, Text, raw

PAGE = 2


class Tree:
    """A tree whose texts are named by letters: letter c is the page of tokens (ord(c), ord(c))."""

    def __init__(self, policy="lru", **options):
        self.index = PrefixIndex(PAGE)
        self.allocator, self.pool, self.log = PageAllocator(64, PAGE), StatePool(16), EventLog()
        self.tree = RadixTree(self.allocator, self.pool, PAGE, eviction=policy, emit=self.log, **options)

    def ids(self, letters):
        tokens = [ord(letter) for letter in letters for _ in range(PAGE)]
        return Text(self.index, raw(tokens)).ids(len(tokens))

    def put(self, letters, state=True, priority=0):
        ids = self.ids(letters)
        pages = self.allocator.allocate(len(ids))
        done = self.tree.insert(ids, pages, request=letters, priority=priority)
        self.allocator.free(pages[: done.existing // PAGE])
        if state and done.node.state is None:
            assert self.tree.file_state(done.node, self.pool.allocate())
        return done.node

    def match(self, letters):
        return self.tree.match(self.ids(letters)).node

    def left(self):
        """{text: has a state} of every node."""
        texts = {}
        for node in self.tree.root.walk():
            runs = self.index.text_of(node.ids[-1])
            letters = "".join(chr(first + k) for _, first, length in runs for k in range(length))
            texts[letters[::PAGE]] = node.state is not None
        return texts


# Four leaves a, b, c, d in this order of creation, a with priority 2, c with 1, the others 0. Then b is inserted
# again twice, d once, and last a is matched. Which go first, by hand:
ORDERS = {
    "lru": "cbda",  # c never touched, then b, d, a
    "lfu": "cadb",  # inserted again: c 0, a 0 (c is older in use), d 1, b 2
    "fifo": "abcd",
    "filo": "dcba",
    "slru": "cdab",  # b was inserted twice again: protected; the others by last use: c, d, a
    "priority": "bdca",  # priority 0: b, d by last use; then c (1), a (2)
}


def test_every_policy_has_a_row():
    assert set(ORDERS) == set(POLICIES)


@pytest.mark.parametrize("policy", ORDERS)
def test_order_of_leaves(policy):
    t = Tree(policy)
    for letter, priority in (("a", 2), ("b", 0), ("c", 1), ("d", 0)):
        t.put(letter, priority=priority)
    for letter in "bbd":
        t.put(letter)
    t.match("a")
    order = ""
    while t.left():
        before = set(t.left())
        assert t.tree.evict(kv_tokens=1).kv_tokens == PAGE
        order += "".join(before - set(t.left()))
    assert order == ORDERS[policy]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=25),
    st.sampled_from(sorted(POLICIES)),
)
@settings(deadline=None)
def test_each_evicted_leaf_is_the_least_by_a_plain_scan(uses, policy):
    t = Tree(policy)
    for number, (letter, insert) in enumerate(uses):
        if insert:
            t.put(letter, priority=number % 3)
        else:
            t.match(letter)
    while nodes := list(t.tree.root.walk()):
        least = min(nodes, key=POLICIES[policy])
        t.tree.evict(kv_tokens=1)
        assert least not in list(t.tree.root.walk())
        assert len(list(t.tree.root.walk())) == len(nodes) - 1


EVICTIONS = [
    # id, texts put (capital: without a state), evict(kv_tokens, states) -> evicted (KV tokens, states), left
    ("nothing asked", ["a"], (0, 0), (0, 0), {"a": True}),
    ("nothing there", [], (5, 5), (0, 0), {}),
    ("a leaf goes whole, with its state", ["aaa"], (1, 0), (6, 1), {}),
    ("at least so much", ["a", "b"], (3, 0), (4, 2), {}),
    ("a leaf's state takes the leaf along", ["a", "b"], (0, 1), (2, 1), {"b": True}),
    ("an inner state leaves a tombstone", ["a", "ab"], (0, 1), (0, 1), {"a": False, "ab": True}),
    ("a tombstone without children goes too", ["a", "ab"], (0, 2), (4, 2), {}),
    ("an inner node with a state stays", ["a", "ab"], (1, 0), (2, 1), {"a": True}),
    ("a fork stays while a branch is left", ["ab", "ac"], (1, 0), (2, 1), {"a": False, "ac": True}),
    ("then goes with it", ["ab", "ac"], (3, 0), (6, 2), {}),
    ("KV counts before states", ["a", "b"], (2, 1), (2, 1), {"b": True}),
    ("a long chain of bare nodes", ["ab", "ac", "abcd"], (100, 0), (10, 3), {}),
]


@pytest.mark.parametrize("row", EVICTIONS, ids=[row[0] for row in EVICTIONS])
def test_what_goes_together(row):
    _, texts, wanted, evicted, left = row
    t = Tree()
    for text in texts:
        t.put(text)
    assert tuple(t.tree.evict(*wanted)) == evicted
    assert t.left() == left
    t.allocator.check(page for node in t.tree.root.walk() for page in node.pages)
    t.pool.check(node.state for node in t.tree.root.walk() if node.state is not None)


def test_tombstones_are_kept_where_wanted_as_sglang_does():
    t = Tree(keep_tombstones=True)
    t.put("ab")
    t.put("ac")
    assert tuple(t.tree.evict(states=2)) == (4, 2)
    assert t.left() == {"a": False}
    assert tuple(t.tree.evict(kv_tokens=1)) == (2, 0)
    assert t.left() == {}


def test_a_match_refreshes_only_the_state_that_it_uses():
    """sglang#31648: matching ab must not keep the state of a alive."""
    t = Tree()
    for text in ("a", "ab", "c"):
        t.put(text)
    t.match("ab")
    for gone in ("a", "c", "ab"):
        holders = [text for text, state in t.left().items() if state]
        t.tree.evict(states=1)
        assert [text for text in holders if not t.left().get(text)] == [gone]


def test_a_refused_state_refreshes_the_one_that_is_there():
    t = Tree()
    node = t.put("a")
    t.put("b")
    slot = t.pool.allocate()
    assert not t.tree.file_state(node, slot)
    t.tree.evict(states=1)
    assert t.left() == {"a": True}


def test_nothing_locked_goes():
    t = Tree()
    t.put("a")
    t.put("ab")
    t.put("ac")
    node = t.match("ab")
    t.tree.lock(node)
    assert tuple(t.tree.evict(100, 100)) == (2, 2)  # ac whole; the state of a, whose KV is locked
    assert t.left() == {"a": False, "ab": True}
    t.tree.unlock(node)
    assert tuple(t.tree.evict(100, 100)) == (4, 1)


def test_eviction_is_told_in_events():
    t = Tree()
    t.put("ab")
    t.put("ac")
    t.tree.evict(100)
    assert [e.why for e in t.log.of(NodeRemoved)] == ["KV evicted", "KV evicted", "childless tombstone"]
    assert [e.tokens for e in t.log.of(NodeRemoved)] == [2, 2, 2]
    assert len(t.log.of(StateDropped)) == 2


def test_the_queue_forgets_what_is_no_free_leaf():
    root = Node(0, None, [], [], 0, 0)
    leaf, locked, inner = (Node(k, root, [k], [k], 0, 1) for k in (1, 2, 3))
    locked.kv_locks = 1
    inner.children[9] = leaf
    queue = LeafQueue("lru")
    for node in (locked, inner, leaf, leaf):
        queue.offer(node)
    assert queue.pop() is leaf
    assert queue.pop() is None
    locked.kv_locks = 0
    queue.offer(locked)
    assert queue.pop() is locked
