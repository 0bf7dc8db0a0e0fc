"""The lemma of ``verify.lemmas``, on geometries far beyond what the search looks at."""

from dataclasses import replace
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart.depth import RULES
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS
from depthchart.rules import (
    decode_on_interval,
    every_n,
    spaced,
    vllm_all,
    vllm_any_cut,
    vllm_junction,
    vllm_steps,
)
from depthchart.verify.lemmas import broken_premise


@st.composite
def extends(draw, dcp=st.integers(1, 8), pool=st.integers(1, 4), cuts_on_page=False):
    page = draw(st.integers(1, 96))
    chunk = draw(
        st.sampled_from([page * k for k in (1, 2, 3, 4)] + [d for d in (1, 2, 3, 4, 8) if page % d == 0])
    )
    geometry = Geometry(page, dcp_size=draw(dcp), chunk_width=chunk, index_pool=draw(pool))
    unit = page if cuts_on_page else 1
    prefix = draw(st.integers(0, 5000)) // unit * unit
    end = prefix + draw(st.integers(1, 5000))
    branch = draw(st.none() | st.integers(1, 20).map(lambda k: k * geometry.checkpoint_grid))
    return geometry, prefix, end, branch


@pytest.mark.parametrize("name", ["absolute", "page_exact", "vllm_align", "marconi"])
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_sound_rules_keep_both_premises(name, data):
    assert broken_premise(RULES[name], *data.draw(extends())) is None


@settings(max_examples=400, deadline=None)
@given(extends(dcp=st.integers(2, 8)))
def test_dcp_gated_with_dcp(case):
    assert broken_premise(RULES["dcp_gated"], *case) is None


@settings(max_examples=400, deadline=None)
@given(extends(dcp=st.just(1), pool=st.just(1), cuts_on_page=True))
def test_dcp_gated_without_dcp_or_pool_where_cuts_lie_on_the_page(case):
    assert broken_premise(RULES["dcp_gated"], *case) is None


@pytest.mark.parametrize(
    ("rule", "geometry", "prefix", "end", "depth"),
    [
        pytest.param("prefix_relative", Geometry(64, dcp_size=8), 64, 604, 576, id="sglang#39115"),
        pytest.param("chunk_grid", Geometry(64, dcp_size=8), 16384, 20450, 20416, id="sglang#34808"),
        pytest.param("dcp_gated", Geometry(64, index_pool=4), 64, 400, 320, id="pool without DCP: 64 + 256"),
        pytest.param("dcp_gated", Geometry(64), 10, 80, 74, id="cut off the page, no DCP: 10 + 64"),
    ],
)
def test_unsound_rules_break_the_first(rule, geometry, prefix, end, depth):
    assert f"depth {depth} is not a multiple" in broken_premise(RULES[rule], geometry, prefix, end)


@pytest.mark.parametrize(
    "make",
    [
        vllm_steps,
        vllm_junction,
        vllm_all,
        pytest.param(lambda: decode_on_interval(RULES["absolute"]), id="absolute_on_interval"),
    ],
)
@settings(max_examples=100, deadline=None)
@given(case=extends())
def test_rules_of_the_presets_keep_both_premises(make, case):
    assert broken_premise(make(), *case) is None


@settings(max_examples=100, deadline=None)
@given(
    case=extends(),
    spacing=st.integers(1, 3000),
    pages=st.none() | st.integers(1, 40),
    budget=st.integers(1, 9000),
)
def test_rules_with_a_setting_keep_both_premises(case, spacing, pages, budget):
    """``spaced`` gets its branch depths on the tree page, and reads the step's budget."""
    geometry, prefix, end, branch = case
    geometry = replace(geometry, chunked_prefill_size=budget)
    assert broken_premise(every_n(spacing), geometry, prefix, end, branch) is None
    on_page = None if pages is None else pages * geometry.tree_page
    for head in (0, 2048):
        assert broken_premise(spaced(spacing, head), geometry, prefix, end, on_page) is None


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=25, deadline=None)
@given(case=extends(), kv=st.integers(1, 1 << 20), slots=st.integers(1, 512))
def test_decode_grids_of_presets(name, case, kv, slots):
    """The tree page divides all of them but those of the days before sglang#35412."""
    geometry = case[0]
    grid = PRESETS[name].make_rule(geometry, kv, slots).decode_grid(geometry)
    if name in ("sglang-2025-12", "sglang-before-34808", "sglang-34808"):
        assert grid == lcm(geometry.page_size, geometry.track_interval)
    else:
        assert grid % geometry.tree_page == 0


def test_align_before_51113_breaks_the_second():
    """A block of 1600 passed by [364, 2002): the slot was written at 364."""
    said = broken_premise(vllm_any_cut(), Geometry(1600, chunk_width=16), 364, 2002)
    assert said == "depth 1600 cannot be stored: what the kernel has is the state after 364 tokens"
    assert broken_premise(vllm_any_cut(), Geometry(1600, chunk_width=16), 1600, 2002) is None
    assert vllm_any_cut()(Geometry(1600, chunk_width=16), 364, 3200).depths == (1600, 3200)


@settings(max_examples=400, deadline=None)
@given(page=st.integers(1, 64), dcp=st.integers(1, 8), pool=st.integers(1, 4), interval=st.integers(1, 2000))
def test_decode_grid_lies_on_the_tree_page(page, dcp, pool, interval):
    geometry = Geometry(page, dcp_size=dcp, index_pool=pool, chunk_width=page, track_interval=interval)
    assert geometry.track_grid % geometry.tree_page == 0
    assert geometry.track_grid % interval == 0
