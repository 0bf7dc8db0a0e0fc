"""``depthchart report`` as a user runs it."""

import pytest

from depthchart.cli import main

POOLS = ["--dcp-size", "8", "--kv-tokens", "65536", "--state-slots", "48", "--limit", "12"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    assert main(["simulate", "agentic", *POOLS, "--out", str(folder)]) == 0
    return folder


def test_a_saved_run(run_dir, tmp_path, capsys):
    out = tmp_path / "deep" / "report.html"
    assert main(["report", str(run_dir), "--out", str(out), "--data", str(tmp_path / "data")]) == 0
    assert str(out) in capsys.readouterr().out
    text = out.read_text()
    assert "--dcp-size 8" in text
    assert "--limit 12" in text
    assert (tmp_path / "data" / "figure-1-steps.csv").is_file()


def test_a_trace_and_a_run_side_by_side_as_pdf(run_dir, tmp_path):
    out = tmp_path / "both"
    words = ["report", str(run_dir), "agentic", *POOLS, "--out", str(out), "--format", "pdf"]
    assert main(words) == 0
    assert out.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-thing.jsonl"], "no-such-thing"),
        (["."], "has no run.jsonl.gz"),
        (["agentic", "--page-size", "100"], "page_size=100"),
    ],
)
def test_what_is_wrong_is_told(words, message, tmp_path, capsys):
    assert main(["report", *words, "--out", str(tmp_path / "r.html")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
