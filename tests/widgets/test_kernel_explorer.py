"""The kernel explorer: recorded tables, a measurement in a process of its own, stopping it, and faults in words."""

import sys

import pandas as pd
import pytest

import depthchart.widgets.kernels as module
from depthchart.datafiles import data_path
from depthchart.widgets import kernel_explorer


def picture(explorer):
    return bytes(explorer.picture.value).decode()


def test_it_opens_on_the_recorded_table():
    explorer = kernel_explorer()
    recorded = pd.read_csv(data_path("kernels", "cpu.csv"))
    lengths = recorded["length"].value_counts()
    assert explorer.tokens.options == tuple(sorted(lengths.index))
    assert len(explorer.rows) == lengths[lengths.index.max()]
    assert "gated_delta, 0 snapshots" in picture(explorer)
    shown = recorded[recorded["length"] == lengths.index.max()]
    assert shown["command"].iloc[0] in explorer.facts.value  # how it was made
    explorer.ops.value = ("ssd",)
    assert set(explorer.rows["op"]) == {"ssd"}
    assert "gated_delta" not in picture(explorer)


def test_measuring_here_shows_the_new_table():
    explorer = kernel_explorer()
    explorer.ops.value = ("ssd",)
    explorer.length.value, explorer.rounds.value = 256, 2
    explorer.measure.start.click()
    explorer.measure.wait(120)
    assert "measured 8 cases" in explorer.measure.message.value
    assert explorer.source.value == "measured here"
    assert set(explorer.rows["length"]) == {256}
    assert explorer.rows["chunk_width"].tolist() == [16, 16, 32, 32, 64, 64, 128, 128]
    explorer.source.value = "recorded"
    recorded = sorted(pd.read_csv(data_path("kernels", "cpu.csv"))["length"].unique())
    assert set(explorer.rows["length"]) == {recorded[-1]}
    explorer.tokens.value = recorded[0]
    assert set(explorer.rows["length"]) == {recorded[0]}


def test_stopping_ends_the_process(monkeypatch):
    """The command prints a line and then sleeps far longer than the test may take."""
    code = "import time; print('one', flush=True); print('two', flush=True); time.sleep(600)"
    seen = []

    def advance(done, total):
        seen.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module._run([sys.executable, "-c", code], 9, advance)
    assert seen == [0, 1, 2]


def test_a_benchmark_that_fails_is_told_in_words():
    with pytest.raises(ValueError, match="the benchmark failed: no <torch>"):
        module._run([sys.executable, "-c", "raise SystemExit('no <torch>')"], 1, lambda done, total: None)


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        kernel_explorer(tmp_path / "none.csv")
    (tmp_path / "odd.csv").write_text("op,impl\nkda,chunked\n")
    with pytest.raises(ValueError, match=r"table odd\.csv: lacks the columns chunk_width"):
        kernel_explorer(tmp_path / "odd.csv")


def test_nothing_chosen_is_no_error():
    explorer = kernel_explorer()
    explorer.ops.value = ()
    assert "No chunked kernels" in picture(explorer)
    assert explorer.message.value == ""


def test_the_report(tmp_path):
    explorer = kernel_explorer()
    explorer.report.path.value = str(tmp_path / "k.html")
    explorer.report.start.click()
    explorer.report.wait(60)
    text = (tmp_path / "k.html").read_text()
    assert "share of the roofline" in text.lower()
    assert "depthchart_kernels.bench" in text
