"""Token identities: prefix ids and tags are equal exactly where plain token lists are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart.tokens import (
    INDEX_LIMIT,
    SEGMENT_LIMIT,
    TAINTED,
    PrefixIndex,
    Tag,
    Text,
    canonical,
    common_prefix,
    page_keys,
    raw,
    runs_length,
    runs_to_tokens,
    slice_runs,
)

# Few segments, starts and lengths, so that equal beginnings, seams inside pages and repeats are common.
RUNS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 4]), st.integers(0, 6)), max_size=5)


LONG_RUNS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 30]), st.integers(0, 70)), max_size=4)


def plain(runs):
    """The tokens of runs, one (segment, index) pair each: the definition, nothing clever."""
    return [(segment, start + k) for segment, start, length in runs for k in range(length)]


# --- runs -------------------------------------------------------------------------------------------------

CANONICAL = [
    # id, runs -> canonical runs
    ("nothing", [], ()),
    ("empty runs go", [(1, 5, 0), (2, 0, 3), (1, 0, 0)], ((2, 0, 3),)),
    ("what continues is one", [(1, 0, 3), (1, 3, 2)], ((1, 0, 5),)),
    ("also over an empty run", [(1, 0, 3), (9, 9, 0), (1, 3, 2)], ((1, 0, 5),)),
    ("a jump is two", [(1, 0, 3), (1, 4, 2)], ((1, 0, 3), (1, 4, 2))),
    ("a repeat is two", [(1, 0, 3), (1, 0, 3)], ((1, 0, 3), (1, 0, 3))),
    ("other segment", [(1, 0, 3), (2, 3, 2)], ((1, 0, 3), (2, 3, 2))),
    ("lists, as JSON gives them", [[1, 0, 3], [2, 0, 1]], ((1, 0, 3), (2, 0, 1))),
    ("the last index", [(SEGMENT_LIMIT - 1, INDEX_LIMIT - 1, 1)], ((SEGMENT_LIMIT - 1, INDEX_LIMIT - 1, 1),)),
]


@pytest.mark.parametrize("row", CANONICAL, ids=[row[0] for row in CANONICAL])
def test_canonical(row):
    _, runs, right = row
    assert canonical(runs) == right


@given(RUNS, RUNS)
def test_runs_are_equal_exactly_where_tokens_are(left, right):
    a, b = canonical(left), canonical(right)
    assert (a == b) == (plain(left) == plain(right))
    assert plain(a) == plain(left)
    assert runs_length(a) == len(plain(left))
    assert (runs_to_tokens(a).tolist() == runs_to_tokens(b).tolist()) == (a == b)
    shared = [x == y for x, y in zip(plain(left), plain(right), strict=False)]
    assert common_prefix(a, b) == (shared.index(False) if False in shared else len(shared))


# --- prefix ids -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.tuples(RUNS | LONG_RUNS, st.sampled_from(["", "", "a"])), min_size=1, max_size=5),
    st.integers(1, 5),
)
def test_prefix_ids_are_equal_exactly_where_prefixes_are(texts, page):
    """Every page-aligned prefix of every text against every other, as plain lists with their namespace."""
    index, seen = PrefixIndex(page), {}
    for runs, namespace in texts:
        text, tokens = Text(index, runs, namespace), plain(runs)
        assert len(text) == len(tokens)
        ids = [index.root(namespace), *text.ids(len(text))]
        assert len(ids) == 1 + len(tokens) // page
        for number, prefix_id in enumerate(ids):
            prefix = (namespace, *tokens[: number * page])
            assert seen.setdefault(prefix, prefix_id) == prefix_id
            assert plain(index.text_of(prefix_id)) == tokens[: number * page]
    assert len(set(seen.values())) == len(seen)
    assert len(index) <= sum(len(prefix) > 1 for prefix in seen)


@settings(deadline=None)
@given(
    st.lists(RUNS | LONG_RUNS, min_size=1, max_size=5),
    st.integers(1, 5),
    st.lists(st.integers(0, 90), max_size=4),
)
def test_a_text_grown_in_parts_is_the_text_made_at_once(parts, page, looks):
    """Looking at ids and tags in between, as a running request does, must change nothing."""
    index, grown, so_far = PrefixIndex(page), None, []
    for part in parts:
        so_far += part
        if grown is None:
            grown = Text(index, part)
        else:
            grown.append(part)
        for depth in [d for d in looks if d <= len(grown)]:
            grown.ids(depth)
            grown.tag(depth)
        whole = Text(index, so_far)
        assert grown.runs == whole.runs == canonical(so_far)
        assert grown.ids(len(grown)) == whole.ids(len(whole))
        assert [grown.tag(d) for d in range(len(grown) + 1)] == [whole.tag(d) for d in range(len(whole) + 1)]


@settings(deadline=None)
@given(RUNS, RUNS, st.integers(1, 5), st.sampled_from(["", "a"]))
def test_tags_are_equal_exactly_where_consumed_tokens_are(left, right, page, namespace):
    """A tag names depth, text and namespace: any two depths of any two texts."""
    index = PrefixIndex(page)
    one, two = Text(index, left), Text(index, right, namespace)
    for a in range(len(one) + 1):
        for b in range(len(two) + 1):
            same = plain(left)[:a] == plain(right)[:b] and namespace == ""
            assert (one.tag(a) == two.tag(b)) == same
            assert one.tag(a) != Tag(a, TAINTED)


def test_entries_go_by_runs_not_by_pages():
    """Two texts of a million tokens that part in the middle: three stretches, whatever the page."""
    for page in (1, 64):
        index = PrefixIndex(page)
        half = 8192 * 64
        one, two = (Text(index, [(1, 0, half), (segment, 0, half)]) for segment in (2, 3))
        left, right = one.ids(2 * half), two.ids(2 * half)
        assert left[: half // page] == right[: half // page]
        assert left[half // page] != right[half // page]
        assert len(set(left)) == len(left) == 2 * half // page
        assert len(index) == 3
        assert index.text_of(left[half // page]) == ((1, 0, half), (2, 0, page))


def test_ids_are_cut_to_whole_pages():
    text = Text(PrefixIndex(4), [(1, 0, 10)])
    ids = text.ids(10)
    assert [len(text.ids(n)) for n in range(11)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert text.ids(8) == ids
    assert text.tag(10) == Tag(10, ids[-1], ((1, 8, 2),))
    assert text.tag(8) == Tag(8, ids[-1])
    assert text.tag(3) == Tag(3, text.index.root(), ((1, 0, 3),))


def test_a_page_seam_in_another_place_is_the_same_page():
    """Tokens are what counts, not how they were written down."""
    index = PrefixIndex(4)
    one, two = Text(index, [(1, 0, 8)]), Text(index, [(1, 0, 1), (1, 1, 5), (1, 6, 2)])
    assert one.ids(8) == two.ids(8)


def test_namespaces_have_roots_of_their_own():
    index = PrefixIndex(2)
    roots = [index.root(name) for name in ("", "a", "b", "a")]
    assert roots[1] == roots[3]
    assert len(set(roots)) == 3
    assert all(index.text_of(root) == () for root in roots)
    assert Text(index, raw([1, 2]), "a").ids(2) != Text(index, raw([1, 2]), "b").ids(2)


def test_raw_tokens_are_vocabulary_ids():
    assert raw([5, 6, 7, 7]) == ((0, 5, 3), (0, 7, 1))
    assert runs_to_tokens(raw([5, 6, 7, 7])).tolist() == [5, 6, 7, 7]
    assert runs_to_tokens(((2, 3, 2),)).tolist() == [(2 << 32) + 3, (2 << 32) + 4]


BAD = [
    # id, call -> words of the message
    ("page 0", lambda: PrefixIndex(0), ["page=0", "positive", "nearest legal: 1"]),
    ("page -1 of keys", lambda: page_keys((), -1), ["page=-1", "nearest legal value: 1"]),
    ("negative token id", lambda: raw([3, -1]), ["-1", "indices [0,"]),
    ("segment too large", lambda: canonical([(SEGMENT_LIMIT, 0, 1)]), ["segment=2147483648", "2**31"]),
    ("negative segment", lambda: canonical([(-1, 0, 1)]), ["segment=-1"]),
    ("negative length", lambda: canonical([(1, 0, -1)]), ["length=-1", "0 or more"]),
    ("index too large", lambda: canonical([(1, INDEX_LIMIT, 1)]), ["(1, 4294967296, 1)", "2**32"]),
    ("runs over the last index", lambda: canonical([(1, INDEX_LIMIT - 1, 2)]), ["2**32"]),
    ("more ids than tokens", lambda: Text(PrefixIndex(4), [(1, 0, 8)]).ids(9), ["tokens=9", "has 8 tokens"]),
    ("negative ids", lambda: Text(PrefixIndex(4), [(1, 0, 8)]).ids(-1), ["tokens=-1", "has 8 tokens"]),
    ("tag beyond the text", lambda: Text(PrefixIndex(4), [(1, 0, 8)]).tag(9), ["9", "has 8 tokens"]),
    ("tag of a negative depth", lambda: Text(PrefixIndex(4), [(1, 0, 8)]).tag(-1), ["-1", "has 8 tokens"]),
    ("slice backwards", lambda: slice_runs(((1, 0, 8),), 4, 2), ["[4, 2)", "start <= stop"]),
    ("negative slice", lambda: slice_runs(((1, 0, 8),), -1, 2), ["[-1, 2)", "0 <= start"]),
]


@pytest.mark.parametrize("row", BAD, ids=[row[0] for row in BAD])
def test_bad_input(row):
    _, call, words = row
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
