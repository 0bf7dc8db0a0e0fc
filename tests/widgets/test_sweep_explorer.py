"""The sweep explorer without a browser: ranges, running, stopping, opening a configuration, reporting."""

import time

import pytest

from depthchart import load_trace
from depthchart.serial import serve
from depthchart.sweep_task import settings_of
from depthchart.widgets import sweep_explorer
from depthchart.widgets.sweeping import NO_MODEL

RANGES = {
    "page_size": [16, 48, 64],
    "preset": ["sglang", "depthchart"],
    "kv_tokens": [8192, 32_768],
    "state_slots": [4, 24],
}


@pytest.fixture(scope="module")
def trace():
    return load_trace("agentic", limit=10)


@pytest.fixture
def explorer(trace):
    return sweep_explorer(trace, RANGES)


def run(bar):
    bar.start.click()
    bar.wait(120)


def test_nothing_is_shown_before_it_ran(explorer):
    assert explorer.results.layout.display == "none"
    run(explorer.report)
    assert "run the sweep first" in explorer.report.message.value


def test_a_sweep_shows_what_each_configuration_gives(explorer, trace):
    run(explorer.start)
    # page 48 is neither a multiple nor a divisor of chunk 64: 8 of 24 combinations are illegal
    assert "16 configurations of agentic, 8 illegal ones left out" in explorer.start.message.value
    assert explorer.results.layout.display is None
    assert b"KV pool (tokens)" in bytes(explorer.heat.value)
    assert b"best at its cost" in bytes(explorer.front.value)
    best = explorer.configs[0]
    geometry, settings = settings_of(best)
    service = serve(trace, geometry, **settings)
    share = service.reused_tokens / service.prompt_tokens
    assert explorer.pick.label.startswith(f"{share:.1%} reused")
    assert share == explorer.made.frame["reuse"].max()


def test_a_configuration_opens_as_a_run(explorer):
    run(explorer.start)
    explorer.pick.index = 3
    run(explorer.opener)
    (tree,) = explorer.run.children
    assert tree.report is not None
    assert "node" in tree.pane.head.value
    config = explorer.configs[3]
    assert "steps" in explorer.opener.message.value
    assert tree.pane.geometry.page_size == config["page_size"]


def test_a_click_on_a_cell_opens_the_best_of_its_configurations(explorer):
    run(explorer.start)
    frame = explorer._frame
    key = next(spot[0] for spot in explorer.heat.spots if len(spot[0].split(",")) > 1)
    rows = [int(label) for label in key.split(",")]
    drawn = [name for name in RANGES if frame.loc[rows, name].nunique() == 1]
    alike = frame[(frame[drawn] == frame.loc[rows[0], drawn]).all(axis=1)]
    assert sorted(alike.index) == sorted(rows)  # all that share what the map shows, and no other
    explorer.heat.click(key)
    explorer.opener.wait(60)
    (tree,) = explorer.run.children
    best = frame.loc[rows, "reuse"].idxmax()
    assert explorer.pick.value == best
    assert tree.pane.geometry.page_size == frame.loc[best, "page_size"]
    assert explorer.heat.chosen == [key]
    assert explorer.table.chosen == explorer.front.chosen == [str(row) for row in sorted(rows)]


def test_points_and_rows_open_their_own_configuration(explorer):
    run(explorer.start)
    assert sorted(int(spot[0]) for spot in explorer.front.spots) == list(range(16))
    explorer.front.click("9")
    explorer.opener.wait(60)
    assert explorer.pick.value == 9
    assert f"page_size={explorer.configs[9]['page_size']}" in explorer.opener.message.value
    assert explorer.table.html.count("<tr data-key=") == 16
    explorer.table.click("4")
    explorer.opener.wait(60)
    assert explorer.run.children[0].pane.geometry.page_size == explorer.configs[4]["page_size"]


def test_another_click_stops_the_run_under_way(explorer, monkeypatch):
    import depthchart.widgets.sweeping as module

    run(explorer.start)
    simulate, seen = module.simulate, []

    def slow(trace, geometry, **settings):
        seen.append(geometry.page_size)
        if len(seen) == 1:
            for _ in range(600):
                time.sleep(0.02)
                settings["cost"].advance(1, 2)
        return simulate(trace, geometry, **settings)

    monkeypatch.setattr(module, "simulate", slow)
    explorer.table.click("3")
    time.sleep(0.2)
    explorer.table.click("5")
    explorer.opener.wait(60)
    assert seen == [explorer.configs[3]["page_size"], explorer.configs[5]["page_size"]]
    assert f"page_size={explorer.configs[5]['page_size']}" in explorer.opener.message.value
    assert not explorer.opener.start.disabled


def test_the_list_alone_shows_where_it_lies(explorer):
    run(explorer.start)
    explorer.pick.value = 6
    assert explorer.table.chosen == ["6"]
    assert [key for key in explorer.heat.chosen if "6" in key.split(",")] == explorer.heat.chosen != []


def test_stopping_leaves_what_was_there(explorer, monkeypatch):
    import depthchart.sweep_task as task

    served = task._served
    monkeypatch.setattr(task, "_served", lambda *args: (time.sleep(0.2), served(*args))[1])
    explorer.start.start.click()
    time.sleep(0.5)
    explorer.start.stop.click()
    explorer.start.wait(60)
    assert "stopped at" in explorer.start.count.value
    assert "of 16" in explorer.start.count.value
    assert explorer.made is None
    assert not explorer.start.start.disabled


def test_opening_a_run_can_be_stopped(explorer):
    run(explorer.start)
    explorer.opener.start.click()
    explorer.opener.stop.click()
    explorer.opener.wait(60)
    assert "stopped at" in explorer.opener.count.value
    assert explorer.run.children == ()


def test_a_model_gives_bytes_to_the_front(explorer):
    assert NO_MODEL in explorer.model.options
    explorer.model.value = explorer.model.options[1]
    run(explorer.start)
    assert explorer.made.frame["memory_bytes"].notna().all()
    assert b"memory (bytes)" in bytes(explorer.front.value)


def test_the_report(explorer, tmp_path):
    run(explorer.start)
    explorer.report.path.value = str(tmp_path / "s.html")
    run(explorer.report)
    text = (tmp_path / "s.html").read_text()
    for words in (
        "Illegal combinations",
        "Every configuration",
        ".head(10)",
        "page_size=[16, 64]",
    ):
        assert words in text


def test_nothing_chosen_and_empty_ranges_are_told(explorer, trace):
    explorer.axes["kv_tokens"].value = ()
    run(explorer.start)
    assert "kv_tokens: nothing is chosen" in explorer.start.message.value
    with pytest.raises(ValueError, match="page_size has no value"):
        sweep_explorer(trace, {"page_size": []})
    with pytest.raises(ValueError, match="theme='blue'"):
        sweep_explorer(trace, theme="blue")
