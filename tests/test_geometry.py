"""Geometry: the grids against arithmetic and public cases, legality, and advice proved by brute force."""

from math import gcd, lcm

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from depthchart.depth import RULES
from depthchart.geometry import Geometry

BUILT_IN = ("chunk_grid", "prefix_relative", "absolute", "dcp_gated", "page_exact", "vllm_align", "marconi")

GRIDS = [
    # id, page, dcp, chunk, pool, interval -> tree_page, cache_chunk, checkpoint_grid, track_grid
    ("sglang#39115", 64, 8, 64, 1, 256, 512, 64, 512, 512),
    ("sglang#34808 unit", 64, 4, 64, 1, 256, 256, 64, 256, 256),
    ("no dcp", 64, 1, 64, 1, 256, 64, 64, 64, 256),
    ("sglang#35412 interval 192", 64, 8, 64, 1, 192, 512, 64, 512, 1536),
    ("chunk above page", 64, 8, 256, 1, 256, 512, 256, 512, 512),
    ("page above chunk", 128, 1, 64, 1, 256, 128, 128, 128, 256),
    ("page 1", 1, 1, 64, 1, 256, 1, 64, 64, 256),
    ("dcp not a power of two", 64, 3, 256, 1, 256, 192, 256, 768, 768),
    ("sglang#38212 pooled index", 64, 1, 64, 4, 256, 256, 64, 256, 256),
    ("block 528", 528, 1, 1, 1, 528, 528, 528, 528, 528),
]


@pytest.mark.parametrize("row", GRIDS, ids=[row[0] for row in GRIDS])
def test_grids(row):
    _, page, dcp, chunk, pool, interval, *right = row
    g = Geometry(page, dcp, chunk, pool, track_interval=interval)
    assert [g.tree_page, g.cache_chunk, g.checkpoint_grid, g.track_grid] == right


BAD = [
    # arguments, key words of the message
    ({"page_size": 0}, ["page_size=0", "positive", "nearest legal: 1"]),
    ({"page_size": -64}, ["page_size=-64", "positive", "nearest legal: 1"]),
    ({"page_size": 64.0}, ["page_size=64.0", "not float", "nearest legal: 64"]),
    ({"page_size": 0.2}, ["page_size=0.2", "not float", "nearest legal: 1"]),
    ({"page_size": float("nan")}, ["page_size=nan", "not float"]),
    ({"page_size": float("inf")}, ["page_size=inf", "not float"]),
    ({"page_size": "64"}, ["page_size='64'", "not str"]),
    ({"page_size": None}, ["page_size=None", "not NoneType"]),
    ({"page_size": True}, ["page_size=True", "truth value"]),
    ({"page_size": 48}, ["page_size=48", "chunk_width=64", "32 or 64", "chunk_width: 48"]),
    ({"page_size": 96}, ["page_size=96", "nearest legal page_size: 64 or 128"]),
    ({"page_size": 100}, ["page_size=100", "nearest legal page_size: 128"]),
    ({"page_size": 528}, ["page_size=528", "nearest legal page_size: 512", "chunk_width: 66"]),
    (
        {"page_size": 64, "chunk_width": 100},
        ["page_size=64", "nearest legal page_size: 50", "chunk_width: 128"],
    ),
    ({"page_size": 64, "dcp_size": 0}, ["dcp_size=0", "nearest legal: 1"]),
    ({"page_size": 64, "dcp_size": 1.5}, ["dcp_size=1.5", "not float", "nearest legal: 2"]),
    ({"page_size": 64, "chunk_width": 0}, ["chunk_width=0", "nearest legal: 1"]),
    ({"page_size": 64, "index_pool": -1}, ["index_pool=-1", "nearest legal: 1"]),
    ({"page_size": 64, "chunked_prefill_size": -1}, ["chunked_prefill_size=-1", "nearest legal: 1"]),
    ({"page_size": 64, "track_interval": 0}, ["track_interval=0", "nearest legal: 1"]),
    ({"page_size": 10**11 + 3, "chunk_width": 10**11}, ["nearest legal page_size: 100000000000"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[str(row[0]) for row in BAD])
def test_bad_geometry(arguments, words):
    with pytest.raises(ValueError) as caught:
        Geometry(**arguments)
    for word in words:
        assert word in str(caught.value)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_nearest_legal_page_is_legal_and_nearest(page, chunk):
    assume(page % chunk and chunk % page)
    with pytest.raises(ValueError) as caught:
        Geometry(page, chunk_width=chunk)
    offered = str(caught.value).split("nearest legal page_size: ")[1].split(" (")[0]
    legal = [p for p in range(1, 700) if p % chunk == 0 or chunk % p == 0]
    least = min(abs(p - page) for p in legal)
    assert [int(p) for p in offered.split(" or ")] == [p for p in legal if abs(p - page) == least]


def test_numpy_integers_become_ints():
    import numpy as np

    g = Geometry(np.int64(64), dcp_size=np.int32(8))
    assert type(g.page_size) is int
    assert g.checkpoint_grid == 512


# --- advice, by brute force -------------------------------------------------------------------------------


@st.composite
def geometries(draw):
    small = draw(st.integers(1, 4))
    large = small * draw(st.integers(1, 4))
    page, chunk = draw(st.permutations([small, large]))
    dcp, pool = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    g = Geometry(page, dcp, chunk, pool)
    assume(g.checkpoint_grid <= 48)
    # budgets on both sides of every threshold
    budget = draw(st.integers(1, 2 * g.checkpoint_grid + 2))
    return Geometry(page, dcp, chunk, pool, budget, draw(st.integers(1, 12)))


def extends(g, rule, horizon):
    """All prefill steps [prefix, end) that a shared token budget allows, from 0 or after a cut."""
    starts, todo, seen = {0}, [0], set()
    while todo:
        prefix = todo.pop()
        for end in range(prefix + 1, min(prefix + g.chunked_prefill_size, horizon) + 1):
            seen.add((prefix, rule.cut(g, prefix, end, end)))  # the step that completes its prompt
            cut = rule.cut(g, prefix, end, horizon + 1)
            if cut > prefix:
                seen.add((prefix, cut))
                if cut not in starts:
                    starts.add(cut)
                    todo.append(cut)
    return seen


def donated(g, name, horizon):
    rule = RULES[name]
    answers = (rule(g, prefix, end) for prefix, end in extends(g, rule, horizon))
    return {answer.depth for answer in answers if answer.donate}


def codes(g, rule):
    return {remark.code: remark for remark in g.advice(rule)}


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=40, deadline=None)
@given(g=geometries())
def test_breaks_is_said_exactly_where_some_cuts_lead_to_a_depth_without_a_node(name, g):
    depths = donated(g, name, g.checkpoint_grid + g.cache_chunk + g.page_size)
    off = [depth for depth in depths if depth % g.tree_page]
    assert any(remark.severity == "breaks" for remark in g.advice(name)) == bool(off)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=40, deadline=None)
@given(g=geometries())
def test_the_minimum_reusable_prefix_is_the_smallest_nameable_depth(name, g):
    assume(g.chunked_prefill_size >= g.checkpoint_grid)
    depths = donated(g, name, g.checkpoint_grid + g.cache_chunk)
    assert g.shortest_reusable(name) == min(depth for depth in depths if depth % g.tree_page == 0)


@pytest.mark.parametrize("name", [n for n in BUILT_IN if n not in ("vllm_align", "page_exact")])
@settings(max_examples=40, deadline=None)
@given(g=geometries())
def test_no_checkpoint_is_said_only_where_prefill_takes_none(name, g):
    said = "no-checkpoint" in codes(g, name)
    taken = donated(g, name, 2 * g.checkpoint_grid + g.page_size)
    assert not (said and taken)
    if g.chunked_prefill_size >= g.checkpoint_grid:
        assert taken
        assert not said


@settings(max_examples=60, deadline=None)
@given(g=geometries())
def test_an_extend_from_a_cut_off_the_chunk_grid_takes_nothing_under_absolute(g):
    remark = codes(g, "absolute").get("cuts-off-grid")
    off = [p for p in range(0, 3 * g.cache_chunk, g.page_size) if p % g.chunk_width]
    assert (remark is not None) == bool(off)
    for prefix in off:
        for end in range(prefix, prefix + 2 * g.checkpoint_grid):
            assert not RULES["absolute"](g, prefix, end).donate


@settings(max_examples=60, deadline=None)
@given(g=geometries())
def test_track_grid_is_the_first_asked_depth_on_the_checkpoint_grid(g):
    steps = range(g.track_interval, lcm(g.track_interval, g.checkpoint_grid) + 1, g.track_interval)
    first = next(d for d in steps if d % g.tree_page == 0 and d % g.cache_chunk == 0)
    remark = codes(g, None).get("track-grid")
    assert g.track_grid == first
    assert (remark is None) == (first == g.track_interval)
    if remark:
        assert f"every {first} tokens" in remark.text
        finer = g.track_interval < g.checkpoint_grid
        assert ("finer than" if finer else "not a multiple") in remark.text


@pytest.mark.parametrize("name", ["absolute", "prefix_relative", "dcp_gated", "page_exact", "marconi"])
@settings(max_examples=60, deadline=None)
@given(g=geometries())
def test_budget_remark_tells_what_the_first_full_step_does(name, g):
    remark = codes(g, name).get("budget-off-grid")
    assume(remark is not None)
    rule = RULES[name]
    cut = rule.cut(g, 0, g.chunked_prefill_size, 10**9)
    answer = rule(g, 0, cut)
    assert f"at {cut}," in remark.text
    if answer.donate:
        assert f"at {answer.depth}, {cut - answer.depth} tokens earlier" in remark.text
    else:
        assert "leaves no checkpoint" in remark.text
        assert remark.severity == "costs"
    for better in remark.text.split("With ")[1].split(" it would")[0].split(" or "):
        end = rule.cut(g, 0, int(better), 10**9)
        assert rule(g, 0, end)[:2] == (int(better), True)


@settings(max_examples=60, deadline=None)
@given(g=geometries())
def test_wide_grid_is_said_where_neither_divides_the_other(g):
    neither = bool(g.cache_chunk % g.tree_page and g.tree_page % g.cache_chunk)
    assert ("wide-grid" in codes(g, "absolute")) == neither
    assert g.checkpoint_grid * gcd(g.cache_chunk, g.tree_page) == g.cache_chunk * g.tree_page


ADVICE = [
    # id, geometry, rule -> severity, code, words
    ("sglang#39115", Geometry(64, 8), "prefix_relative", "breaks", "prefix-relative", "64 + 512 = 576"),
    ("sglang#39115 no rule", Geometry(64, 8), None, "costs", "prefix-relative", "576"),
    ("sglang#34808", Geometry(64, 8), "chunk_grid", "breaks", "chunk-grid", "0 + 64 = 64"),
    ("chunk = tree page", Geometry(64, 2, 128), "chunk_grid", "breaks", "chunk-grid", "64 + 128 = 192"),
    ("sglang#38212", Geometry(64, 1, index_pool=4), "dcp_gated", "breaks", "prefix-relative", "sglang#38212"),
    ("sglang#30938", Geometry(1, 1, 128, 1, 16), None, "costs", "no-checkpoint", "Use at least 128"),
    ("sglang#35412", Geometry(64, 8, track_interval=192), None, "costs", "track-grid", "every 1536 tokens"),
    ("off-grid cut", Geometry(64, 8, 256), "absolute", "costs", "cuts-off-grid", "at 64"),
    ("floored cut", Geometry(64, 8, 256), "dcp_gated", "note", "cuts-off-grid", "floored to cache_chunk 256"),
    ("budget 8000", Geometry(64, 8, 64, 1, 8000), "absolute", "note", "budget-off-grid", "7680, 320 tokens"),
    ("vllm#34445", Geometry(2096, 1, 1, 1, 2048), "vllm_align", "costs", "no-checkpoint", "2096"),
    ("vllm#53749", Geometry(2096, 1, 1), "vllm_align", "note", "short-prompts", "at least 2097"),
    ("page 1", Geometry(1), "dcp_gated", "note", "short-prompts", "at least 65"),
]


@pytest.mark.parametrize("row", ADVICE, ids=[row[0] for row in ADVICE])
def test_advice_on_public_cases(row):
    _, g, rule, severity, code, words = row
    remark = codes(g, rule)[code]
    assert remark.severity == severity
    assert words in remark.text


@pytest.mark.parametrize(
    ("g", "rule", "absent"),
    [
        (Geometry(64, 1), "prefix_relative", "prefix-relative"),
        (Geometry(64, 8), "absolute", "prefix-relative"),
        (Geometry(64, 8), "dcp_gated", "prefix-relative"),
        (Geometry(64, 8, chunked_prefill_size=256), "prefix_relative", "prefix-relative"),
        (Geometry(64, 1, 256), "dcp_gated", "cuts-off-grid"),
        (Geometry(128, 1, 64), "absolute", "cuts-off-grid"),
        (Geometry(64, 8, chunked_prefill_size=8200), "absolute", "budget-off-grid"),  # cut to 8192 = 16·512
        (Geometry(64, 3, 256), "page_exact", "wide-grid"),
        (Geometry(64, chunked_prefill_size=64), "absolute", "no-checkpoint"),
    ],
)
def test_advice_that_would_be_wrong_is_not_given(g, rule, absent):
    assert absent not in codes(g, rule)


def test_a_geometry_without_flaws_gets_only_the_note_on_short_prompts():
    assert [(a.severity, a.code) for a in Geometry(64, 1).advice("absolute")] == [("note", "short-prompts")]


# --- how it shows itself ----------------------------------------------------------------------------------

PICTURES = [Geometry(64, 8), Geometry(1), Geometry(1, 1, 10**6), Geometry(4096, 8), Geometry(7, 11, 77)]


@pytest.mark.parametrize("g", PICTURES, ids=str)
def test_pictures_are_bounded_and_tell_every_grid(g):
    from xml.etree import ElementTree

    from depthchart.display import MAX_TICKS, geometry_text

    html = g._repr_html_()
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    paths = svg.iter("{http://www.w3.org/2000/svg}path")
    rows = [path.get("d") for path in paths if path.get("stroke-width") == "2"]
    assert len(rows) == 5
    assert max(row.count("M") for row in rows) <= MAX_TICKS + 1  # both ends have a tick
    text = geometry_text(g)
    for number in (g.tree_page, g.cache_chunk, g.checkpoint_grid, g.track_grid):
        assert f">{number}<" in html
        assert str(number) in text
    assert max(len(line) for line in text.splitlines()) <= 150


def test_the_ruler_says_what_it_leaves_out():
    from depthchart.display import RulerRow, ruler_svg, ruler_text

    rows = [RulerRow("fine", 1), RulerRow("far", 3000)]
    for drawing in (ruler_svg(rows, 2000), ruler_text(rows, 2000)):
        assert "shown)" in drawing
        assert "3000 (first beyond the axis)" in drawing


def test_decision_shows_its_reason_escaped():
    from depthchart.depth import Decision

    assert "a &lt; b" in Decision(64, False, "a < b")._repr_html_()
