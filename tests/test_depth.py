"""Depth rules: public cases, a slow reading of DESIGN section 6, arrays against single decisions, soundness."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from depthchart import RULES, Decision, Geometry, decide_many, rule
from depthchart.errors import RuleError

BUILT_IN = ("chunk_grid", "prefix_relative", "absolute", "dcp_gated", "page_exact", "vllm_align", "marconi")
SEED = Geometry(64, 8)  # tree page 512, chunk 64


@pytest.fixture
def registry(monkeypatch):
    """Rules registered in a test are gone after it."""
    monkeypatch.setattr(RULES, "_rules", dict(RULES._rules))
    return RULES


def depth(name, g, prefix, end, branch=None):
    """The donated depth, or None."""
    answer = RULES[name](g, prefix, end, branch)
    return answer.depth if answer.donate else None


# --- public cases -----------------------------------------------------------------------------------------

NAMES = ("chunk_grid", "prefix_relative", "absolute", "dcp_gated", "page_exact")
CASES = [
    # id, page, dcp, chunk, prefix, end -> depth donated by each of NAMES
    # the rows of the table "four rules to put side by side"; R0, R1, R2, R3, and page_exact by ⌊end/T⌋·T
    ("1 sglang#39115", 64, 8, 64, 64, 605, 576, 576, 512, 512, 512),
    ("2 sglang#34808", 64, 8, 64, 16384, 20450, 20416, 19968, 19968, 19968, 19968),
    ("3 sglang#34808 unit", 64, 4, 64, 16384, 20450, 20416, 20224, 20224, 20224, 20224),
    ("4 no dcp", 64, 1, 64, 16384, 20450, 20416, 20416, 20416, 20416, 20416),
    ("6 on the chunk grid, off the page", 64, 8, 256, 3840, 8192, 8192, 7936, 8192, 8192, 8192),
    ("7 off the chunk grid", 64, 8, 256, 4032, 8192, 8128, 8128, None, None, 8192),
    ("8 why absolute had to be limited to dcp", 64, 1, 256, 64, 605, 576, 576, None, 576, 576),
    ("9 the same with page 1", 1, 1, 64, 1000, 6000, 5992, 5992, None, 5992, 6000),
    # sglang#39115's own table (A1)
    ("A1 ends before the page", 64, 8, 64, 64, 511, 448, None, None, None, None),
    ("A1 two pages", 64, 8, 64, 64, 1088, 1088, 1088, 1024, 1024, 1024),
    ("A1 prefix 100", 64, 8, 64, 100, 2000, 1956, 1636, None, None, 1536),
    ("39115 (64, 540)", 64, 8, 64, 64, 604, 576, 576, 512, 512, 512),
    ("39115 short, crosses a page", 64, 8, 64, 448, 548, 512, None, 512, 512, 512),
    ("39115 crosses no page", 64, 8, 64, 576, 676, 640, None, None, None, None),
    ("39115 chunk 256, off the chunk grid", 64, 8, 256, 64, 1100, 1088, 1088, None, None, 1024),
    # A2
    ("A2 short", 64, 8, 64, 0, 511, 448, None, None, None, None),
    # nothing to run
    ("empty extend", 64, 8, 64, 512, 512, None, None, None, None, None),
    ("nothing at all", 64, 8, 64, 0, 0, None, None, None, None, None),
    ("one token", 64, 8, 64, 511, 512, None, None, None, None, 512),
]  # fmt: skip


@pytest.mark.parametrize("row", CASES, ids=[row[0] for row in CASES])
def test_public_cases(row):
    _, page, dcp, chunk, prefix, end, *right = row
    g = Geometry(page, dcp, chunk)
    assert [depth(name, g, prefix, end) for name in NAMES] == right
    assert depth("marconi", g, prefix, end) == right[NAMES.index("absolute")]


def test_pooled_index_page_counts_like_dcp():
    """sglang#34808's unit test with a tree page of 256 that comes from an index pool."""
    g = Geometry(64, 1, 64, index_pool=4)
    assert [depth(name, g, 16384, 20450) for name in ("chunk_grid", "absolute")] == [20416, 20224]
    assert depth("dcp_gated", g, 64, 605) == 576, "without DCP it counts from the prefix, pool or not"


CHUNK_INDEX = [(512, 56), (256, 60), (64, 63)]  # A2: tree page -> chunk of the kernel's array that is read


@pytest.mark.parametrize(("tree_page", "index"), CHUNK_INDEX)
def test_the_chunk_that_is_read_counts_from_the_prefix(tree_page, index):
    g = Geometry(64, tree_page // 64)
    chosen = depth("absolute", g, 16384, 16384 + 4066)
    assert (chosen - 16384) / 64 == index
    assert RULES["absolute"].stored_depth(g, 16384, 16384 + 4066, chosen) == chosen


STORED = [
    # id, rule, chunk, prefix, end, asked -> depth of the state that the kernel has for it
    ("A5 on the relative grid", "absolute", 64, 100, 700, 612, 612),
    ("A5 off the relative grid", "absolute", 64, 100, 700, 640, 612),
    ("the end of the extend", "vllm_align", 64, 100, 640, 640, 640),
    ("before the first chunk end", "absolute", 64, 100, 700, 130, 100),
    ("a kernel that stops anywhere", "page_exact", 64, 100, 700, 640, 640),
    ("chunk wider than the extend", "absolute", 256, 64, 300, 256, 64),
]


@pytest.mark.parametrize("row", STORED, ids=[row[0] for row in STORED])
def test_stored_depth(row):
    _, name, chunk, prefix, end, asked, stored = row
    assert RULES[name].stored_depth(Geometry(64, 8, chunk), prefix, end, asked) == stored


VLLM = [
    # prompt -> cut of the first step, depth donated there (vllm#40696: reuse 0, 528, 528)
    (480, 480, None),
    (552, 528, 528),
    (979, 528, 528),
    (1056, 1056, 1056),
]


@pytest.mark.parametrize(("prompt", "cut", "donated"), VLLM)
def test_vllm_cuts_on_the_block(prompt, cut, donated):
    g, align = Geometry(528, 1, 1), RULES["vllm_align"]
    assert align.cut(g, 0, prompt, prompt) == cut
    assert depth("vllm_align", g, 0, cut) == donated
    assert depth("vllm_align", g, 0, prompt) == (prompt if prompt % 528 == 0 else None)


CUTS = [
    # id, rule, dcp, chunk, prefix, could run to, prompt -> cut
    ("the end of the prompt is no cut", "absolute", 8, 64, 64, 605, 605, 605),
    ("floored to the page", "absolute", 8, 256, 0, 1000, 5000, 960),
    ("dcp_gated floors to cache_chunk", "dcp_gated", 8, 256, 0, 1000, 5000, 768),
    ("dcp_gated without dcp", "dcp_gated", 1, 256, 0, 1000, 5000, 960),
    ("page above chunk", "dcp_gated", 8, 32, 0, 1000, 5000, 960),
    ("nothing is left", "absolute", 8, 64, 64, 100, 5000, 64),
    ("nothing is left of cache_chunk", "dcp_gated", 8, 256, 256, 500, 5000, 256),
    ("vllm on the block", "vllm_align", 8, 64, 0, 1000, 5000, 512),
    ("vllm's last step stops on the block too", "vllm_align", 8, 64, 0, 1100, 1100, 1024),
    ("vllm's very last step", "vllm_align", 8, 64, 1024, 1100, 1100, 1100),
]


@pytest.mark.parametrize("row", CUTS, ids=[row[0] for row in CUTS])
def test_cuts(row):
    _, name, dcp, chunk, prefix, end, prompt, cut = row
    assert RULES[name].cut(Geometry(64, dcp, chunk), prefix, end, prompt) == cut


# --- a slow reading of DESIGN section 6 -------------------------------------------------------------------


@st.composite
def geometries(draw, **fixed):
    """Small sizes, so that every residue occurs; page and chunk divide one another."""
    small = draw(st.integers(1, 4))
    page, chunk = draw(st.permutations([small, small * draw(st.integers(1, 4))]))
    dcp = fixed.get("dcp_size") or draw(st.integers(1, 4))
    pool = fixed.get("index_pool") or draw(st.sampled_from([1, 1, 2, 3]))
    return Geometry(page, dcp, chunk, pool)


@st.composite
def extends(draw):
    prefix = draw(st.integers(0, 150))
    end = prefix + draw(st.integers(0, 150))
    return prefix, end, draw(st.one_of(st.none(), st.integers(1, end + 20)))


def last(points, start, end):
    """The last of the given points in [start, end], by looking at each; None where there is none."""
    return max((d for d in range(start, end + 1) if points(d)), default=None)


def by_hand(name, g, prefix, end):
    """(depth that the rule names, donate), from the table in words; depths by search instead of by division."""
    c, grid, page = g.cache_chunk, g.checkpoint_grid, g.tree_page
    if name == "dcp_gated":
        name = "absolute" if g.dcp_size > 1 else "prefix_relative"
    if name == "chunk_grid":
        return last(lambda d: (d - prefix) % c == 0, prefix, end), end - prefix >= c
    if name == "prefix_relative":
        return last(lambda d: (d - prefix) % grid == 0, prefix, end), end - prefix >= grid
    if name in ("absolute", "marconi"):
        found = last(lambda d: d % grid == 0, 0, end)
        return found, found > prefix and (found - prefix) % c == 0
    found = last(lambda d: d % page == 0, 0, end)
    return found, found > prefix and (name == "page_exact" or found == end)


def replaced(g, prefix, end, branch, planned):
    """DESIGN section 6, branch depths of the four sglang rules, where a donation is planned."""
    chunk_ends = [d for d in range(prefix, end + 1) if (d - prefix) % g.chunk_width == 0]
    before = branch < end if planned == chunk_ends[-1] else branch <= planned
    return prefix < branch and (branch - prefix) % g.cache_chunk == 0 and before


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=150, deadline=None)
@given(g=geometries(), extend=extends())
def test_each_rule_is_its_row_of_the_table(name, g, extend):
    prefix, end, branch = extend
    planned = by_hand(name, g, prefix, end)
    answer = RULES[name](g, prefix, end)
    assert (answer.depth, answer.donate, answer.also) == (*planned, ())
    assert answer.depths == ((answer.depth,) if answer.donate else ())
    with_branch = RULES[name](g, prefix, end, branch)
    if branch is None or name == "vllm_align":
        assert with_branch[:2] == planned
    elif name in ("page_exact", "marconi"):
        on_chunk = name == "page_exact" or (branch - prefix) % g.cache_chunk == 0
        reachable = prefix < branch <= end and branch % g.tree_page == 0 and on_chunk
        want = ({planned[0]} if planned[1] else set()) | ({branch} if reachable else set())
        assert set(with_branch.depths) == want
    elif planned[1] and replaced(g, prefix, end, branch, planned[0]):
        assert with_branch[:2] == (branch, True)
    else:
        assert with_branch[:2] == planned


BRANCHES = [
    # id, rule, dcp, prefix, end, branch -> depths to snapshot
    ("replaces", "absolute", 8, 0, 2000, 1024, (1024,)),
    ("at the planned depth", "absolute", 8, 0, 2000, 1536, (1536,)),
    ("beyond the planned depth", "absolute", 8, 0, 2000, 1984, (1536,)),
    ("at the prefix", "absolute", 8, 512, 2000, 512, (1536,)),
    ("off the chunk grid", "absolute", 8, 0, 2000, 1000, (1536,)),
    ("nothing planned: nothing to replace", "absolute", 8, 100, 2000, 1024, ()),
    ("both, by a kernel that writes several", "page_exact", 8, 0, 2000, 1024, (1024, 1536)),
    ("off the page", "page_exact", 8, 0, 2000, 1000, (1536,)),
    ("both, where the text has parted", "marconi", 8, 0, 2000, 1024, (1024, 1536)),
    ("marconi keeps to the chunk grid", "marconi", 8, 100, 2000, 1024, ()),
    ("the same depth once", "marconi", 8, 0, 2000, 1536, (1536,)),
    ("vllm takes none", "vllm_align", 8, 0, 2048, 1024, (2048,)),
]


@pytest.mark.parametrize("row", BRANCHES, ids=[row[0] for row in BRANCHES])
def test_branches(row):
    _, name, dcp, prefix, end, branch, depths = row
    answer = RULES[name](Geometry(64, dcp), prefix, end, branch)
    assert answer.depths == depths
    if branch in depths and len(depths) + (name == "absolute") > 1:
        assert f"{branch}" in answer.reason


REASONS = [
    ("absolute", 64, 605, "512 = 1·512", True),
    ("prefix_relative", 64, 605, "576 = 64 + 1·512", True),
    ("chunk_grid", 64, 605, "576 = 64 + 8·64", True),
    ("absolute", 64, 511, "no multiple of 512 lies in (64, 511]", False),
    ("absolute", 100, 2000, "(1536 - 100) mod 64 = 28", False),
    ("prefix_relative", 64, 100, "extend 36 is shorter than the grid 512", False),
    ("chunk_grid", 64, 100, "extend 36 is shorter than cache_chunk 64", False),
    ("vllm_align", 0, 600, "ends at 600, off the block of 512", False),
]


@pytest.mark.parametrize(("name", "prefix", "end", "words", "donate"), REASONS)
def test_reasons(name, prefix, end, words, donate):
    answer = RULES[name](SEED, prefix, end)
    assert answer.donate is donate
    assert words in answer.reason


# --- soundness: DESIGN sections 3.1 and 3.2 ---------------------------------------------------------------


def assert_sound(name, g, prefix, end, branch):
    """Every depth to snapshot lies in the extend, on the tree page, and the kernel has a state there."""
    chosen = RULES[name]
    for d in chosen(g, prefix, end, branch).depths:
        assert prefix < d <= end
        assert d % g.tree_page == 0
        assert d == end or chosen.snapshots == "any" or (d - prefix) % g.chunk_width == 0
        assert chosen.stored_depth(g, prefix, end, d) == d


@pytest.mark.parametrize("name", ["absolute", "page_exact", "vllm_align", "marconi"])
@settings(max_examples=300, deadline=None)
@given(g=geometries(), extend=extends(), points=st.integers(1, 20))
def test_sound_in_every_geometry_and_from_every_cut(name, g, extend, points):
    """Branch depths are what the tree reports: multiples of the checkpoint grid."""
    prefix, end, branch = extend
    assert_sound(name, g, prefix, end, None if branch is None else points * g.checkpoint_grid)


@settings(max_examples=300, deadline=None)
@given(g=geometries(), extend=extends(), points=st.integers(1, 20))
def test_dcp_gated_is_sound_under_dcp(g, extend, points):
    assume(g.dcp_size > 1)
    prefix, end, _ = extend
    assert_sound("dcp_gated", g, prefix, end, points * g.checkpoint_grid)


@pytest.mark.parametrize("name", ["chunk_grid", "prefix_relative", "dcp_gated"])
@settings(max_examples=300, deadline=None)
@given(g=geometries(dcp_size=1, index_pool=1), extend=extends(), points=st.integers(1, 20))
def test_prefix_relative_rules_are_sound_where_cuts_lie_on_tree_pages(name, g, extend, points):
    prefix, end, _ = extend
    prefix = prefix // g.page_size * g.page_size
    assert_sound(name, g, prefix, end, points * g.checkpoint_grid)


@pytest.mark.parametrize("name", ["chunk_grid", "prefix_relative"])
def test_and_unsound_where_they_do_not(name):
    with pytest.raises(AssertionError):
        assert_sound(name, SEED, 64, 605, None)


@settings(max_examples=300, deadline=None)
@given(g=geometries(), extend=extends())
def test_nothing_deeper_was_possible(g, extend):
    """page_exact takes the deepest depth that a node can name; absolute, from a cut on the chunk grid, the
    deepest that a node can name and that the kernel has."""
    prefix, end, _ = extend
    assert depth("page_exact", g, prefix, end) == last(lambda d: d % g.tree_page == 0, prefix + 1, end)
    prefix = prefix // g.cache_chunk * g.cache_chunk
    both = last(lambda d: d % g.tree_page == 0 and (d - prefix) % g.cache_chunk == 0, prefix + 1, end)
    assert depth("absolute", g, prefix, end) == both


@settings(max_examples=200, deadline=None)
@given(g=geometries(), prefix=st.integers(0, 40), more=st.integers(0, 80), beyond=st.integers(0, 40))
def test_a_cut_lies_in_the_step_and_on_the_rules_grid(g, prefix, more, beyond):
    for name in BUILT_IN:
        chosen, end = RULES[name], prefix + more
        cut = chosen.cut(g, prefix, end, end + beyond)
        assert prefix <= cut <= end
        if beyond:
            assert cut == prefix or cut % g.page_size == 0
        elif name != "vllm_align":
            assert cut == end
        if name == "vllm_align" and cut != prefix:
            assert cut % g.tree_page == 0 or (cut == end and not beyond)


# --- arrays -----------------------------------------------------------------------------------------------


def assert_arrays_equal_scalars(chosen, g, prefix, end, branch):
    found = decide_many(chosen, g, prefix, end, branch)
    assert found.depth.dtype == np.int64
    assert found.donate.dtype == np.bool_
    asked = RULES[chosen] if isinstance(chosen, str) else chosen
    for i in range(len(prefix)):
        b = None if branch is None or branch[i] < 0 else int(branch[i])
        answer = asked(g, int(prefix[i]), int(end[i]), b)
        right = -1 if answer.depth is None else answer.depth, answer.donate
        assert (found.depth[i], found.donate[i]) == right, (prefix[i], end[i], b)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=40, deadline=None)
@given(g=geometries(), rows=st.lists(extends(), max_size=12), with_branch=st.booleans())
def test_arrays_equal_scalars(name, g, rows, with_branch):
    prefix, end = ([row[k] for row in rows] for k in (0, 1))
    branch = [-1 if row[2] is None else row[2] for row in rows] if with_branch else None
    as_ints = [np.array(a, np.int64) for a in (prefix, end)]
    assert_arrays_equal_scalars(name, g, *as_ints, None if branch is None else np.array(branch, np.int64))


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("g", [SEED, Geometry(64, 3, 256), Geometry(1), Geometry(528, 1, 1)], ids=str)
def test_arrays_equal_scalars_on_long_texts(name, g):
    rng = np.random.default_rng(39115)
    prefix = rng.integers(0, 200_000, 1500) // rng.choice([1, 64, g.tree_page], 1500)
    end = prefix + rng.integers(0, 20_000, 1500)
    branch = np.where(rng.random(1500) < 0.3, -1, rng.integers(1, 400, 1500) * g.checkpoint_grid)
    branch = np.where(rng.random(1500) < 0.1, rng.integers(1, 200_000, 1500), branch)
    assert_arrays_equal_scalars(name, g, prefix, end, branch)


def test_more_rows_than_one_block():
    end = np.arange(70_000)
    found = decide_many("page_exact", SEED, np.zeros(70_000, np.int64), end)
    assert (found.depth == end // 512 * 512).all()
    assert (found.donate == (end >= 512)).all()


def test_arrays_of_a_users_rule(registry):
    @rule("half")
    def half(g, prefix, end, branch):
        return Decision(end // 2, end // 2 > prefix, "") if branch is None else Decision(None, False, "")

    rows = np.array([0, 3, 0]), np.array([10, 4, 0]), np.array([-1, -1, 2])
    for chosen in ("half", half):
        assert_arrays_equal_scalars(chosen, SEED, *rows)


def test_lists_and_empty_arrays_are_fine():
    assert decide_many("absolute", SEED, [64], [605]).depth.tolist() == [512]
    assert decide_many("absolute", SEED, [], []).depth.size == 0
    small = decide_many("absolute", SEED, np.array([64], np.uint8), np.array([605], np.uint16))
    assert small.depth.tolist() == [512]


BAD_ARRAYS = [
    # id, prefix, end, branch -> words
    ("shapes", [1, 2], [3], None, ["end", "(1,)", "(2,)"]),
    ("branch's shape", [1], [3], [1, 2], ["branch", "(2,)", "(1,)"]),
    ("floats", [1.0], [3], None, ["prefix", "integer", "float64"]),
    ("two dimensions", [[1]], [[3]], None, ["prefix", "one-dimensional", "(1, 1)"]),
    ("truth values", [True], [3], None, ["prefix", "bool"]),
    ("end before prefix", [0, 9], [3, 8], None, ["end[1]=8", "prefix[1]=9"]),
    ("negative prefix", [-1], [3], None, ["prefix[0]=-1", "at least 0"]),
    ("branch 0", [0, 0], [3, 3], [-1, 0], ["branch[1]=0", "positive", "-1"]),
]


@pytest.mark.parametrize("row", BAD_ARRAYS, ids=[row[0] for row in BAD_ARRAYS])
def test_bad_arrays(row):
    _, prefix, end, branch, words = row
    with pytest.raises(ValueError) as caught:
        decide_many("absolute", SEED, prefix, end, branch)
    for word in words:
        assert word in str(caught.value)


BAD_EXTENDS = [
    # prefix, end, branch -> words
    (-1, 5, None, ["prefix=-1", "nearest legal: 0"]),
    (9, 8, None, ["end=8", "prefix=9", "nearest legal: 9"]),
    (0, 5, 0, ["branch=0", "None or a positive depth"]),
    (0, 5, -1, ["branch=-1", "None or a positive depth"]),
    (1.5, 5, None, ["prefix=1.5", "whole number of tokens"]),
    (0, "5", None, ["end='5'", "whole number of tokens"]),
    (0, 600, 512.0, ["branch=512.0", "whole number of tokens"]),
    (None, 5, None, ["prefix=None", "whole number of tokens"]),
    (True, 5, None, ["prefix=True", "whole number of tokens"]),
]


@pytest.mark.parametrize("row", BAD_EXTENDS, ids=str)
@pytest.mark.parametrize("name", ["absolute", "page_exact"])
def test_bad_extends(name, row):
    *extend, words = row
    with pytest.raises(ValueError) as caught:
        RULES[name](SEED, *extend)
    for word in words:
        assert word in str(caught.value)


def test_numpy_integers_answer_python_integers():
    answer = RULES["absolute"](SEED, np.int64(64), np.int32(605), np.int64(512))
    assert answer == RULES["absolute"](SEED, 64, 605, 512)
    assert type(answer.depth) is int
    assert type(answer.donate) is bool


# --- users' rules -----------------------------------------------------------------------------------------


def raises(g, prefix, end, branch):
    raise ZeroDivisionError("by hand")


NONSENSE = [
    # id, answer -> words of the error
    ("nothing", None, ["None", "must be a Decision"]),
    ("a number", 512, ["512", "must be a Decision"]),
    ("a plain tuple", (512, True, "why"), ["must be a Decision"]),
    ("a fraction", Decision(512.0, True, ""), ["512.0", "whole numbers"]),
    ("a word", Decision("512", True, ""), ["'512'", "whole numbers"]),
    ("a truth value", Decision(True, True, ""), ["whole numbers"]),
    ("at the prefix", Decision(64, True, ""), ["depth=64", "(64, 605]"]),
    ("beyond the end", Decision(606, True, ""), ["depth=606", "(64, 605]"]),
    ("negative", Decision(-512, True, ""), ["depth=-512", "(64, 605]"]),
    ("donate without a depth", Decision(None, True, ""), ["depth=None", "(64, 605]"]),
    ("donate is no truth value", Decision(512, "no", ""), ["'no'", "True or False"]),
    ("donate left out", Decision(512, None, ""), ["donate=None", "True or False"]),
    ("reason is no text", Decision(512, True, None), ["reason=None", "text"]),
    ("also is a number", Decision(512, True, "", 64), ["also=64", "whole numbers"]),
    ("also is nothing", Decision(512, True, "", None), ["also=None", "whole numbers"]),
    ("also has a fraction", Decision(512, True, "", (128.5,)), ["128.5", "whole numbers"]),
    ("also at the prefix", Decision(512, True, "", (64,)), ["also=(64,)", "(64, 605]"]),
    ("also beyond the end", Decision(512, True, "", (700,)), ["also=(700,)", "(64, 605]"]),
]


@pytest.mark.parametrize("row", NONSENSE, ids=[row[0] for row in NONSENSE])
def test_nonsense_is_refused_naming_rule_extend_and_answer(registry, row):
    _, answer, words = row
    made = rule("odd_one")(lambda g, prefix, end, branch: answer)
    for ask in (lambda: made(SEED, 64, 605), lambda: decide_many("odd_one", SEED, [64], [605])):
        with pytest.raises(RuleError) as caught:
            ask()
        for word in ("'odd_one'", "[64, 605)", "answered", *words):
            assert word in str(caught.value)


def test_a_rule_that_raises_is_named_with_what_it_raised(registry):
    made = rule("breaks")(raises)
    with pytest.raises(
        RuleError,
        match=r"rule 'breaks' on the extend \[64, 605\) with branch 512 raised ZeroDivisionError: by hand",
    ):
        made(SEED, 64, 605, 512)
    with pytest.raises(RuleError) as caught:
        decide_many(made, SEED, [0], [10])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_rule_with_too_few_arguments_is_a_rule_error(registry):
    with pytest.raises(RuleError, match=r"'short' .* raised TypeError"):
        rule("short")(lambda g, prefix: Decision(1, True, ""))(SEED, 0, 64)


def test_stopping_the_notebook_is_no_rule_error(registry):
    def stopped(g, prefix, end, branch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rule("stopped")(stopped)(SEED, 0, 64)


def test_what_a_rule_may_answer(registry):
    g = SEED

    def ask(answer):
        return rule("mine")(lambda *_: answer)(g, 64, 605)

    assert ask(Decision(None, False, "no")) == Decision(None, False, "no")
    assert ask(Decision(9999, False, "not donated, so anywhere")).depths == ()
    numpys = ask(Decision(np.int64(512), np.bool_(True), "", [np.int32(128)]))
    assert numpys == Decision(512, True, "", (128,))
    assert [type(numpys.depth), type(numpys.donate), type(numpys.also[0])] == [int, bool, int]
    assert numpys.depths == (128, 512)


def test_a_rule_learns_its_extend(registry):
    asked = []

    @rule("listens", snapshots="any")
    def listens(geometry, prefix, end, branch):
        """Takes notes.

        And more."""
        asked.append((geometry, prefix, end, branch))
        return Decision(None, False, "")

    listens(SEED, 64, 605)
    listens(SEED, 64, 605, 512)
    assert asked == [(SEED, 64, 605, None), (SEED, 64, 605, 512)]
    assert (listens.summary, listens.snapshots) == ("Takes notes.", "any")
    assert RULES["listens"] is listens


def test_registering_again_replaces_a_users_rule(registry):
    rule("mine")(lambda *_: Decision(64, False, "first"))
    rule("mine")(lambda *_: Decision(64, False, "second"))
    assert RULES["mine"](SEED, 0, 64).reason == "second"
    assert list(RULES).count("mine") == 1


BAD_NAMES = [
    ("", ["name=''", "identifier"]),
    ("my rule", ["name='my rule'", "identifier", "my_rule"]),
    (5, ["name=5", "identifier"]),
    ("absolute", ["name='absolute'", "built-in", "my_absolute"]),
]


@pytest.mark.parametrize(("name", "words"), BAD_NAMES)
def test_bad_names(registry, name, words):
    with pytest.raises(ValueError) as caught:
        rule(name)
    for word in words:
        assert word in str(caught.value)


def test_bad_snapshots(registry):
    with pytest.raises(ValueError, match="snapshots='page': must be 'chunk' or 'any'"):
        rule("mine", snapshots="page")


@pytest.mark.parametrize("name", ["absolut", "", None, 5, ["absolute"]], ids=str)
@pytest.mark.parametrize("kind", [KeyError, ValueError])
def test_an_unknown_rule_lists_the_known_ones(name, kind):
    with pytest.raises(kind) as caught:
        RULES[name]
    for word in (f"rule={name!r}", "no such rule", *BUILT_IN):
        assert word in str(caught.value)
    assert ("nearest: 'absolute'" in str(caught.value)) == ("absolut" in str(name))


def test_the_registry_is_a_mapping_that_begins_with_the_seven_rules():
    assert tuple(RULES)[:7] == BUILT_IN  # rules that a user registers follow
    assert len(RULES) == len(tuple(RULES))
    assert "absolute" in RULES
    assert "absolut" not in RULES
    assert RULES.get("absolut") is None
    assert all(made.name == name and made.summary for name, made in RULES.items())
