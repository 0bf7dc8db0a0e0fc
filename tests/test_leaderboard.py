"""Our bundle against the engines' on bundled traces, at equal memory, and the verb."""

from __future__ import annotations

import json

import pytest

from depthchart.cli import main
from depthchart.depth import RULES
from depthchart.geometry import Geometry
from depthchart.leaderboard import leaderboard
from depthchart.serial import serve
from depthchart.simulate import simulate
from depthchart.traces import load_trace, make
from depthchart.traces.bundle import BUNDLED
from depthchart.traces.overlap import reusable, seen_prefixes

QUICK = [
    "sglang-2025-12",
    "sglang",
    "vllm-align",
    "vllm-junction",
    "vllm-all",
    "llamacpp",
]  # undated ones are equal without DCP
G64 = Geometry(64)


CELLS = {
    "roomy": (1 << 18, 128, G64),
    "few-states": (1 << 17, 48, G64),
    "little-kv": (1 << 16, 200, G64),
    "scarce": (1 << 16, 10, G64),
    "dcp": (1 << 17, 48, Geometry(64, dcp_size=4, chunk_width=64)),
    "wide-chunk": (1 << 17, 48, Geometry(16, chunk_width=128)),
}
BOARDS = [  # of the other traces, every second cell is left to a longer run of the tests
    pytest.param(
        trace, cell, id=f"{trace}-{cell}", marks=[pytest.mark.slow] * (trace != "agentic" and at % 2)
    )
    for trace in BUNDLED
    for at, cell in enumerate(CELLS)
]


@pytest.mark.parametrize(("trace", "cell"), BOARDS)
def test_ours_reuses_most_on_every_bundled_trace(trace, cell):
    kv, slots, geometry = CELLS[cell]
    board = leaderboard(
        load_trace(trace), geometry, kv_tokens=kv, state_slots=slots, presets=[*QUICK, "depthchart"]
    )
    assert board.ours_first, board.rows()
    assert all(row.of_bound <= 1 for row in board.standings)
    assert {row.preset: row.wrong_requests for row in board.standings}["depthchart"] == 0


@pytest.mark.parametrize("workload", ["chat", "rag", "few_shot"])
def test_ours_reuses_most_on_other_workloads(workload):
    """Workloads that the bundle was not bundled for."""
    trace = make(workload, 11).head(400)
    board = leaderboard(trace, G64, kv_tokens=1 << 16, state_slots=40, presets=[*QUICK, "depthchart"])
    assert board.ours_first, board.rows()


def test_unbounded_agrees_with_what_was_seen_before():
    trace = load_trace("agentic", limit=200)
    board = leaderboard(trace, G64, kv_tokens=1 << 22, state_slots=4000, presets=["depthchart"])
    ideal = sum(
        reusable(seen, r.prompt_tokens, 64) for seen, r in zip(seen_prefixes(trace), trace, strict=True)
    )
    assert board.bound.unbounded == board.bound.kv == board.bound.states == ideal


def test_serving_agrees_with_the_step_loop_where_requests_do_not_overlap():
    """Far apart in time, the step loop runs one request at a time: same lifecycle, same reuse."""
    from dataclasses import replace

    trace = load_trace("agentic", limit=40)
    apart = replace(
        trace, requests=tuple(replace(r, arrival_s=1000.0 * at, after=None) for at, r in enumerate(trace))
    )
    run = simulate(apart, G64, RULES["dcp_gated"], kv_tokens=1 << 16, state_slots=20)
    service = serve(apart, G64, "dcp_gated", kv_tokens=1 << 16, state_slots=20)
    assert list(run.requests["reused_tokens"]) == [one.reused_tokens for one in service.requests]
    assert list(run.requests["kv_hit_tokens"]) == [one.kv_tokens for one in service.requests]


def test_a_users_entry_is_ranked():
    board = leaderboard(
        load_trace("agentic", limit=60),
        G64,
        kv_tokens=1 << 16,
        state_slots=40,
        presets=["sglang"],
        extra={"mine": {"rule": "page_exact", "state_eviction": "coverage"}},
    )
    assert {row.preset for row in board.standings} == {"sglang", "mine"}
    assert not board.ours_first
    assert "mine" in board._repr_html_()


def test_verb(capsys):
    words = [
        "leaderboard",
        "agentic",
        "--limit",
        "80",
        "--kv-tokens",
        "65536",
        "--state-slots",
        "30",
        "--presets",
        "sglang,depthchart",
    ]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "no cache exceeds" in text
    assert "of bound" in text
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ours_first"]
    assert facts["standings"][0]["preset"] == "depthchart"
    assert facts["bound"]["least"] >= facts["standings"][0]["reused_tokens"]


def test_verb_says_what_is_wrong(capsys):
    assert main(["leaderboard", "agentic", "--presets", "sglan"]) == 2
    assert "nearest: 'sglang'" in capsys.readouterr().err
    assert main(["leaderboard", "agentic", "--limit", "5", "--state-slots", "3"]) == 2
    assert "nearest legal: 4" in capsys.readouterr().err


def test_simulate_takes_a_preset(capsys):
    words = ["simulate", "agentic", "--limit", "20", "--json", "--preset"]
    assert main([*words, "vllm-align"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["rule"] == "vllm_steps"
    assert main([*words, "depthchart", "--eviction", "lru"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["rule"], settings["eviction"], settings["state_eviction"]) == ("spaced", "lru", "gain")
    assert main([*words, "vlm"]) == 2
    assert "nearest" in capsys.readouterr().err
