"""The hold-out table on a trace small enough to be worked out by hand."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "holdout.py"

# Mooncake's form, 512 tokens a block: a stranger, X of 1,024 tokens, X again, and Y of 1,536, which goes on where X ended.
REQUESTS = [(512, [9]), (1024, [1, 2]), (1024, [1, 2]), (1536, [1, 2, 3])]

# X again is matched to 1,023 tokens at most, floored to the tree page; ours has a state there, as no bundle of SGLang's has
# (its only one is at 1,024, where the text ended). Y resumes from that one, 1,024 tokens, under either.
BY_PAGE = {"16": 1008 + 1024, "64": 960 + 1024, "256": 768 + 1024}


@pytest.fixture
def holdout():
    spec = importlib.util.spec_from_file_location("holdout", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks up its own annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trace(tmp_path):
    lines = [
        json.dumps({"timestamp": 1000 * at, "input_length": tokens, "output_length": 1, "hash_ids": ids})
        for at, (tokens, ids) in enumerate(REQUESTS)
    ]
    path = tmp_path / "tiny.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_table_of_a_tiny_trace(holdout, trace, tmp_path, capsys):
    out = tmp_path / "table.csv"
    assert holdout.main([f"{trace}@1:", "--presets", "sglang,depthchart", "--csv", str(out)]) == 0
    told = [line for line in out.read_text().splitlines() if line.startswith("#")]
    assert any("command" in line for line in told)
    rows = list(csv.DictReader(line for line in out.read_text().splitlines() if not line.startswith("#")))
    # all four memories are one: twice the longest request is 2 x 1,537 tokens, in steps of 1,024; slots for two requests
    assert [(row["kv_tokens"], row["state_slots"]) for row in rows] == [("4096", "8")] * 3
    assert {row["tree_page"]: int(row["ours"]) for row in rows} == BY_PAGE
    assert {row["dcp"] for row in rows if row["tree_page"] == "256"} == {"4"}
    for row in rows:
        assert (row["trace"], row["part"], row["prompt_tokens"]) == ("tiny", "1:4", "3584")
        assert (row["engine"], row["engine_tokens"]) == ("sglang", "1024")
        assert row["bound"] == row["ours"]
        assert float(row["of_bound"]) == 1.0
        assert float(row["ratio"]) == pytest.approx(int(row["ours"]) / 1024, abs=1e-4)
    assert "1.9375" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "first", "last"), [("a.jsonl", 0, None), ("a@b@2:", 2, None), ("a@:3", 0, 3), ("a@2:3", 2, 3)]
)
def test_a_part_is_named_by_its_requests(holdout, text, first, last):
    part = holdout.Part.of(text)
    assert (part.first, part.last) == (first, last)
    assert str(part.path) == (text.rpartition("@")[0] or text)


def test_pools_follow_from_the_part(holdout, trace):
    whole = holdout.Part(trace).load()
    assert holdout.distinct_tokens(whole, 64) == 512 + 1536
    assert set(holdout.memories(whole)) == {(4096, 8)}
    assert len(holdout.Part(trace, 1, 3).load()) == 2
