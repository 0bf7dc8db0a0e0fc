"""The tree explorer without a kernel or a browser: controls moved by hand."""

import time

import pytest

from depthchart import Geometry, load_trace
from depthchart.cases.one_path import one_path
from depthchart.events import NodeRemoved
from depthchart.simulate import simulate
from depthchart.widgets import tree_explorer

WIDE = Geometry(64, dcp_size=8, chunk_width=64)
LIMIT_MS = 400


@pytest.fixture(scope="module")
def run():
    trace = load_trace("agentic", limit=150)
    return simulate(trace, WIDE, "prefix_relative", kv_tokens=65_536, state_slots=48, strict=False)


@pytest.fixture
def explorer(run):
    return tree_explorer(run)


def picture(explorer):
    return bytes(explorer.pane.picture.value).decode()


def test_it_opens_where_an_invariant_broke(explorer):
    assert "1 misplaced state" in explorer.pane.head.value
    assert "has read 13,248 (+448)" in picture(explorer)
    assert "BROKEN INVARIANT MisplacedStateError" in explorer.pane.words.value
    assert explorer.message.value == ""


def test_a_sound_run_opens_at_its_end():
    path = one_path(WIDE, "absolute")
    explorer = tree_explorer(path.log, WIDE)
    assert explorer.slider.value == explorer.slider.max
    assert explorer.moment.count == len(path.log)
    assert explorer.report is None  # bare events have no settings to report


def test_the_slider_goes_through_the_run(explorer):
    explorer.slider.value = 0
    assert "no nodes" in explorer.pane.head.value
    empty = picture(explorer)
    explorer.slider.value = 1
    assert "1 node: 1 state" in explorer.pane.head.value
    assert "changed just now" in picture(explorer)
    assert picture(explorer) != empty
    explorer.slider.value = explorer.slider.max
    assert explorer.moment.count == len(explorer.rewind)
    explorer.slider.value = 0
    assert picture(explorer) == empty


def test_the_depth_axis_stays_while_the_tree_grows(explorer):
    import re

    def ticks(at):
        explorer.slider.value = at
        axis = picture(explorer).split('id="matplotlib.axis_1"')[1].split('id="patch_')[0]
        return re.findall(r">([\d,.k]+)</text>", axis)

    wanted = ["0", "2,000", "4,000", "6,000", "8,000", "10k", "12k", "14k", "16k", "18k"]
    assert ticks(1) == ticks(explorer.slider.max) == wanted


def test_one_request_alone(explorer):
    explorer.slider.value = explorer.slider.max
    explorer.request.value = "s0000-000"
    own = explorer.rewind.nodes_of("s0000-000", explorer.moment.count)
    assert f"{len(own)} node" in picture(explorer)
    assert {value for _, value in explorer.node.options} == {0, *own}
    assert "of s0000-000" in picture(explorer)


def test_the_history_of_a_node_stays_when_it_is_gone(run, explorer):
    at, node = next((at, e.event.node_id) for at, e in enumerate(run.log) if isinstance(e.event, NodeRemoved))
    before = max(i for i, m in enumerate(explorer.moments) if m.count <= at)
    explorer.slider.value = before
    explorer.node.value = node
    assert "it is made by" in explorer.pane.past.value
    explorer.slider.value = before + 1
    assert explorer.node.value == node
    assert "not in the tree at this moment" in explorer.pane.past.value
    assert (f"node {node} (gone)", node) in explorer.node.options


def test_moving_by_event_stays_at_the_same_moment(explorer):
    count = explorer.moment.count
    explorer.by.value = "event"
    assert explorer.slider.max > 500
    assert abs(explorer.moment.count - count) <= 1
    explorer.by.value = "step"
    assert explorer.moment.count == count


def test_play_goes_on_in_few_enough_steps_and_begins_anew_at_the_end(explorer):
    explorer.by.value = "event"
    assert 1 < explorer.slider.max / explorer.play.step <= 480
    explorer.slider.value = explorer.slider.max
    explorer.play.playing = True
    assert explorer.slider.value == explorer.play.value == 0


def test_each_change_draws_once(explorer, monkeypatch):
    drawn = []
    draw = explorer.redraw
    monkeypatch.setattr(explorer, "redraw", lambda: (drawn.append(1), draw()))
    explorer.slider.value = 3
    explorer.request.value = explorer.request.options[1][1]
    assert len(drawn) == 2


def test_going_back_shows_the_picture_that_was_kept(explorer, monkeypatch):
    import depthchart.widgets.tree_pane as module

    explorer.slider.value = 5
    kept = picture(explorer)
    explorer.slider.value = 6
    monkeypatch.setattr(module, "moment_chart", lambda *a, **k: pytest.fail("drawn again"))
    explorer.slider.value = 5
    assert picture(explorer) == kept


def test_an_error_is_shown_in_words(explorer, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("nodes: lacks the columns <x>")

    monkeypatch.setattr(explorer.pane, "show", broken)
    explorer.slider.value = 2
    assert 'role="alert"' in explorer.message.value
    assert "lacks the columns &lt;x&gt;" in explorer.message.value
    monkeypatch.undo()
    explorer.slider.value = 3
    assert explorer.message.value == ""


def test_a_click_on_a_node_tells_its_history_and_another_takes_it_back(explorer):
    key = explorer.pane.picture.spots[0][0]
    explorer.pane.picture.click(key)
    assert explorer.node.value == int(key)
    assert f"Node {key}: what happened to it in the whole run" in explorer.pane.past.value
    assert explorer.pane.picture.chosen == [key]
    explorer.pane.picture.click(key)
    assert explorer.node.value == 0
    assert explorer.pane.picture.chosen == []


def test_every_node_can_be_clicked_where_it_is_drawn(explorer):
    """Spots are in the order and at the depth of the bars: their share of the axis is that of the tokens."""
    explorer.slider.value = explorer.slider.max
    nodes = explorer.rewind.at(explorer.moment.count).nodes
    spots = {int(key): (left, right) for key, left, _, right, _, _ in explorer.pane.picture.spots}
    assert set(spots) == set(nodes)
    (a, b) = sorted(nodes.values(), key=lambda n: n.end)[:: len(nodes) - 1]
    scale = (spots[b.node_id][1] - spots[a.node_id][1]) / (b.end - a.end)
    for node in nodes.values():
        left, right = spots[node.node_id]
        assert right - left == pytest.approx((node.end - node.start) * scale, abs=1e-6)


def test_it_says_how_to_repeat_the_run(explorer):
    text = next(
        part.value for part in explorer.children if "To repeat this run" in getattr(part, "value", "")
    )
    assert "depthchart simulate agentic --rule prefix_relative --limit 150" in text
    assert "--no-strict" in text


def test_dark(run):
    explorer = tree_explorer(run, theme="dark")
    assert "#14181d" in picture(explorer)


def test_what_is_missing_or_unknown_is_refused(run):
    with pytest.raises(ValueError, match="geometry=None"):
        tree_explorer(run.log)
    with pytest.raises(ValueError, match="theme='blue'"):
        tree_explorer(run, theme="blue")


def test_it_shows_a_picture_where_no_kernel_runs(explorer):
    bundle = explorer._repr_mimebundle_()
    assert bundle["image/svg+xml"].count("<svg") == 1
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_the_report_button_writes_and_can_be_stopped(explorer, tmp_path):
    bar = explorer.report
    bar.path.value = str(tmp_path / "r.html")
    bar.start.click()
    assert bar.running
    assert not bar.stop.disabled
    bar.stop.click()
    bar.wait(60)
    assert "stopped at" in bar.count.value
    assert list(tmp_path.iterdir()) == []
    bar.path.value = "  "
    bar.start.click()
    bar.wait(60)
    assert "report to: is empty" in bar.message.value
    assert bar.count.value == "failed"
    assert not bar.start.disabled


def test_a_tree_of_200_nodes_is_redrawn_in_time():
    """Measured in this process's own time; the browser test measures by the clock."""
    run = simulate(
        load_trace("agentic", limit=260), Geometry(16), "absolute", kv_tokens=2_000_000, state_slots=900
    )
    explorer = tree_explorer(run)
    sizes, spent = [], []
    for at in range(explorer.slider.max, explorer.slider.max - 6, -1):
        start = time.process_time()
        explorer.slider.value = at
        spent.append((time.process_time() - start) * 1000)
        sizes.append(len(explorer.rewind.at(explorer.moment.count).nodes))
    assert min(sizes[1:]) >= 200
    assert sorted(spent[1:])[2] < LIMIT_MS
