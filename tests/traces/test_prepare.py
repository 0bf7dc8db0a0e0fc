"""Pages as numbers: equal exactly where the tokens are."""

from __future__ import annotations

import gc

import pytest

from depthchart.traces import Trace, TraceRequest, make
from depthchart.traces.prepare import _KEPT
from depthchart.traces.prepare import prepare as prepare_trace
from depthchart.traces.trace import canonical, runs_to_tokens


@pytest.mark.parametrize("page", [16, 64, 100])
@pytest.mark.parametrize("name", ["agentic", "rag"])
def test_equal_numbers_are_equal_tokens(name, page):
    trace = make(name, 2, requests=40)
    ready = prepare_trace(trace, page)
    meaning: dict[int, bytes] = {}
    for request, prompt, whole in zip(trace, ready.prompts, ready.wholes, strict=True):
        tokens = runs_to_tokens(canonical(request.prompt + request.output))
        assert len(whole) == len(tokens) // page
        assert prompt.tolist() == whole[: request.prompt_tokens // page].tolist()
        for count, number in enumerate(whole.tolist()):
            content = tokens[count * page : (count + 1) * page].tobytes()
            assert meaning.setdefault(number, content) == content
    assert len(set(meaning.values())) == len(meaning) == ready.distinct


def test_asking_twice_is_free_and_dropped_with_the_trace():
    trace = Trace("t", (TraceRequest("a", 0.0, ((1, 0, 10),), ()),))
    assert prepare_trace(trace, 4) is prepare_trace(trace, 4)
    assert prepare_trace(trace, 5) is not prepare_trace(trace, 4)
    key = id(trace)
    assert key in _KEPT
    del trace
    gc.collect()
    assert key not in _KEPT


def test_page_must_be_positive():
    with pytest.raises(ValueError, match=r"page=0 must be a positive"):
        prepare_trace(make("random", requests=2), 0)
