"""``depthchart bench kernels`` as a user runs it."""

import csv
import json

import pytest

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
