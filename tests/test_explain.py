"""Each reason by a small trace whose answer is worked out by hand; the sums on real-looking ones; the verb."""

from __future__ import annotations

import json

import pytest

from depthchart.cli import main
from depthchart.explain import REASONS, explain, meeting, try_changes
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.serial import serve
from depthchart.traces import load_trace
from depthchart.traces.overlap import seen_prefixes
from depthchart.traces.trace import Trace, TraceRequest

G = Geometry(64)
ROOMY = {"kv_tokens": 1 << 16, "state_slots": 64}


def ask(name, *prompt, output=((9, 0, 1),), at=0.0):
    return TraceRequest(name, at, tuple(prompt), tuple(output))


def last(requests, geometry=G, rule="absolute", **settings):
    made = explain(Trace("by hand", tuple(requests)), geometry, rule, **{**ROOMY, **settings})
    return made.requests[-1]


def test_never_seen():
    one = last([ask("a", (1, 0, 200)), ask("b", (2, 0, 300))])
    assert one.reasons == {"never_seen": 300}
    assert (one.seen_tokens, one.reused_tokens) == (0, 0)


def test_shorter_than_a_page():
    """vllm#54608: a shared prefix of 240 tokens on blocks of 784."""
    g = Geometry(784, chunk_width=16)
    one = last([ask("a", (1, 0, 240), (2, 0, 900)), ask("b", (1, 0, 240), (3, 0, 900))], g, "vllm_align")
    assert one.reasons == {"never_seen": 900, "shorter_than_page": 240}


def test_off_the_tree_page():
    """128 of the first 150 tokens are whole pages; page_exact keeps the branch only when it is seen a second time."""
    texts = [ask(name, (1, 0, 150), (at, 0, 500)) for at, name in enumerate("abc", 2)]
    one = last(texts, rule="page_exact")
    assert one.reasons["off_tree_page"] == 22
    assert one.possible_tokens == 128


def test_the_last_token():
    """The same prompt of three pages again: 192 tokens were seen, a match gives at most two pages."""
    one = last([ask("a", (1, 0, 192)), ask("b", (1, 0, 192))])
    assert (one.seen_tokens, one.possible_tokens) == (192, 128)
    assert one.reasons["last_token"] == 64
    # its only state lies at 192, where a prompt of 192 tokens cannot resume
    assert one.reasons["unique_tokens"] == 128 - one.reused_tokens


def test_a_state_in_anothers_own_tokens():
    """a leaves its state at 640 of 700, b parts from it at 320: KV is there for 320 tokens, no state."""
    one = last([ask("a", (1, 0, 320), (2, 0, 380)), ask("b", (1, 0, 320), (3, 0, 380))])
    assert one.kv_tokens == 320
    assert one.reasons == {"never_seen": 380, "unique_tokens": 320}
    assert one.deeper_at == 640
    assert any("640, beyond the common text" in words for words in one.story(G))


def test_off_the_grid():
    """Chunks of 256 on pages of 64: the grid is 256, so of 320 common tokens the last 64 can hold no state."""
    g = Geometry(64, chunk_width=256)
    one = last([ask("a", (1, 0, 320), (2, 0, 380)), ask("b", (1, 0, 320), (3, 0, 380))], g)
    assert one.reasons == {"never_seen": 380, "unique_tokens": 256, "off_chunk_grid": 64}


def test_the_cut_fell_short():
    """One prefill of 700 tokens keeps KV up to its checkpoint at 640; what lies between 640 and 700 is given back, so a
    text that goes on finds 640, and of 699 computed tokens 59 are no whole page more."""
    g = Geometry(64, chunk_width=512)  # grid 512: the key ends at 512
    one = last([ask("a", (1, 0, 700)), ask("b", (1, 0, 900))], g)
    assert (one.seen_tokens, one.possible_tokens, one.kv_tokens, one.reused_tokens) == (700, 640, 512, 512)
    assert one.reasons == {"never_seen": 200, "off_tree_page": 60, "cut_fell_short": 128}


def test_evicted_kv():
    """Room for 1,024 tokens: another text of 960 pushes out the first."""
    one = last([ask("a", (1, 0, 640)), ask("b", (2, 0, 960)), ask("c", (1, 0, 700))], kv_tokens=1024)
    assert one.kv_tokens == 0
    assert one.reasons == {"never_seen": 60, "kv_evicted": 640}


def test_an_evicted_state():
    """Four slots. After b the states of a (an inner one by now) and b lie in the tree; c takes three slots, so the one
    that was used least recently goes, that of a, and its KV stays; d needs it."""
    texts = [
        ask("a", (1, 0, 640)),
        ask("b", (1, 0, 640), (2, 0, 320)),
        ask("c", (3, 0, 640)),
        ask("d", (1, 0, 640), (4, 0, 320)),
    ]
    one = last(texts, state_slots=4)
    assert (one.kv_tokens, one.reused_tokens, one.evicted_at) == (640, 0, 640)
    assert one.reasons == {"never_seen": 320, "state_evicted": 640}


def test_not_restored():
    """llama.cpp#24035: checkpoints are kept and only a text's own end is ever resumed from."""
    texts = [ask("a", (1, 0, 640)), ask("b", (1, 0, 640), (2, 0, 320)), ask("c", (1, 0, 640), (3, 0, 320))]
    one = last(texts, matching="tip")
    assert one.reasons == {"never_seen": 320, "not_restored": 640}


def test_another_request_still_runs():
    """Both arrive at once: the second is matched before the first has left anything."""
    long = Geometry(64, chunked_prefill_size=64_000)
    texts = [ask("a", (1, 0, 640), (2, 0, 64)), ask("b", (1, 0, 640), (3, 0, 64))]
    one = last(texts, long, concurrent=True)
    assert one.reasons == {"never_seen": 64, "not_inserted_yet": 640}
    assert last(texts, long).reasons["unique_tokens"] == 640  # one after the other it is another reason


def test_too_large():
    made = explain(Trace("t", (ask("a", (1, 0, 4096)),)), G, kv_tokens=1024, state_slots=8)
    assert made.totals == {"too_large": 4096}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("sglang-34808", "sglang-39115")])
def test_reasons_are_a_partition(name):
    """Of every request, and H, C and what was seen are those of independent code."""
    trace = load_trace("agentic", limit=120)
    settings = preset(name).apply(G, 1 << 16, 24).settings
    made = explain(trace, G, **settings)
    for one in made.requests:
        assert sum(one.reasons.values()) == one.prompt_tokens - one.reused_tokens
        assert all(tokens > 0 for tokens in one.reasons.values())
    served = serve(trace, G, **settings).requests
    assert [(o.kv_tokens, o.reused_tokens) for o in made.requests] == [
        (s.kv_tokens, s.reused_tokens) for s in served
    ]
    assert [one.seen_tokens for one in made.requests] == list(seen_prefixes(trace))
    assert sum(made.totals.values()) == trace.prompt_tokens - made.facts()["reused_tokens"]


def test_a_roomy_cache_evicts_nothing():
    made = explain(load_trace("agentic", limit=120), G, kv_tokens=1 << 22, state_slots=4000)
    assert not {"kv_evicted", "state_evicted", "not_inserted_yet"} & set(made.totals)


def test_changes_are_tried():
    trace = load_trace("agentic", limit=60)
    trials = try_changes(trace, G, "sglang", kv_tokens=1 << 15, state_slots=12)
    best = [t.recovered_tokens for t in trials]
    assert best == sorted(best, reverse=True)
    more = next(t for t in trials if t.change == "kv_tokens 32768 -> 65536")
    assert more.kind == "memory"
    alone = serve(trace, G, **preset("sglang").apply(G, 1 << 16, 12).settings).reused_tokens
    base = serve(trace, G, **preset("sglang").apply(G, 1 << 15, 12).settings).reused_tokens
    assert (more.reused_tokens, more.recovered_tokens) == (alone, alone - base)


def test_verb(tmp_path, capsys):
    words = [
        "explain",
        "agentic",
        "--limit",
        "40",
        "--engine",
        "vllm-align",
        "--block-size",
        "528",
        "--chunk-width",
        "16",
    ]
    assert main([*words, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "shorter than a tree page" in text or "off the tree page" in text
    assert "cheapest change of flags" in text
    assert {path.name for path in tmp_path.iterdir()} == {"requests.csv", "explain.png"}
    assert main([*words, "--no-changes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["reasons"]) <= set(REASONS)
    assert facts["geometry"]["page_size"] == 528
    name = facts["shown"][0]["request"]
    assert main([*words, "--request", name]) == 0
    assert capsys.readouterr().out.startswith(f"request {name}: ")


def test_verb_says_what_is_wrong(capsys):
    assert main(["explain", "agentic", "--limit", "5", "--request", "s0000-00"]) == 2
    assert "nearest: 's0000-00" in capsys.readouterr().err
    assert main(["explain", "--engine", "vlm-align"]) == 2
    assert "nearest" in capsys.readouterr().err


# --- two requests alone -----------------------------------------------------------------------------------


def test_two_prompts_that_part_and_the_checkpoint_that_serves():
    """The desktop report of bug_reports M21: checkpoints at 9,676 and 11,719, a common prefix of 11,586 tokens."""
    one = ask("one", (1, 0, 11_719))
    two = ask("two", (1, 0, 11_586), (2, 0, 300))
    g = Geometry(1, chunk_width=1, chunked_prefill_size=9676)
    met = meeting(Trace("pair", (one, ask("other", (5, 0, 9)), two)), "one", "two", g, "vllm_align", **ROOMY)
    assert (met.shared_tokens, met.depths) == (11_586, (9676, 11_719))
    assert met.account.reused_tokens == 9676
    assert met.account.lost_tokens == 1910


def test_a_meeting_names_the_nearest_request():
    pair = Trace("pair", (ask("one", (1, 0, 99)), ask("two", (1, 0, 99))))
    with pytest.raises(ValueError, match="request='too': is not in the trace; nearest: 'two'"):
        meeting(pair, "one", "too", G, **ROOMY)


def test_verb_against(capsys):
    words = ["explain", "agentic", "--limit", "40", "--request", "s0003-002"]
    assert main([*words, "--against", "s0003-001"]) == 0
    text = capsys.readouterr().out
    assert "s0003-001 and s0003-002 part after" in text
    assert "leaves states of s0003-001 at:" in text
    assert main([*words, "--against", "s0003-001", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["shared_tokens"] == facts["account"]["seen_tokens"]
    assert main(["explain", "agentic", "--limit", "9", "--against", "s0003-001"]) == 2
    assert "request: is missing" in capsys.readouterr().err
