"""The lemma of ``verify.lemmas``, on geometries far beyond what the search looks at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart.depth import RULES
from depthchart.geometry import Geometry
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


@settings(max_examples=400, deadline=None)
@given(page=st.integers(1, 64), dcp=st.integers(1, 8), pool=st.integers(1, 4), interval=st.integers(1, 2000))
def test_decode_grid_lies_on_the_tree_page(page, dcp, pool, interval):
    geometry = Geometry(page, dcp_size=dcp, index_pool=pool, chunk_width=page, track_interval=interval)
    assert geometry.track_grid % geometry.tree_page == 0
    assert geometry.track_grid % interval == 0
