"""``depthchart replay`` and ``depthchart depth``: the stories, the numbers, the exit codes."""

import json

import pytest

from depthchart.cases import script_names
from depthchart.cases.script import find_script
from depthchart.cli import main
from depthchart.depth import RULES

GEOMETRY = ["--page-size", "64", "--dcp-size", "8"]


def call(capsys, *words):
    code = main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_seed_bug_stops_where_the_allocator_refuses(capsys):
    code, out, _ = call(capsys, "replay", "sglang-39115", "--rule", "prefix_relative")
    assert code == 1
    assert "checkpoint at 576" in out
    assert "STOPPED: PageSharedError: segment [576, 605) shares a page with segment [512, 576)" in out
    assert out.index("step 2") < out.index("checkpoint at 576") < out.index("step 3") < out.index("STOPPED")


def test_the_seed_bug_with_checks_off_tells_what_is_wrong(capsys):
    code, out, _ = call(capsys, "replay", "sglang-39115", "--rule", "prefix_relative", "--no-strict")
    assert code == 1
    assert "donated the state of 576 tokens to node 1, which ends at 512  <-- WRONG by 64 tokens" in out
    assert "going on from 512 runs 64 tokens through the recurrence twice" in out
    assert "misplaced" in out


def test_the_seed_bug_under_the_absolute_rule(capsys):
    code, out, _ = call(capsys, "replay", "sglang-39115", "--rule", "absolute")
    assert code == 0
    assert "checkpoint at 512" in out
    assert "donated the state of 512 tokens to node 1, which ends at 512\n" in out
    assert "sound: every invariant held" in out


@pytest.mark.parametrize("name", script_names())
def test_every_bundled_script_gives_what_it_expects(capsys, name):
    code, out, _ = call(capsys, "replay", name)
    assert code == 0
    assert "as the script expects" in out


def test_a_scripts_own_rule_and_checks_keep_its_expectations(capsys):
    """What is asked for is what the script is: it must be held to what it expects."""
    own = ["replay", "sglang-39115-absolute", "--rule", "absolute"]
    assert "as the script expects" in call(capsys, *own)[1]
    strict = "--strict" if find_script("sglang-39115-absolute").strict else "--no-strict"
    assert "as the script expects" in call(capsys, *own, strict)[1]
    assert "as the script expects" not in call(capsys, *own[:-1], "page_exact")[1]


def test_json_is_the_replays_result(capsys):
    code, out, _ = call(capsys, "replay", "sglang-39115-absolute", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["nodes"][0]["end"] == result["nodes"][0]["state"] == 512
    assert result["mismatches"] == []
    assert result["error"] is None


def test_a_script_of_ones_own_is_checked_against_its_expectations(capsys, tmp_path):
    script = {
        "geometry": {"page_size": 4, "chunk_width": 4},
        "pools": {"kv_tokens": 64, "state_slots": 8},
        "steps": [{"op": "match", "tokens": [["a", 8]]}],
        "expect": {"steps": [{"matched": 4}]},
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(script))
    code, out, _ = call(capsys, "replay", str(file))
    assert code == 1
    assert "result.steps[0].matched: 0, expected 4" in out


def test_list(capsys):
    code, out, _ = call(capsys, "replay", "--list")
    assert code == 0
    assert out.split() == script_names()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay"], "script: is missing"),
        (["replay", "sglang-3911"], "script='sglang-3911': no such file"),
        (
            ["replay", "sglang-39115", "--rule", "absolut"],
            "rule='absolut': no such rule; nearest: 'absolute'",
        ),
        (["depth", "--end", "5"], "page_size: is missing; give --page-size N"),
        (["depth", "--page-size", "48", "--end", "5"], "page_size=48"),
        (["depth", "--page-size", "64", "--prefix", "9", "--end", "5"], "end=5"),
        (["depth", "--page-size", "64", "--end", "5", "--rule", "marcini"], "nearest: 'marconi'"),
    ],
)
def test_wrong_calls(capsys, words, message):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_depth_of_the_seed_extend(capsys):
    code, out, _ = call(capsys, "depth", *GEOMETRY, "--prefix", "64", "--end", "604", "--json")
    rows = {row["rule"]: row for row in json.loads(out)["decisions"]}
    assert code == 0
    assert set(rows) >= {
        "chunk_grid",
        "prefix_relative",
        "absolute",
        "dcp_gated",
        "page_exact",
        "vllm_align",
        "marconi",
    }
    assert (rows["prefix_relative"]["depth"], rows["prefix_relative"]["node_end"]) == (576, 512)
    assert (rows["absolute"]["depth"], rows["absolute"]["node_end"]) == (512, 512)
    assert rows["vllm_align"]["donate"] is False


def test_depth_as_a_table(capsys):
    code, out, _ = call(capsys, "depth", *GEOMETRY, "--prefix", "64", "--end", "604")
    assert code == 0
    assert all(name in out for name in RULES)
    assert "does not fit the node that can hold it under: chunk_grid, prefix_relative" in out


def test_depth_of_one_rule_with_a_branch(capsys):
    words = ("depth", "--page-size", "64", "--end", "700", "--branch", "256", "--rule", "marconi", "--json")
    code, out, _ = call(capsys, *words)
    (row,) = json.loads(out)["decisions"]
    assert code == 0
    assert {row["depth"], *row["also"]} == {256, 640}
