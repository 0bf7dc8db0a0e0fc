"""The checkpoint chart: what is drawn, where the text goes, and what it refuses to draw."""

import sys
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.text import Text

from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.marks import collect_marks
from depthchart.charts.style import figure, to_png, to_svg
from depthchart.columns import CHECKPOINTS, NODES
from depthchart.geometry import Geometry

sys.path.insert(0, str(Path(__file__).parent))
from chart_frames import (
    SEED_GEOMETRY,
    agentic_tree,
    checkpoints_frame,
    nodes_frame,
    random_checkpoints,
    random_tree,
    seed_bug,
)


def texts(figure):
    """All texts that are drawn; labels of ticks beyond the axis are not."""
    beyond = set()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        beyond |= {
            label
            for tick in axis.get_major_ticks()
            if not low <= tick.get_loc() <= high
            for label in (tick.label1, tick.label2)
        }
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in beyond]


def words(figure):
    return [t.get_text() for t in texts(figure)]


def assert_text_is_clear(figure):
    """No two texts touch, and none leaves the figure (in pixels; half a pixel of rounding is granted)."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts(figure)]
    frame = figure.bbox
    for name, box in boxes:
        inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
        assert inside, f"{name!r} leaves the figure"
    for (a, left), (b, right) in combinations(boxes, 2):
        apart = (
            left.x1 <= right.x0 + 0.5
            or right.x1 <= left.x0 + 0.5
            or left.y1 <= right.y0 + 0.5
            or right.y1 <= left.y0 + 0.5
        )
        assert apart, f"{a!r} and {b!r} overlap"


def spots(figure, colour):
    """Pixel positions of the marks that have this face or edge colour."""
    found = []
    for marks in figure.axes[0].findobj(Line2D):
        if marks.get_linestyle() == "None" and colour in (marks.get_mfc(), marks.get_mec()):
            found += marks.get_transform().transform(marks.get_xydata()).tolist()
    return found


def test_the_ruler_of_these_tests_finds_overlaps():
    crowded = figure(4, 2)
    crowded.text(0.5, 0.5, "one")
    crowded.text(0.51, 0.5, "two")
    with pytest.raises(AssertionError, match="'one' and 'two' overlap"):
        assert_text_is_clear(crowded)


TREES = {
    "seed-absolute": (*seed_bug("absolute"), SEED_GEOMETRY),
    "seed-relative": (*seed_bug("prefix_relative"), SEED_GEOMETRY),
    "agentic": (*agentic_tree(), SEED_GEOMETRY),
    "one": (random_tree(1), None, SEED_GEOMETRY),
    "ten": (random_tree(10, 3), random_checkpoints(random_tree(10, 3), 6), SEED_GEOMETRY),
    "fifty": (random_tree(50, 1), random_checkpoints(random_tree(50, 1), 20), SEED_GEOMETRY),
    "two-hundred": (random_tree(200, 2), random_checkpoints(random_tree(200, 2), 60), SEED_GEOMETRY),
    "odd-grid": (random_tree(30, 4, tree_page=48), None, Geometry(page_size=16, dcp_size=3, chunk_width=64)),
    "page-of-one": (random_tree(30, 5, tree_page=1), None, Geometry(page_size=1)),
    "million-tokens": (random_tree(20, 6, tree_page=65536), None, Geometry(page_size=1024, dcp_size=64)),
    "long-names": (random_tree(12, 7, namespaces=("a tenant with a very long name indeed", "b")), None, None),
    "empty": (nodes_frame([]), checkpoints_frame([]), SEED_GEOMETRY),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", TREES)
def test_no_text_overlaps_or_leaves_the_figure(name, theme):
    nodes, checkpoints, geometry = TREES[name]
    title = "A title that is far too long for one line " * 8
    assert_text_is_clear(checkpoint_chart(nodes, checkpoints, geometry, title=title, theme=theme))


@pytest.mark.parametrize("window", [(0, 64), (500, 580), (1000, 9000), (3000, 3001), (50_000, 60_000)])
def test_no_text_overlaps_in_a_window(window):
    nodes, checkpoints, geometry = TREES["ten"]
    drawn = checkpoint_chart(nodes, checkpoints, geometry, window=window)
    assert_text_is_clear(drawn)
    assert drawn.axes[0].get_xlim() == window


def test_the_seed_bug_shows_the_misplaced_state_and_how_far_it_is_off():
    nodes, checkpoints = seed_bug("prefix_relative")
    shown = words(checkpoint_chart(nodes, checkpoints, SEED_GEOMETRY))
    assert "has read 576 (+64)" in shown
    assert "misplaced: arrow from its true depth" in shown
    assert "tree page 512" in shown
    assert {"64", "605"} <= set(shown)  # where its prefill steps ended
    assert "state of this depth" not in shown


def test_the_sound_rule_shows_a_state_and_nothing_misplaced():
    nodes, checkpoints = seed_bug("absolute")
    shown = words(checkpoint_chart(nodes, checkpoints, SEED_GEOMETRY))
    assert "state of this depth" in shown
    assert not any("misplaced" in text or "has read" in text for text in shown)


def test_the_legend_explains_what_occurs_and_no_more():
    nodes, checkpoints = agentic_tree()
    legend = (
        "KV of a node",
        "state of this depth",
        "tombstone: state evicted",
        "misplaced: arrow from its true depth",
        "refused (why: below)",
        "tracked, not filed (superseded or pending)",
        "KV locked",
        "state locked",
        "computed, not in the tree",
    )
    assert set(legend) <= set(words(checkpoint_chart(nodes, checkpoints, SEED_GEOMETRY)))
    plain = set(words(checkpoint_chart(nodes[nodes["node_id"].eq(12)].assign(kv_locks=0))))
    assert plain & set(legend) == {"KV of a node"}


def test_refusals_lie_below_the_bars_clear_of_the_states():
    node = {"node_id": 1, "start_tokens": 0, "end_tokens": 512, "status": "state", "state_depth_tokens": 512}
    refused = {
        "request": "r0",
        "prefix_tokens": 0,
        "end_tokens": 511,
        "depth_tokens": 511,
        "outcome": "refused",
    }
    drawn = checkpoint_chart(nodes_frame([node]), checkpoints_frame([refused]))
    drawn.draw_without_rendering()
    (state,), (cross,) = spots(drawn, "#007a59"), spots(drawn, "#a3287c")
    assert abs(state[0] - cross[0]) < 3  # one token apart: the same place on this axis
    assert state[1] - cross[1] > 10


def test_reasons_that_differ_in_numbers_alone_are_told_once():
    nodes = nodes_frame([{"node_id": 1, "start_tokens": 0, "end_tokens": 4096}])
    many = [
        {
            "request": "r0",
            "prefix_tokens": 0,
            "end_tokens": 100 * i,
            "outcome": "refused",
            "reason": f"no multiple of 512 lies in (0, {100 * i}]",
        }
        for i in range(1, 9)
    ]
    assert [r.text for r in collect_marks(nodes, checkpoints_frame(many), 200, None).reasons] == [
        "no multiple of 512 lies in (0, 800] (and 7 alike)"
    ]
    few = collect_marks(nodes, checkpoints_frame(many[:3]), 200, None)
    assert len(few.reasons) == 3


def test_requests_without_a_node_get_lanes_and_the_rest_is_counted():
    nodes = nodes_frame([{"node_id": 1, "start_tokens": 0, "end_tokens": 512}])
    rows = [
        {
            "request": f"q{i}",
            "prefix_tokens": 512,
            "end_tokens": 600,
            "outcome": "refused",
            "reason": "no grid point",
        }
        for i in range(5)
    ]
    marks = collect_marks(nodes, checkpoints_frame(rows), 200, None)
    assert marks.outside == ["q2", "q3", "q4"]  # the newest
    assert [stop for _, stop in marks.reused] == [512, 512, 512]
    assert marks.hidden_marks == 2
    assert "1 node · 2 checkpoints not shown" in words(checkpoint_chart(nodes, checkpoints_frame(rows)))


def test_above_max_nodes_the_subtitle_says_how_many_are_shown():
    shown = words(checkpoint_chart(random_tree(300, 8), max_nodes=200))
    assert "showing 200 of 300 nodes" in shown


def test_every_node_has_a_bar_and_every_state_a_mark():
    nodes = random_tree(40, 9)
    drawn = checkpoint_chart(nodes)
    paths = [patch.get_path() for patch in drawn.axes[0].get_children() if isinstance(patch, PathPatch)]
    bars = sum(int((path.codes == path.CLOSEPOLY).sum()) for path in paths)
    assert bars == 40 + int(nodes["kv_locks"].gt(0).sum())  # locks are outlines on top
    assert len(spots(drawn, "#007a59")) == int(nodes["status"].eq("state").sum())
    assert len(spots(drawn, "#c94f00")) == int(nodes["status"].eq("misplaced").sum())


def test_an_empty_tree_is_an_empty_chart():
    shown = words(
        checkpoint_chart(
            pd.DataFrame(columns=list(NODES)), pd.DataFrame(columns=list(CHECKPOINTS)), SEED_GEOMETRY
        )
    )
    assert any(text.startswith("0 nodes") for text in shown)


NODE = {"node_id": 1, "start_tokens": 0, "end_tokens": 512}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: checkpoint_chart(nodes_frame([NODE]).drop(columns="status")),
            "nodes: lacks the columns status",
        ),
        (lambda: checkpoint_chart(nodes_frame([NODE, NODE])), "node_id 1 occurs twice"),
        (lambda: checkpoint_chart(nodes_frame([NODE | {"end_tokens": 0}])), "runs from 0 to 0"),
        (
            lambda: checkpoint_chart(
                nodes_frame([NODE | {"parent_id": 2}, NODE | {"node_id": 2, "parent_id": 1}])
            ),
            r"nodes \[1, 2\] form a ring",
        ),
        (
            lambda: checkpoint_chart(nodes_frame([NODE]), pd.DataFrame({"request": ["a"]})),
            "checkpoints: lacks the columns step",
        ),
        (
            lambda: checkpoint_chart(nodes_frame([NODE]), window=(5, 5)),
            r"window=\(5, 5\): the first depth must be below",
        ),
        (lambda: checkpoint_chart(nodes_frame([NODE]), max_nodes=0), "max_nodes=0: must be at least 1"),
        (
            lambda: checkpoint_chart(nodes_frame([NODE]), theme="sepia"),
            "theme='sepia': must be one of light, dark",
        ),
    ],
    ids=["column", "twice", "no-length", "ring", "checkpoint-column", "window", "max-nodes", "theme"],
)
def test_bad_input_is_refused_in_words(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_drawing_leaves_no_trace_in_matplotlib():
    before = dict(mpl.rcParams)
    drawn = checkpoint_chart(*TREES["agentic"])
    assert to_png(drawn).startswith(b"\x89PNG")
    assert to_svg(drawn).lstrip().startswith("<?xml")
    assert dict(mpl.rcParams) == before
    plt = sys.modules.get("matplotlib.pyplot")
    assert plt is None or plt.get_fignums() == []


def test_the_same_frames_give_the_same_bytes():
    first, second = (checkpoint_chart(*TREES["agentic"]) for _ in range(2))
    assert to_png(first) == to_png(second)
    assert to_svg(first) == to_svg(second)
