"""Eviction orders of KV leaves and of states, by hand."""

from __future__ import annotations

import pytest

from depthchart.cache.eviction import ORDERS, marconi_scores
from depthchart.cache.memory import Memory
from depthchart.cache.node import Origin
from depthchart.cache.states import STATE_POLICIES
from depthchart.cache.worth import Worth, covered_from
from depthchart.geometry import Geometry
from depthchart.models import MODELS
from depthchart.rules import spaced
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.tokens import Tag, Text

PAGE = 4
SMALL = Geometry(PAGE, chunk_width=PAGE)


class Cache:
    """A memory whose texts are put in and matched whole, by name."""

    def __init__(self, pages=100, slots=20, **policies):
        self.memory = Memory(SMALL, pages * PAGE, slots, **policies)
        self.tree = self.memory.tree

    def ids(self, *pages):
        """Each page is a segment of its own; equal numbers are equal pages."""
        return Text(self.memory.index, [(page, 0, PAGE) for page in pages]).ids(len(pages) * PAGE)

    def put(self, *pages, state=True):
        ids = self.ids(*pages)
        row = self.memory.take_pages(len(ids))
        inserted = self.tree.insert(ids, row)
        self.memory.allocator.free(row[: inserted.existing // PAGE])
        if state and inserted.node.state is None:
            slot = self.memory.take_slot()
            self.memory.states.tags[slot] = Tag(inserted.node.end, ids[-1])
            self.tree.file_state(inserted.node, slot)
        return inserted.node

    def use(self, *pages):
        return self.tree.match(self.ids(*pages)).tokens // PAGE

    def has(self, *pages):
        return self.tree.lookup(self.ids(*pages)).kv_tokens // PAGE == len(pages)

    def states(self):
        return sorted(node.end // PAGE for node in self.tree.state_order)


def survivors(policy, uses=(), puts=((1,), (2,), (3,)), evict=1, **more):
    cache = Cache(eviction=policy, **more)
    for text in puts:
        cache.put(*text)
    for text in uses:
        cache.use(*text)
    cache.tree.evict(kv_tokens=evict)
    return [text for text in puts if cache.has(*text)]


@pytest.mark.parametrize(
    ("policy", "uses", "gone"),
    [
        ("lru", [(1,)], (2,)),
        ("fifo", [(1,)], (1,)),
        ("filo", [(1,)], (3,)),
        ("s3fifo", [(1,)], (2,)),
        ("flops", [(1,)], (2,)),
    ],
)
def test_which_of_three_equal_leaves_goes(policy, uses, gone):
    assert gone not in survivors(policy, uses)


def test_size_takes_the_large_leaf_before_small_older_ones():
    puts = [(1,), (2, 21, 22, 23, 24), (3,)]
    assert survivors("size", puts=puts) == [(1,), (3,)]


def test_size_forgets_old_uses():
    """GreedyDual: the credit of the last leaf that went is the floor of what comes later, so that a leaf used long ago
    does not stay for ever."""
    cache = Cache(eviction="size")
    cache.put(1, 10)
    for _ in range(3):
        cache.put(1, 10)  # three more uses: credit (1 + 3) / 2 = 2
    gone = []
    for number in range(2, 9):
        cache.put(number)  # credit: 1 more than that of the last one that went
        cache.tree.evict(kv_tokens=1)
        gone.append(cache.has(1, 10))
    assert gone[0]
    assert not gone[-1]


def test_s3fifo_resists_a_scan():
    """A leaf that was used once survives ten that pass through; plain fifo loses it."""
    outcome = {}
    for policy in ("s3fifo", "fifo"):
        cache = Cache(eviction=policy)
        cache.put(1)
        cache.use(1)
        for number in range(2, 12):
            cache.put(number)
            if number > 4:
                cache.tree.evict(kv_tokens=1)
        outcome[policy] = cache.has(1)
    assert outcome == {"s3fifo": True, "fifo": False}


def _waiting(order):
    """How many nodes each of an order's own books holds, by the book's name."""
    books = {**vars(order), **vars(getattr(order, "_scan", order))}
    return {
        name: len(book)
        for name, book in books.items()
        if isinstance(book, (list, dict)) and name != "_ghosts"  # which holds ids of what went, by tokens
    }


@pytest.mark.parametrize("policy", ["lru", "s3fifo", "size", "flops", "gain"])
def test_an_order_forgets_leaves_that_went_with_their_state(policy, monkeypatch):
    """States bind and KV does not, so no leaf is ever asked for: 2,000 texts pass through 20 slots."""
    monkeypatch.setattr("depthchart.cache.eviction.FEW_LEAVES", 8)
    cache = Cache(pages=10_000, slots=20, eviction=policy)
    order = cache.tree._leaves
    for number in range(1, 11):
        cache.put(number)
        cache.use(number)
    cache.tree.evict(kv_tokens=1)  # s3fifo moves all that were used to its main queue
    most = 0
    for number in range(100, 2100):
        cache.put(number)
        most = max(most, *_waiting(order).values())
    leaves = [node for node in cache.tree.root.walk() if node.is_leaf]
    assert len(leaves) == 20
    assert most <= 2 * (
        20 + 1
    )  # a book is gone through once it is twice as long as then; a new leaf comes before one goes
    if policy == "s3fifo":
        kept = sum(was.tokens for queue in (order._small, order._main) for was in queue.values())
        assert order._small_tokens + order._main_tokens == kept


def test_s3fifo_remembers_what_came_back():
    cache = Cache(eviction="s3fifo")
    for number in (1, 2, 3):
        cache.put(number)
    cache.tree.evict(kv_tokens=1)
    assert not cache.has(1)
    cache.put(1)  # a ghost: it starts in the main queue, and the small queue is emptied first
    cache.tree.evict(kv_tokens=2 * PAGE)
    assert cache.has(1)


def test_covered_from():
    cache = Cache()
    cache.put(1, 2)
    cache.put(1, 2, 3, state=False)
    deep = cache.put(1, 2, 3, 4)
    assert covered_from(deep) == 2 * PAGE
    assert covered_from(cache.put(7, 8)) == 0


def test_worth_by_hand():
    worth = Worth(context_share=0.1, state_tokens=6)
    assert worth.work(0, 10) == 10 * (1 + 0.1 * 5)
    cache = Cache()
    node = cache.put(1, 2)
    assert worth.work_per_memory(node) == pytest.approx(8 * (1 + 0.1 * 4) / (6 + 8))
    cache.put(1, 2, 3)
    assert worth.work_per_memory(node) == pytest.approx(8 * (1 + 0.1 * 4) / 6)  # its KV stays for the child


def test_worth_of_a_model():
    model = MODELS["Kimi-Linear-48B-A3B"]
    worth = Worth.of(model)
    assert worth.state_tokens == model.state_in_kv_tokens
    more = model.flops_per_token(8192).total / model.flops_per_token(0).total - 1
    assert worth.context_share * 8192 == pytest.approx(more)


def test_marconi_weighs_recency_against_work_per_memory():
    """The old long text saves more work per byte than the young short one."""
    cache = Cache()
    long, short = cache.put(*range(1, 9)), cache.put(20)
    worth = Worth(context_share=1.0, state_tokens=8)
    assert marconi_scores([long, short], worth, weight=0.0) == [0.0, 1.0]
    assert marconi_scores([long, short], worth, weight=2.0) == [2.0, 1.0]


def chain(policy, slots=4, **more):
    """States at 1, 2, 3 and 4 pages of one text; then one has to go."""
    cache = Cache(slots=slots, state_eviction=policy, **more)
    for pages in ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)):
        cache.put(*pages)
    return cache


def test_lru_takes_the_shallowest_state():
    cache = chain("lru")
    cache.tree.evict(states=1)
    assert cache.states() == [2, 3, 4]


def test_coverage_takes_the_state_of_least_reach_and_keeps_the_tip():
    """Texts of 3, 4 and 8 pages: the inner state at 4 covers one page, that at 3 three."""
    cache = Cache(slots=4, state_eviction="coverage")
    for pages in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8)):
        cache.put(*pages)
    cache.tree.evict(states=1)
    assert cache.states() == [3, 8]


def test_path_refresh_keeps_all_states_of_a_text_young():
    """bug_reports E2, on the tree: A1-A4, B1-B2 on 6 slots, match A4, then B3 and B4."""
    left = {}
    for refresh in ("path", "used"):
        cache = Cache(slots=6, refresh=refresh)
        for first, depths in ((1, (1, 2, 3, 4)), (50, (1, 2))):
            for depth in depths:
                cache.put(*range(first, first + depth))
        assert cache.use(1, 2, 3, 4) == 4
        for depth in (3, 4):
            cache.put(*range(50, 50 + depth))
        left[refresh] = sorted(
            (node.ids[0] in cache.ids(50, 51, 52, 53), node.end // PAGE) for node in cache.tree.state_order
        )
    a, b = (lambda *d: [(False, x) for x in d]), (lambda *d: [(True, x) for x in d])
    assert left["path"] == [*a(1, 2, 3, 4), *b(3, 4)]
    assert left["used"] == [*a(3, 4), *b(1, 2, 3, 4)]


def test_a_text_that_is_no_tip_is_not_resumed_from_where_matching_is_tip():
    cache = Cache(matching="tip")
    cache.put(1, 2)
    cache.put(1, 2, 3, 4)
    assert cache.use(1, 2, 9) == 0
    assert cache.use(1, 2, 3, 4, 5) == 4
    assert cache.tree.has_state(cache.ids(1, 2), 2)
    assert not cache.tree.has_state(cache.ids(1, 2, 3), 3)


@pytest.mark.parametrize(("policy", "fewest"), [("lru", 0), ("gain", 15)])
def test_gain_learns_which_states_are_used(policy, fewest):
    """Each text is gone on with from its first half, 15 texts later, and never from its end. Two states a text on 24
    slots: the least recently used ones reach back 12 texts, the first halves alone 24."""
    cache = Cache(pages=1000, slots=24, state_eviction=policy)
    used = []
    for number in range(120):
        cache.put(number * 10, number * 10 + 1)
        cache.put(number * 10, number * 10 + 1, number * 10 + 2, number * 10 + 3)
        if number >= 15:
            back = (number - 15) * 10
            used.append(cache.use(back, back + 1, 5000 + number) == 2)
    assert sum(used[-20:]) >= fewest
    assert policy != "lru" or not any(used)


@pytest.mark.parametrize("policy", [*STATE_POLICIES])
def test_locked_states_stay(policy):
    cache = chain(policy)
    nodes = list(cache.tree.state_order)
    for node in nodes:
        cache.tree.lock(node)
    assert cache.tree.evict(states=1) == (0, 0)
    cache.tree.unlock(nodes[1])
    assert cache.tree.evict(states=4).states == 1
    assert cache.states() == [1, 3, 4]


@pytest.mark.parametrize("policy", [*ORDERS])
def test_every_order_empties_the_tree(policy):
    cache = Cache(pages=40, slots=30, eviction=policy)
    for number in range(30):
        cache.put(number % 5, 100 + number % 7, 200 + number)
        cache.memory.check_invariants()
    cache.tree.reset()
    assert cache.memory.free_kv_tokens == 40 * PAGE
    assert cache.memory.free_state_slots == 30


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("eviction", "s3-fifo", "s3fifo"),
        ("state_eviction", "gains", "gain"),
        ("refresh", "uses", "used"),
        ("matching", "tips", "tip"),
    ],
)
def test_unknown_policies_are_answered_with_the_nearest(name, value, near):
    with pytest.raises(ValueError, match=f"{name}='{value}'.*{near}"):
        Cache(**{name: value})


def test_states_on_the_way_are_learned_apart_from_those_at_an_end():
    """Four of each kind look alike until texts go on from ends alone."""
    cache = Cache()
    on_the_way, ends = ([cache.put(number) for number in range(first, first + 4)] for first in (1, 11))
    for node in on_the_way:
        node.origin = Origin.WAY
    outlook = cache.tree.outlook
    outlook.now = cache.tree.clock
    for node in (*on_the_way, *ends):
        node.last_use = outlook.now  # of one age
    assert outlook.chance(on_the_way[0]) == outlook.chance(ends[0])
    outlook.looked((*on_the_way, *ends))
    outlook.missed(ends[0])  # a use of its kind, which leaves the node as it is
    # each has 4 looks, both together 8; one use in all, beside the prior of 50 looks at 4 times the mean rate
    prior = 50 * 4 * 2 / 108  # the mean: 1 + 1 uses over 100 + 8 looks
    twins = (1 + prior) / (8 + 50)
    within = 0.75**0.5  # age 0: one tick of the clock
    assert outlook.chance(on_the_way[0]) == pytest.approx(50 * twins / (4 + 50) * within)
    assert outlook.chance(ends[0]) == pytest.approx((1 + 50 * twins) / (4 + 50) * within)


def test_a_request_tells_which_of_its_states_lie_on_the_way():
    """Spaced by two pages: states after 2 and 4 of a text's 5 pages, and the end."""
    memory = Memory(SMALL, 100 * PAGE, 20)
    life = Lifecycle(memory, spaced(2 * PAGE))
    text = Text(memory.index, [(1, 0, 5 * PAGE + 1)])
    sequence = life.begin("x", text)
    life.commit_extend(life.plan_extend(sequence, len(text)))
    life.finish(sequence)
    assert {node.end // PAGE: node.origin for node in memory.tree.root.walk()} == {
        2: Origin.WAY,
        4: Origin.WAY,
        5: Origin.PROMPT_END,
    }
    shorter = Text(memory.index, [(1, 0, 4 * PAGE)])  # a text that ends where the state on the way lies
    sequence = life.begin("y", shorter)
    life.commit_extend(life.plan_extend(sequence, len(shorter)))
    life.finish(sequence)
    assert {node.end // PAGE: node.origin for node in memory.tree.root.walk()} == {
        2: Origin.WAY,
        3: Origin.WAY,  # the page before the end, for the same text again
        4: Origin.PROMPT_END,
        5: Origin.PROMPT_END,
    }


def test_a_prompt_and_its_answer_are_told_apart_when_the_answer_has_gone():
    """A prompt of 2 pages and an answer up to page 4: its state goes, then its KV, and the prompt's node is a leaf."""
    memory = Memory(SMALL, 100 * PAGE, 20)
    life = Lifecycle(memory, spaced(8 * PAGE))  # decode leaves a state at every page
    text = Text(memory.index, [(1, 0, 2 * PAGE)])
    sequence = life.begin("x", text)
    life.commit_extend(life.plan_extend(sequence, len(text)))
    life.checkpoint(sequence)
    text.append([(2, 0, 2 * PAGE)])
    while sequence.computed < len(text):
        life.commit_decode(life.plan_decode(sequence))
    life.finish(sequence)
    origins = {node.end // PAGE: node.origin for node in memory.tree.root.walk()}
    assert origins == {1: Origin.WAY, 2: Origin.PROMPT_END, 4: Origin.ANSWER}
    memory.evict(kv_tokens=PAGE)
    *_, prompt = memory.tree.root.walk()
    assert (prompt.is_leaf, prompt.end, prompt.origin) == (True, 2 * PAGE, Origin.PROMPT_END)
    again = Text(
        memory.index, [(1, 0, 2 * PAGE), (3, 0, 1)]
    )  # what ends in an answer for one is a prompt for another
    assert life.begin("y", again).computed == 2 * PAGE


def test_what_an_answer_has_shown_is_not_told_of_a_prompt_without_one():
    """Two leaves that nobody has used, a prompt's end and an answer's: after a use of another answer, the answer is worth
    more than the prompt, which leans on it none the less."""
    cache = Cache()
    prompt, answer, third = cache.put(1), cache.put(2), cache.put(3)
    answer.origin = third.origin = Origin.ANSWER
    outlook = cache.tree.outlook
    outlook.now = cache.tree.clock
    for node in (prompt, answer, third):
        node.last_use = outlook.now
    assert outlook.chance(prompt) == outlook.chance(answer)
    outlook.looked((prompt, answer, third))
    outlook.missed(third)
    prior, within = 50 * 4 * 2 / 103, 0.75**0.5
    together = (1 + prior) / (3 + 50)
    assert outlook.chance(prompt) == pytest.approx(50 * together / (1 + 50) * within)
    assert outlook.chance(answer) == pytest.approx((1 + 50 * together) / (2 + 50) * within)
