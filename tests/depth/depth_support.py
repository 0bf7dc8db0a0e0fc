"""Geometries, extends and answers that the tests of depth rules share."""

from hypothesis import strategies as st

from depthchart import RULES, Geometry

BUILT_IN = ("chunk_grid", "prefix_relative", "absolute", "dcp_gated", "page_exact", "vllm_align", "marconi")
SEED = Geometry(64, 8)  # tree page 512, chunk 64


def depth(name, g, prefix, end, branch=None):
    """The donated depth, or None."""
    answer = RULES[name](g, prefix, end, branch)
    return answer.depth if answer.donate else None


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
