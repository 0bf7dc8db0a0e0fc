"""``depthchart traces``: describe, convert, make, and the neutral files they write."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from depthchart.commands import traces
from depthchart.traces import load_trace, make, save_trace

SAMPLES = Path(__file__).parent / "samples"


def call(*words):
    parser = argparse.ArgumentParser()
    traces.add_parser(parser.add_subparsers())
    return traces.run(parser.parse_args([traces.NAME, *map(str, words)]))


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet"])
def test_every_neutral_form_keeps_every_request(tmp_path, ending):
    trace = make("agentic", 3, requests=40)
    path = save_trace(trace, tmp_path / f"t{ending}")
    assert load_trace(path).requests == trace.requests
    coding = load_trace(SAMPLES / "coding_agent.jsonl")
    assert load_trace(save_trace(coding, tmp_path / f"c{ending}")).requests == coding.requests


def test_describe_prints_totals_and_source(capsys):
    assert call("describe", SAMPLES / "mooncake.jsonl") == 0
    shown = capsys.readouterr().out
    assert "4 requests" in shown
    assert "4,860 prompt" in shown
    assert "kvcache-ai/Mooncake" in shown


def test_describe_as_json_and_figure(tmp_path, capsys):
    figure = tmp_path / "f.png"
    assert call("describe", "agentic", "--json", "--figure", figure) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["seed"]) == (600, 20260)
    assert found["reuse"][0]["block_tokens"] == 1
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_convert_and_make(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert call("convert", SAMPLES / "bailian.jsonl", out) == 0
    assert load_trace(out).requests == load_trace(SAMPLES / "bailian.jsonl").requests
    assert "alibaba" in load_trace(out).source
    made = tmp_path / "made.csv"
    assert (
        call("make", "rag", "--seed", 5, "--set", "requests=30", "--set", "retrieved=(1, 2)", "--out", made)
        == 0
    )
    assert load_trace(made).requests == make("rag", 5, requests=30, retrieved=(1, 2)).requests


def test_damage_is_told_and_strict_stops(tmp_path, capsys):
    file = tmp_path / "m.jsonl"
    file.write_text((SAMPLES / "mooncake.jsonl").read_text() + "oops\n")
    assert call("describe", file) == 0
    assert "damaged line 5: " in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^line 5: "):
        call("describe", file, "--strict")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("describe", "nowhere.jsonl"), "neither a file nor a bundled trace"),
        (("make", "rag", "--out", "/dev/null/x.csv"), "/dev/null"),
        (("convert", "agentic", "t.xml"), "must end in one of: .jsonl"),
        (("make", "agentik"), "did you mean 'agentic'"),
        (("make", "rag", "--set", "documents"), "must have the form KEY=VALUE"),
        (("describe", "agentic", "--limit", "0"), "limit=0 must be 1 or more"),
        (("describe", "agentic", "--option", "block_size=3"), "is no option of the format 'neutral'"),
    ],
)
def test_a_bad_call_says_why(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(*words)
