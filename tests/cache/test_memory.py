"""The whole memory: room by eviction, refusals that change nothing, and every kind of broken book found."""

import pytest

from depthchart import Geometry
from depthchart.cache import Memory
from depthchart.cache.memory import Holding
from depthchart.errors import InvariantError, MisplacedStateError, PoolExhausted
from depthchart.tokens import PrefixIndex, Tag, Text

G = Geometry(64, 8)  # tree page 512


def text(memory, segment, tokens):
    return Text(memory.index, [(segment, 0, tokens)])


def put(memory, segment, pages, *, locked=False):
    """A text of its own in the tree, with a state at its end."""
    line = text(memory, segment, pages * memory.geometry.tree_page)
    own = memory.take_pages(pages)
    node, existing = memory.tree.insert(line.ids(len(line)), own)
    memory.allocator.free(own[: existing // memory.geometry.tree_page])
    slot = memory.take_slot()
    memory.states.tags[slot] = line.tag(len(line))
    memory.tree.file_state(node, slot)
    if locked:
        memory.tree.lock(node)
    return node


def filled(kv_pages=8, slots=4, **options):
    return Memory(G, kv_pages * 512, slots, **options)


ROOM = [
    # id, pool pages, pages in the tree (free to evict), pages locked, wanted, spare -> pages evicted, or None: refused
    ("free", 4, 0, 0, 4, 0, 0),
    ("one short", 4, 2, 0, 3, 0, 1),
    ("all of it", 4, 4, 0, 4, 0, 4),
    ("more than the pool", 4, 4, 0, 5, 0, None),
    ("locked", 4, 2, 2, 3, 0, None),
    ("beside locked", 4, 2, 2, 2, 0, 2),
    ("spare pages are evicted on top", 4, 3, 0, 1, 1, 1),
    ("spare pages are not insisted on", 4, 2, 2, 2, 1, 2),
    ("none", 4, 4, 0, 0, 0, 0),
]


@pytest.mark.parametrize("row", ROOM, ids=[row[0] for row in ROOM])
def test_take_pages(row):
    _, pool, evictable, locked, wanted, spare, evicted = row
    memory = filled(pool, 8)
    for segment in range(evictable):
        put(memory, segment, 1)
    for segment in range(locked):
        put(memory, 100 + segment, 1, locked=True)
    before = memory.free_kv_tokens, list(memory.tree.root.walk())
    if evicted is None:
        with pytest.raises(
            PoolExhausted, match=f"{wanted} pages of 512 KV tokens wanted; {before[0]} tokens are free"
        ):
            memory.take_pages(wanted, spare)
        assert (memory.free_kv_tokens, list(memory.tree.root.walk())) == before
        return
    pages = memory.take_pages(wanted, spare)
    assert len(set(pages)) == wanted
    assert len(list(memory.tree.root.walk())) == evictable + locked - evicted
    memory.allocator.check([*pages, *(p for n in memory.tree.root.walk() for p in n.pages)])


def test_take_slot_evicts_the_oldest_state_then_gives_up():
    memory = filled(8, 2)
    put(memory, 1, 1)
    node = put(memory, 2, 1, locked=True)
    assert memory.take_slot() is not None  # the state of text 1 went
    assert [n for n in memory.tree.root.walk() if n.state is not None] == [node]
    assert memory.take_slot() is None
    assert node.state is not None


@pytest.mark.parametrize(("count", "given"), [(0, 0), (1, 1), (2, 2), (3, None)])
def test_take_slots_all_or_none(count, given):
    memory = filled(8, 3)
    put(memory, 1, 1)
    put(memory, 2, 1, locked=True)
    slots = memory.take_slots(count)
    assert (None if slots is None else len(slots)) == given
    if slots is None:
        assert (memory.free_state_slots, memory.tree.evictable_states) == (1, 1)


MISPLACED = [
    # id, tag on a node [0, 512) of text 1, words
    ("right", lambda t: t.tag(512), None),
    ("never written", lambda t: None, "never written"),
    ("sglang#39115", lambda t: Tag(576, -1), "has consumed 576 tokens: 64 too many"),
    ("too few", lambda t: t.tag(448), "has consumed 448 tokens: 64 too few"),
    ("counted twice", lambda t: Tag(512, -1), "512 tokens of another text"),
    ("a tail", lambda t: Tag(512, t.ids(512)[-1], ((1, 0, 1),)), "512 tokens of another text"),
]


@pytest.mark.parametrize("row", MISPLACED, ids=[row[0] for row in MISPLACED])
def test_misplaced_states_are_found(row):
    _, tag, words = row
    memory = filled()
    node = put(memory, 1, 1)
    memory.states.tags[node.state] = tag(text(memory, 1, 1024))
    problem = memory.misplaced(node, node.state)
    if words is None:
        assert problem is None
        memory.check_invariants()
        return
    assert words in problem
    kind = InvariantError if words == "never written" else MisplacedStateError
    with pytest.raises(InvariantError, match="state") as caught:
        memory.check_invariants()
    assert type(caught.value) is kind
    assert memory.violations(misplaced=False) == []


def test_the_state_of_another_text_is_found():
    memory = filled()
    node = put(memory, 1, 1)
    memory.states.tags[node.state] = text(memory, 2, 512).tag(512)
    assert "of another text" in memory.misplaced(node, node.state)


def lose_a_page(memory, node):
    node.pages, node.ids, node.end = node.pages[:1], node.ids[:1], node.start + 512


BROKEN = [
    # id, what to do to a memory with one node [0, 1024) -> words of the violation
    ("page lost", lambda m, n: m.allocator.allocate(1), "page 2 has 0 owners"),
    ("page freed under the tree", lambda m, n: m.allocator.free([n.pages[0]]), "owned twice"),
    ("slot lost", lambda m, n: m.states.allocate(), "state slot 1 has 0 owners"),
    ("slot freed under the tree", lambda m, n: m.states.free(n.state), "never written"),
    ("boundary off the page", lambda m, n: setattr(n, "end", 1000), "must lie on the tree page 512"),
    ("fewer pages than tokens", lambda m, n: n.pages.pop(), "2 ids and 1 pages for 1024 tokens"),
    ("edge shorter than counted", lose_a_page, "evictable KV tokens: counted 1024, really 512"),
    ("lock of nobody", lambda m, n: setattr(n, "kv_locks", 1), "protected KV tokens: counted 0, really 1024"),
    (
        "state lock of nobody",
        lambda m, n: setattr(n, "state_locks", 1),
        "protected states: counted 0, really 1",
    ),
    (
        "state out of the LRU",
        lambda m, n: m.tree.state_order.clear(),
        "states in the LRU: counted 0, really 1",
    ),
]


@pytest.mark.parametrize("row", BROKEN, ids=[row[0] for row in BROKEN])
def test_every_broken_book_is_found(row):
    _, damage, words = row
    memory = filled()
    node = put(memory, 1, 2)
    memory.check_invariants()
    damage(memory, node)
    assert any(words in problem for problem in memory.violations()), memory.violations()
    with pytest.raises(InvariantError):
        memory.check_invariants()


HUNG = [
    # id, what to do to the child [512, 1024) of a node [0, 512) -> words
    ("gap", lambda child: setattr(child, "start", 1024), "hung wrongly"),
    ("other parent", lambda child: setattr(child, "parent", child), "hung wrongly"),
    ("other key", lambda child: setattr(child, "ids", [999]), "hung wrongly"),
    (
        "locked beside its parent",
        lambda child: setattr(child, "kv_locks", 1),
        "locked more often than its parent",
    ),
]


@pytest.mark.parametrize("row", HUNG, ids=[row[0] for row in HUNG])
def test_a_child_hung_wrongly_is_found(row):
    _, damage, words = row
    memory = filled()
    upper, child = put(memory, 1, 1), put(memory, 1, 2)
    assert upper.check(512) is None
    damage(child)
    assert words in upper.check(512)


def test_locks_must_be_those_of_the_running_requests():
    memory = filled()
    node, other = put(memory, 1, 1), put(memory, 2, 1)
    memory.tree.lock(node)
    memory.check_invariants([Holding("a", [], [], node)])
    for wrong in (
        Holding("a", [], [], other),
        Holding("a", [], [], None),
        Holding("a", [], [], memory.tree.root),
    ):
        with pytest.raises(InvariantError, match="locks should be"):
            memory.check_invariants([wrong])
    with pytest.raises(InvariantError, match="locks should be 2/2"):
        memory.check_invariants([Holding("a", [], [], node), Holding("b", [], [], node)])


def test_what_requests_hold_counts_as_owned_once():
    memory = filled()
    pages, slot = memory.take_pages(2), memory.take_slot()
    memory.check_invariants([Holding("a", pages, [slot], None)])
    with pytest.raises(InvariantError, match="owned twice"):
        memory.check_invariants([Holding("a", pages, [slot], None), Holding("b", pages[:1], [], None)])
    with pytest.raises(InvariantError, match="2 owners"):
        memory.check_invariants([Holding("a", pages, [slot, slot], None)])
    with pytest.raises(InvariantError, match="0 owners"):
        memory.check_invariants()


def test_one_index_serves_several_memories_of_one_page():
    index = PrefixIndex(512)
    assert len(index) == 0, "an empty index counts too"
    assert filled(index=index).index is index
    assert filled(index=index).index is index
    with pytest.raises(ValueError, match="index: made for pages of 64 tokens; the tree page is 512"):
        filled(index=PrefixIndex(64))


def test_pools_are_rounded_to_tree_pages():
    memory = Memory(G, 1500, 3)
    assert (memory.free_kv_tokens, memory.free_state_slots) == (1024, 3)
