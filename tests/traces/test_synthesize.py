"""The generators keep what they promise, and the bundled trace is what its generator makes."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from depthchart.traces import bundle
from depthchart.traces.bundle import BUNDLED, bundled_path, bundled_trace
from depthchart.traces.neutral import trace_bytes, write_trace
from depthchart.traces.synthesize import GENERATORS, make
from depthchart.traces.trace import common_prefix, runs_length


@pytest.fixture(scope="module")
def agentic():
    return bundled_trace("agentic")


@pytest.mark.parametrize("name", BUNDLED)
def test_regenerating_gives_the_bundled_bytes(name, tmp_path):
    assert trace_bytes(bundled_trace(name)) == gzip.decompress(bundled_path(name).read_bytes())
    once = write_trace(bundled_trace(name), tmp_path / "a.jsonl.gz").read_bytes()
    again = write_trace(bundled_trace(name), tmp_path / "b.jsonl.gz").read_bytes()
    assert once == again
    assert once[4:8] == bytes(4)  # RFC 1952: MTIME, 0 means no time stamp


def test_the_bundles_help_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("depthchart.traces.bundle.data_places", lambda: [tmp_path])
    with pytest.raises(SystemExit) as left:
        bundle.main(["--help"])
    assert left.value.code == 0
    assert "folder to write to" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bundle.main(["--helpp"])
    assert not list(tmp_path.iterdir())
    bundle.main(["--out", str(tmp_path / "new")])
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"{name}.jsonl.gz" for name in BUNDLED}


def test_the_agentic_bundle_is_what_the_demo_needs(agentic):
    assert len(agentic) >= 500
    assert agentic.sessions >= 30
    assert all(1_400 < request.prompt_tokens <= 24_000 for request in agentic)
    assert max(request.prompt_tokens for request in agentic) > 20_000
    assert all(50 <= request.output_tokens <= 600 for request in agentic)


def test_agentic_sessions_of_one_agent_share_a_long_system_prompt(agentic):
    first = {}
    for request in agentic:
        first.setdefault(request.session, request)
    heads = Counter(request.prompt[0] for request in first.values())
    assert len(heads) == 3
    assert all(count > 1 and length >= 1_400 for (_, _, length), count in heads.items())


def test_agentic_turns_grow_are_edited_and_branch(agentic):
    by_id = {request.request_id: request for request in agentic}
    followers = Counter(request.after for request in agentic if request.after)
    grown = edited = 0
    for request in agentic:
        if request.after is None:
            continue
        before = by_id[request.after]
        assert before.arrival_s < request.arrival_s
        whole = before.prompt_tokens + before.output_tokens
        shared = common_prefix(request.prompt, before.prompt + before.output)
        grown += shared == whole
        edited += before.prompt_tokens - 1_200 <= shared < whole
    assert grown > len(agentic) / 2
    assert edited > 10
    assert sum(count >= 2 for count in followers.values()) > 10


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_trace_other_seed_other_trace(name):
    once, again, other = make(name, 3, requests=50), make(name, 3, requests=50), make(name, 4, requests=50)
    assert once == again
    assert once.requests != other.requests
    assert len(once) == 50
    assert once.seed == 3
    assert "requests=50" in once.notes[0]


def test_chat_turns_contain_the_conversation_so_far():
    by_id = {}
    for request in make("chat", 1, requests=200):
        by_id[request.request_id] = request
        if request.after:
            before = by_id[request.after]
            whole = before.prompt_tokens + before.output_tokens
            assert common_prefix(request.prompt, before.prompt + before.output) == whole
            assert request.prompt_tokens - whole >= 10


def test_rag_popular_documents_recur_and_none_twice_in_a_prompt():
    trace = make("rag", 1, requests=400, documents=50)
    seen = Counter()
    for request in trace:
        documents = request.prompt[1:-1]
        assert 2 <= len(documents) <= 8
        assert len(set(documents)) == len(documents)
        seen.update(documents)
    counts = [count for _, count in seen.most_common()]
    assert len(counts) == 50
    assert counts[0] > 4 * counts[-1]


def test_few_shot_questions_share_one_of_the_heads():
    trace = make("few_shot", 1, requests=200, tasks=4)
    assert len({request.prompt[:-1] for request in trace}) == 4
    assert trace.duration_s == 0.0


def test_random_prompts_share_nothing():
    segments = Counter(run[0] for request in make("random", 1) for run in request.prompt + request.output)
    assert set(segments.values()) == {1}


def test_lengths_stay_in_their_spans():
    trace = make("random", 2, requests=500, prompt_tokens=(100, 120), output_tokens=(7, 7))
    assert {request.prompt_tokens for request in trace} <= set(range(100, 121))
    assert {runs_length(request.output) for request in trace} == {7}


BAD = [
    ("agentik", {}, "did you mean 'agentic'"),
    ("zzz", {}, "known: agentic, chat, rag, few_shot, random"),
    ("chat", {"request": 3}, "did you mean 'requests'"),
    ("agentic", {"turn": (1, 2)}, "did you mean 'turns'"),
    ("chat", {"requests": 0}, "requests=0 must be above 0"),
    ("chat", {"turns": (0, 3)}, "turns=.* nearest legal value: \\(1, 3\\)"),
    ("rag", {"document_tokens": (9, 3)}, "nearest legal value: \\(9, 9\\)"),
    ("rag", {"documents": 4}, "retrieved=.* nearest legal value: \\(2, 4\\)"),
    ("agentic", {"edit_share": 1.5}, "edit_share=1.5 .* nearest legal value: 1.0"),
    ("agentic", {"context_limit": 900}, "context_limit=900 .* nearest legal value: 10000"),
    ("few_shot", {"batch_s": -1}, "batch_s=-1 must be 0 or more"),
    ("random", {"requests_per_s": 0}, "requests_per_s=0"),
]


@pytest.mark.parametrize(("name", "parameters", "words"), BAD, ids=[str(row[:2]) for row in BAD])
def test_bad_parameters_are_named(name, parameters, words):
    with pytest.raises(ValueError, match=words):
        make(name, 0, **parameters)
