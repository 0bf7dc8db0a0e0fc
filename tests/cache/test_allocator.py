"""The paged allocator: tables by arithmetic, refusals that change nothing, and a model of plain sets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart.cache import PageAllocator
from depthchart.cache.allocator import MANY_PAGES, SOME_PAGES, check_segments
from depthchart.errors import DoubleFreeError, InvariantError, PageSharedError, PoolExhausted, SegmentError

SIZES = [
    # id, kv_tokens, page -> pages, total tokens
    ("one page", 512, 512, 1, 512),
    ("a rest below a page is lost", 1023, 512, 1, 512),
    ("page 1", 7, 1, 7, 7),
    ("page not a power of two", 1000, 192, 5, 960),
    ("sglang#39115", 65536, 512, 128, 65536),
]


@pytest.mark.parametrize("row", SIZES, ids=[row[0] for row in SIZES])
def test_sizes(row):
    _, kv_tokens, page, pages, tokens = row
    allocator = PageAllocator(kv_tokens, page)
    assert (allocator.total_pages, allocator.total_tokens, allocator.free_tokens) == (pages, tokens, tokens)
    assert sorted(allocator.allocate(pages)) == list(range(pages))
    assert allocator.free_tokens == 0


def test_allocate_takes_none_where_too_few_are_free():
    allocator = PageAllocator(4 * 64, 64)
    held = allocator.allocate(3)
    with pytest.raises(PoolExhausted, match="2 pages of 64 tokens wanted, 1 free"):
        allocator.allocate(2)
    assert allocator.free_tokens == 64
    assert list(allocator.allocate(0)) == []
    allocator.check(held)


FREES = [
    # id, pages freed of a row of pages 0..3 (page 4 was never handed out), error or None
    ("all", [0, 1, 2, 3], None),
    ("none", [], None),
    ("named twice", [0, 1, 0], DoubleFreeError),
    ("never handed out", [2, 4], DoubleFreeError),
    ("outside the pool", [1, 5], DoubleFreeError),
    ("negative", [1, -1], DoubleFreeError),
]


@pytest.mark.parametrize("row", FREES, ids=[row[0] for row in FREES])
def test_free_all_or_nothing(row):
    _, pages, error = row
    allocator = PageAllocator(5 * 16, 16)
    held = allocator.allocate(4)
    assert list(held) == [0, 1, 2, 3]
    if error is None:
        allocator.free(pages)
        allocator.check([page for page in held if page not in pages])
        return
    with pytest.raises(error, match=f"page {pages[-1]} is not in use"):
        allocator.free(pages)
    assert allocator.free_tokens == 16
    allocator.check(held)


SEGMENTS = [
    # id, page, tokens of the row, segments -> error (None: legal), key words
    ("sglang#39115: the two tails", 512, 1024, [(512, 576), (576, 605)], PageSharedError,
     ["[576, 605)", "[512, 576)", "page 1", "[512, 1024)"]),
    ("sglang#39115: one tail", 512, 1024, [(512, 605)], None, []),
    ("two pages apart", 64, 512, [(0, 64), (128, 200)], None, []),
    ("touching on a page", 64, 512, [(0, 128), (128, 130)], None, []),
    ("ends inside a page, next on the next page", 64, 512, [(0, 100), (128, 130)], None, []),
    ("no segment", 64, 512, [], None, []),
    ("same page, gap between", 64, 512, [(0, 10), (20, 30)], PageSharedError, ["page 0", "[0, 64)"]),
    ("starts inside a page", 64, 512, [(65, 128)], SegmentError, ["[65, 128)", "nearest: 64"]),
    ("empty", 64, 512, [(64, 64)], SegmentError, ["[64, 64)", "empty"]),
    ("reversed", 64, 512, [(128, 64)], SegmentError, ["[128, 64)"]),
    ("negative", 64, 512, [(-64, 64)], SegmentError, ["[-64, 64)", "starts at 0"]),
    ("descending", 64, 512, [(128, 192), (0, 64)], SegmentError, ["[0, 64)", "after segment [128, 192)"]),
    ("overlapping", 64, 512, [(0, 128), (64, 192)], SegmentError, ["[64, 192)", "after"]),
    ("the same twice", 64, 512, [(0, 64), (0, 64)], SegmentError, ["after segment [0, 64)"]),
    ("beyond the row", 64, 512, [(448, 513)], SegmentError, ["[448, 513)", "512 tokens only"]),
]  # fmt: skip


@pytest.mark.parametrize("row", SEGMENTS, ids=[row[0] for row in SEGMENTS])
def test_segments(row):
    _, page, tokens, segments, error, words = row
    if error is None:
        return check_segments(segments, page, tokens)
    with pytest.raises(error) as caught:
        check_segments(segments, page, tokens)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("row", SEGMENTS, ids=[row[0] for row in SEGMENTS])
def test_free_segments_frees_the_pages_that_they_touch_or_none(row):
    _, page, tokens, segments, error, _ = row
    allocator = PageAllocator(2 * tokens, page)
    held = allocator.allocate(tokens // page)
    touched = {position // page for start, end in segments for position in range(start, end)}
    if error is None:
        assert allocator.free_segments(held, segments) == len(touched) * page
        allocator.check([held[k] for k in range(len(held)) if k not in touched])
    else:
        with pytest.raises(error):
            allocator.free_segments(held, segments)
        allocator.check(held)


def test_free_segments_of_pages_that_are_free_already_frees_none():
    allocator = PageAllocator(256, 64)
    held = allocator.allocate(3)
    allocator.free([held[1]])
    with pytest.raises(DoubleFreeError):
        allocator.free_segments(held, [(0, 192)])
    allocator.check([held[0], held[2]])


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(-3, 30), st.integers(-3, 30)), max_size=4),
    st.integers(0, 4),
)
def test_segments_are_legal_exactly_where_a_slow_look_at_tokens_says_so(page, segments, row_pages):
    """DESIGN section 3.4 token by token: inside the row, starting on pages, ascending, no page touched twice."""
    tokens, seen, legal = row_pages * page, [], True
    for start, end in segments:
        legal &= start in range(0, end, page) and end <= tokens
        touched = {t // page for t in range(start, end)}
        legal &= all(max(earlier) < min(touched) for earlier in seen if touched and earlier)
        seen.append(touched)
    if legal:
        check_segments(segments, page, tokens)
    else:
        with pytest.raises((SegmentError, PageSharedError)):
            check_segments(segments, page, tokens)


OWNERS = [
    ("a page lost", [0, 1], "page 2 has 0 owners"),
    ("a page owned twice", [0, 1, 2, 2], "page 2 is owned twice"),
    ("a free page owned", [0, 1, 2, 3], "page 3 is owned twice"),
]


@pytest.mark.parametrize("row", OWNERS, ids=[row[0] for row in OWNERS])
def test_check_finds_what_is_not_owned_exactly_once(row):
    _, owned, words = row
    allocator = PageAllocator(4, 1)
    allocator.allocate(3)
    with pytest.raises(InvariantError, match=words):
        allocator.check(owned)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.data())
def test_against_plain_sets(pages, data):
    allocator, held = PageAllocator(pages * 4 + data.draw(st.integers(0, 3)), 4), set()
    for _ in range(data.draw(st.integers(0, 20))):
        if data.draw(st.booleans()):
            wanted = data.draw(st.integers(0, pages + 1))
            if wanted > pages - len(held):
                with pytest.raises(PoolExhausted):
                    allocator.allocate(wanted)
            else:
                taken = allocator.allocate(wanted)
                assert len(set(taken)) == wanted
                assert not held & set(taken)
                held |= set(taken)
        else:
            freed = data.draw(st.lists(st.integers(-1, pages), max_size=4))
            if len(set(freed)) == len(freed) and set(freed) <= held:
                allocator.free(freed)
                held -= set(freed)
            else:
                with pytest.raises(DoubleFreeError):
                    allocator.free(freed)
        assert allocator.free_tokens == 4 * (pages - len(held))
        allocator.check(held)


MANY = [
    # id, what is freed of pages 0..n-1 (the 20 after them are free), the page that the refusal names (None: all are freed)
    ("all", lambda n: list(range(n)), None),
    ("in any order", lambda n: [*range(n - 1, n // 2, -1), *range(n // 2 + 1)], None),
    ("every other first", lambda n: [*range(0, n, 2), *range(1, n, 2)], None),
    ("two stretches", lambda n: [*range(n // 2, n), *range(n // 2)], None),
    ("one twice", lambda n: [*range(n - 1), 7], 7),
    ("a free one", lambda n: [*range(n - 2), n + 10, n - 1], "n + 10"),
    ("outside the pool", lambda n: [*range(n - 1), n + 20], "n + 20"),
    ("negative", lambda n: [*range(n - 2), -1, n + 20], -1),
    ("the first fault is named", lambda n: [*range(n - 2), 3, n + 15], 3),
]


@pytest.mark.parametrize("count", [SOME_PAGES + 3, MANY_PAGES + 3])
@pytest.mark.parametrize("row", MANY, ids=[row[0] for row in MANY])
def test_many_pages_are_checked_as_few_are(row, count):
    _, order, named = row
    pages, total = order(count), count + 20
    allocator = PageAllocator(total * 16, 16)
    held = set(allocator.allocate(count))
    assert held == set(range(count))
    if named is None:
        allocator.free(pages)
        held -= set(pages)
    else:
        page = {"n + 10": count + 10, "n + 20": count + 20}.get(named, named)
        with pytest.raises(DoubleFreeError, match=f"page {page} is not in use"):
            allocator.free(pages)
    allocator.check(held)
    assert allocator.free_tokens == 16 * (total - len(held))
    assert not held & set(allocator.allocate(total - len(held)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1500), max_size=12), st.randoms(use_true_random=False))
def test_large_pools_against_plain_sets(sizes, dice):
    """Allocations and frees of many pages turn about, in any order: every page owned exactly once."""
    allocator, held = PageAllocator(3000, 1), set()
    for size in sizes:
        if size <= 3000 - len(held):
            taken = allocator.allocate(size)
            assert len(set(taken)) == size
            assert not held & set(taken)
            held |= set(taken)
        back = dice.sample(sorted(held), dice.randint(0, len(held)))
        allocator.free(back)
        held -= set(back)
        allocator.check(held)
