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
    assert "assumed, not measured" in shown.out
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {"requests.csv", "steps.csv", "events.csv", "checkpoints.csv", "nodes.csv", "run.json"}
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
    for words in ("sglang#39115", "Provenance", "prefix_relative", "MisplacedStateError", "to repeat"):
        assert words in text
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', text)
    assert [link for link in links if not link.startswith("data:")] == []  # nothing is loaded from elsewhere
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))  # figures do not take each other's clip paths and markers
    assert {file.name for file in tmp_path.iterdir()} == {"demo.html"}
