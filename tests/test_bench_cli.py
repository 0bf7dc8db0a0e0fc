"""``depthchart bench kernels`` and ``bench tree`` as a user runs them."""

import csv
import json

import pytest

from depthchart import sglang_peer
from depthchart.cli import main
from depthchart.commands import bench

SMALL = [
    "--op",
    "ssd",
    "--width",
    "16",
    "--length",
    "20",
    "--snapshots",
    "1",
    "--heads",
    "1",
    "--rounds",
    "1",
]


def test_measures_writes_and_shows_the_table_again(capfd, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "mine.csv"
    assert main(["bench", "kernels", *SMALL, "--threads", "1", "--out", str(out), "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    (row,) = answer["rows"]
    assert (row["op"], row["chunk_width"], row["length"], row["snapshots"]) == ("ssd", 16, 20, 1)
    assert row["best_s"] > 0
    assert answer["provenance"]["threads"] == 1
    assert main(["bench", "kernels", "--table", str(out), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["rows"] == answer["rows"]
    assert shown["provenance"]["command"] == answer["provenance"]["command"]
    assert len(list(csv.DictReader(out.open()))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "48"], "invalid choice: 48"),
        (["--length", "0"], "'0' must be a whole number of at least 1; nearest: 1"),
        (["--out", "no-such-folder/x.csv", *SMALL], "no-such-folder"),
    ],
    ids=["width", "length", "folder"],
)
def test_the_kernels_refuse_what_is_not_legal(capfd, words, message):
    pytest.importorskip("torch")
    assert main(["bench", "kernels", *words]) == 2
    assert message in capfd.readouterr().err


def test_every_flag_of_the_kernels_bench_is_handed_on():
    pytest.importorskip("torch")
    from depthchart_kernels.bench import _parser

    flags = {action.dest for action in _parser()._actions}
    assert flags - {"help", "json"} == {*bench.LISTS, *bench.VALUES}


def test_bundled_table_without_torch(capsys, monkeypatch):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert main(["bench", "kernels", "--table"]) == 0
    shown = capsys.readouterr().out
    assert "of roofline" in shown
    assert "gated_delta" in shown
    assert "python -m depthchart_kernels.bench" in shown
    assert main(["bench", "kernels"]) == 2
    assert "pip install 'depthchart[kernels]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "--op", "ssd"], "measures nothing; leave out --op"),
        (["--table", "no-such.csv"], "no-such.csv"),
    ],
    ids=["both", "missing"],
)
def test_tables_that_cannot_be_shown(capsys, words, message):
    assert main(["bench", "kernels", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_table_of_another_kind(capsys, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("hardware,seconds\nh200,1\n")
    assert main(["bench", "kernels", "--table", str(other)]) == 2
    assert "lacks the columns op, impl" in capsys.readouterr().err


def test_the_tree_is_measured_on_the_stated_load(capsys, tmp_path):
    """Matched tokens by arithmetic: turn k of a session finds the k whole turns before it, floored to the page."""
    out = tmp_path / "tree.csv"
    words = ["--pages", "64,512", "--sessions", "2", "--rounds", "1", "--csv", str(out)]
    assert main(["bench", "tree", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["part"], row["who"], row["page"]) for row in rows] == [
        (part, "depthchart", page) for page in (64, 512) for part in ("tree", "lifecycle")
    ]
    for row in rows:
        assert row["us_a_request"] > 0
        if row["part"] == "tree":
            page = row["page"]
            known = sum((2000 + 500 * turn) // page * page for turn in range(1, 10))
            assert row["matched_tokens"] == 2 * known
    written = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    assert len(list(csv.DictReader(written))) == 4


def test_without_sglang_ours_is_shown_with_the_method(capsys, monkeypatch):
    monkeypatch.setattr(sglang_peer, "find_spec", lambda name: None)
    words = ["--pages", "512", "--sessions", "1", "--rounds", "1"]
    assert main(["bench", "tree", "--against", "sglang", *words]) == 0
    shown = capsys.readouterr().out
    assert "sglang is not installed" in shown
    assert "CPU time of one thread" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tree", "--pages", "0"], "--pages '0'"),
        (["tree", "--sessions", "x"], "--sessions 'x'"),
        (["tree", "--against", "vllm"], "nearest: sglang"),
        (["tree", "--op", "ssd"], "--op: is no flag of bench tree"),
        (["kernels", "--pages", "1"], "--pages: is no flag of bench kernels"),
    ],
    ids=["page", "sessions", "peer", "kernels' flag", "tree's flag"],
)
def test_flags_that_do_not_fit(capsys, words, message):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
