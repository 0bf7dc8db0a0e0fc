"""Depth rules: public cases, a slow reading of DESIGN section 6, soundness."""

import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from depthchart import RULES, Geometry

sys.path.insert(0, str(Path(__file__).parent))
from depth_support import BUILT_IN, SEED, depth, extends, geometries

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


# --- a slow reading of DESIGN section 6 ----------------------------------------------------------------------


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


# --- soundness: DESIGN sections 3.1 and 3.2 ------------------------------------------------------------------


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
