"""``depthchart simulate`` and ``depthchart demo`` as a user runs them."""

import json
import re

import pandas as pd
import pytest

from depthchart.cli import main

WORDS = ["simulate", "agentic", "--dcp-size", "8", "--kv-tokens", "32768", "--state-slots", "32"]


def test_simulate_prints_a_summary_and_writes_frames(capsys, tmp_path):
    code = main([*WORDS, "--limit", "60", "--out", str(tmp_path / "run")])
    shown = capsys.readouterr()
    assert code == 0
    assert "finished" in shown.out
    assert "gap H - C" in shown.out
    assert "assumed, not measured" in shown.out
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {
        "requests.csv",
        "hits.csv",
        "steps.csv",
        "events.csv",
        "checkpoints.csv",
        "nodes.csv",
        "run.json",
        "run.jsonl.gz",
    }
    assert len(pd.read_csv(tmp_path / "run" / "requests.csv")) == 60
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["geometry"]["dcp_size"] == 8
    assert facts["settings"]["rule"] == "absolute"


def test_simulate_as_json_and_a_broken_invariant(capsys):
    code = main([*WORDS, "--rule", "prefix_relative", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 1
    assert answer["summary"]["fault"].startswith("MisplacedStateError")
    assert answer["provenance"]["depthchart"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--kv-tokens", "100"], "kv_tokens=100: must hold at least one page; nearest legal: 512"),
        (["--policy", "lmp"], "nearest: 'lpm'"),
        (["--page-size", "100"], "page_size=100"),
        (["--limit", "0"], "limit=0"),
    ],
)
def test_wrong_settings(capsys, more, message):
    assert main([*WORDS, *more]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_trace(capsys):
    assert main(["simulate", "no-such-trace.jsonl"]) == 2
    assert "no-such-trace" in capsys.readouterr().err


def test_the_demo_writes_one_whole_offline_page(capsys, tmp_path):
    page = tmp_path / "demo.html"
    assert main(["demo", "--out", str(page), "--limit", "150"]) == 0
    shown = capsys.readouterr().out
    assert str(page) in shown
    text = page.read_text()
    assert text.count("<svg") >= 8
    assert "+64 tokens" in text or "576" in text
    for words in ("sglang#39115", "Provenance", "prefix_relative", "MisplacedStateError", "To repeat it"):
        assert words in text
    assert text.count("Provenance: ") == 2 * 4  # of each run: its heading, and its line in the contents
    assert "4 runs of one trace" in text
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', text)
    assert [link for link in links if not link.startswith("data:")] == []  # nothing is loaded from elsewhere
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))  # figures do not take each other's clip paths and markers
    assert {file.name for file in tmp_path.iterdir()} == {"demo.html"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8bjunk", "begins like a gzip file"),
        (b"", "x.jsonl"),
    ],
)
def test_a_damaged_trace_is_one_line(capsys, tmp_path, content, message):
    file = tmp_path / "x.jsonl"
    file.write_bytes(content)
    assert main(["simulate", str(file)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_an_empty_folder_is_no_trace(capsys, tmp_path):
    assert main(["simulate", str(tmp_path)]) == 2
    assert "holds no request" in capsys.readouterr().err


def test_a_pool_beyond_memory_is_one_line(capsys):
    assert main(["simulate", "--limit", "2", "--kv-tokens", "99999999999999"]) == 2
    assert "not enough memory" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_one_line(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("here")
    assert main(["demo", "--limit", "2", "--out", str(blocked / "demo.html")]) == 2
    assert "depthchart: error: " in capsys.readouterr().err
    assert blocked.read_text() == "here"


def test_a_deeply_nested_script_is_one_line(capsys, tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    assert main(["replay", str(file)]) == 2
    assert "nested too deeply" in capsys.readouterr().err


def test_what_a_trace_lost_is_told_and_kept(capsys, tmp_path):
    """A trace with one damaged line: the note stands on stderr, in the JSON and beside the written frames."""
    trace = tmp_path / "two.jsonl"
    good = '{"id": "%s", "arrival_s": 0, "prompt": [[1, 0, 600]], "output": [[2, 0, 3]]}'
    trace.write_text("\n".join([good % "a", "oops", good % "b"]) + "\n")
    code = main(["simulate", str(trace), "--json", "--out", str(tmp_path / "run")])
    shown = capsys.readouterr()
    assert code == 0
    assert "note: 1 damaged lines left out" in shown.err
    answer = json.loads(shown.out)
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    for facts in (answer, kept):
        assert "1 damaged lines left out" in facts["notes"][0]
        assert facts["summary"]["finished"] == 2
        assert "assumed" in facts["assumptions"]
    assert kept["source"] == answer["source"]


def test_frames_are_not_written_over_a_file(capsys, tmp_path):
    file = tmp_path / "here"
    file.write_text("mine")
    assert main([*WORDS, "--limit", "2", "--out", str(file)]) == 2
    assert "is a file; must be a folder" in capsys.readouterr().err
    assert file.read_text() == "mine"
