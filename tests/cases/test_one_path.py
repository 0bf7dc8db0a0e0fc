"""One text through the cache twice. The seed's numbers are those of sglang#39115; the rest is arithmetic."""

from itertools import product

import pytest

from depthchart.cases.one_path import one_path, usual_prompt
from depthchart.columns import CHECKPOINTS, NODES
from depthchart.depth import RULES, Decision, rule
from depthchart.events import Extended, Finished
from depthchart.geometry import Geometry

SEED = Geometry(page_size=64, dcp_size=8, chunk_width=64)


def steps(path, request="first"):
    return [(e.prefix, e.end) for e in path.log.of(Extended) if e.request == request]


def test_the_seed_shape_comes_out_of_the_seed_geometry():
    path = one_path(SEED, "prefix_relative")
    assert steps(path) == [(0, 64), (64, 604)]
    assert [e.tokens for e in path.log.of(Finished)] == [605, 605]
    assert (path.cut, path.prompt, path.output) == (64, 604, 1)


def test_the_relative_rule_files_a_state_that_has_read_too_much():
    path = one_path(SEED, "prefix_relative")
    (node,) = path.nodes.to_dict("records")
    assert (node["start_tokens"], node["end_tokens"], node["state_depth_tokens"], node["status"]) == (
        0,
        512,
        576,
        "misplaced",
    )
    assert (path.reused, path.read) == (512, 576)
    assert "64 tokens run through the recurrence twice" in path.verdict
    assert any(
        "[576, 605)" in fault and "[512, 576)" in fault and "shares a page" in fault for fault in path.faults
    )


def test_the_absolute_rule_is_sound():
    path = one_path(SEED, "absolute")
    (node,) = path.nodes.to_dict("records")
    assert (node["end_tokens"], node["state_depth_tokens"], node["status"]) == (512, 512, "state")
    assert (path.reused, path.read, path.faults) == (512, 512, [])
    assert (
        path.verdict
        == "The second request reuses 512 of 604 tokens, and the state there has read exactly those."
    )


def test_the_frames_have_their_columns_and_the_decisions_tell_the_story():
    path = one_path(SEED, "prefix_relative")
    assert tuple(path.nodes.columns) == NODES
    assert tuple(path.checkpoints.columns) == CHECKPOINTS
    told = [
        (row["request"], row["prefix_tokens"], row["end_tokens"], row["outcome"])
        for row in path.decisions.to_dict("records")
    ]
    assert told == [
        ("first", 0, 64, "refused"),
        ("first", 64, 604, "misplaced"),
        ("second", 512, 604, "refused"),
    ]


@pytest.mark.parametrize(
    ("geometry", "name", "expected"),
    [
        (SEED, "vllm_align", [(0, 512), (512, 604)]),  # cuts on the block: a cut at 64 cannot happen
        (
            Geometry(16, 8, 64),
            "dcp_gated",
            [(0, 64), (64, 151)],
        ),  # under DCP cuts are floored to cache_chunk 64
        (Geometry(16, 8, 64), "absolute", [(0, 16), (16, 151)]),  # 16 + lcm(64, 128) + 16·7//16
        (Geometry(64, 1, 64), "absolute", [(0, 64), (64, 156)]),
        (
            Geometry(64, 8, 64, chunked_prefill_size=300),
            "absolute",
            [(0, 64), (64, 320), (320, 604)],
        ),
    ],
    ids=["vllm-block", "dcp-gated", "page-16", "no-dcp", "small-budget"],
)
def test_steps_are_cut_where_the_rule_cuts(geometry, name, expected):
    assert steps(one_path(geometry, name)) == expected


# A budget that no prompt here fills, so that the first cut is the only one.
SOUND = ("absolute", "page_exact", "vllm_align", "marconi")
GEOMETRIES = [
    Geometry(p, d, c, chunked_prefill_size=1 << 15)
    for p, d, c in product((1, 16, 64, 256, 1024), (1, 2, 3, 8, 16), (16, 64, 256))
]


@pytest.mark.parametrize("name", SOUND)
def test_sound_rules_are_sound_on_every_geometry(name):
    for geometry in GEOMETRIES:
        path = one_path(geometry, name)
        assert path.faults == [], geometry
        assert path.read == path.reused
        assert path.reused % geometry.tree_page == 0


def test_the_relative_rule_breaks_exactly_where_cut_plus_grid_is_off_the_tree_page():
    for g in GEOMETRIES:
        path = one_path(g, "prefix_relative")
        first = (
            g.page_size if g.page_size >= g.checkpoint_grid else 0
        )  # a checkpoint that the first step leaves
        deepest = g.page_size + (path.prompt - g.page_size) // g.checkpoint_grid * g.checkpoint_grid
        off = [depth for depth in (first, deepest) if depth % g.tree_page]
        assert bool(path.faults) == bool(off), g
        assert path.nodes["status"].eq("misplaced").any() == bool(off)


def test_a_cut_off_the_kernels_grid_costs_the_absolute_rule_its_checkpoint():
    path = one_path(Geometry(16, 8, 64), "absolute")
    assert (path.reused, path.read) == (0, 0)  # (128 - 16) mod 64 = 48
    assert path.verdict == "The second request finds no state and computes all its 151 tokens."
    assert one_path(Geometry(16, 8, 64), "page_exact").reused == 128


def test_lengths_can_be_chosen():
    path = one_path(SEED, "absolute", cut=128, prompt=2000, output=0)
    assert steps(path) == [(0, 128), (128, 2000)]
    assert path.reused == 1536
    assert steps(one_path(SEED, "absolute", cut=5000, prompt=100)) == [(0, 100)]


def test_decode_checkpoints_are_taken_too():
    path = one_path(SEED, "absolute", prompt=1000, output=100)
    assert path.checkpoints["kind"].eq("decode").any()  # 1024 is on the track grid of 512
    assert path.nodes["end_tokens"].max() == 1024


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [(SEED, 604), (Geometry(1), 66), (Geometry(256, 1, 64), 624), (Geometry(16, 8, 64), 151)],
)
def test_usual_prompt(geometry, expected):
    """cut + lcm(max(chunk, page), tree page) + max(1, cut·7//16)."""
    assert usual_prompt(geometry) == expected


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: one_path(SEED, cut=0), "cut=0: must be at least 1"),
        (lambda: one_path(SEED, prompt=0), "prompt=0: must be at least 1"),
        (lambda: one_path(SEED, output=-1), "output=-1: must be at least 0"),
        (lambda: one_path(SEED, "absolut"), "rule='absolut': no such rule; nearest: 'absolute'"),
        (
            lambda: one_path(Geometry(1024, 16, 64), "vllm_align"),
            "chunked_prefill_size=8192: rule 'vllm_align' cuts prefill steps on multiples of 16384, so no step fits",
        ),
    ],
    ids=["cut", "prompt", "output", "rule", "budget"],
)
def test_bad_input_is_refused_in_words(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_users_rule_runs_too():
    @rule("half_way", snapshots="any")
    def half_way(geometry, prefix, end, branch):
        depth = end // 2 // geometry.tree_page * geometry.tree_page
        return Decision(depth, depth > prefix, "half way")

    try:
        path = one_path(SEED, "half_way", prompt=2100)
        assert (path.reused, path.read) == (1024, 1024)
    finally:
        del RULES._rules["half_way"]
