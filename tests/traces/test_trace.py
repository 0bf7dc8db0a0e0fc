"""Runs name tokens exactly: every helper against the same thing done on expanded tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthchart.traces.trace import (
    Trace,
    TraceRequest,
    canonical,
    common_prefix,
    page_keys,
    runs_length,
    runs_to_tokens,
    slice_runs,
)

ANY_RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 5)), max_size=8)


def spelled(runs):
    """The tokens one by one, as pairs: the definition."""
    return [(segment, start + step) for segment, start, length in runs for step in range(length)]


@given(ANY_RUNS)
def test_canonical_keeps_the_tokens_and_is_unique(runs):
    merged = canonical(runs)
    assert spelled(merged) == spelled(runs)
    assert all(length > 0 for _, _, length in merged)
    one_by_one = canonical((segment, index, 1) for segment, index in spelled(runs))
    assert merged == one_by_one


@given(ANY_RUNS, st.integers(0, 45), st.integers(0, 45))
def test_slice_is_the_slice_of_the_tokens(runs, a, b):
    merged, (start, stop) = canonical(runs), sorted((a, b))
    part = slice_runs(merged, start, stop)
    assert spelled(part) == spelled(merged)[start:stop]
    assert part == canonical(part)


@given(ANY_RUNS, st.integers(1, 9))
def test_pages_are_the_pages_of_the_tokens(runs, page):
    merged = canonical(runs)
    tokens = spelled(merged)
    keys = page_keys(merged, page)
    assert len(keys) == len(tokens) // page
    for count, key in enumerate(keys):
        assert spelled(key) == tokens[count * page : (count + 1) * page]
        assert key == canonical(key)


@given(ANY_RUNS, ANY_RUNS)
def test_common_prefix_counts_equal_leading_tokens(left, right):
    a, b = spelled(left), spelled(right)
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(canonical(left), canonical(right)) == expected


def test_tokens_are_segment_and_index_in_one_number():
    tokens = runs_to_tokens(((0, 7, 2), (3, 0, 1), (2**31 - 1, 2**32 - 1, 1)))
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [7, 8, 3 * 2**32, 2**63 - 1]
    assert runs_length(((0, 7, 2), (3, 0, 1))) == 3


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param((2**31, 0, 1), "segment=2147483648", id="segment too large"),
        pytest.param((-1, 0, 1), "segment=-1", id="segment negative"),
        pytest.param((1, 2**32, 1), "2\\*\\*32", id="index too large"),
        pytest.param((1, 2**32 - 1, 2), "2\\*\\*32", id="run over the edge"),
        pytest.param((1, -1, 2), "\\(1, -1, 2\\)", id="start negative"),
        pytest.param((1, 0, -2), "length=-2", id="length negative"),
    ],
)
def test_impossible_runs_are_refused(run, words):
    with pytest.raises(ValueError, match=words):
        canonical([run])
    with pytest.raises(ValueError, match=words):
        runs_to_tokens((run,))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda: page_keys(((1, 0, 4),), 0), "page=0 .* nearest legal value: 1", id="page 0"),
        pytest.param(lambda: slice_runs((), 3, 2), "0 <= start <= stop", id="slice backwards"),
        pytest.param(lambda: slice_runs((), -1, 2), "0 <= start <= stop", id="slice negative"),
        pytest.param(lambda: Trace("t", ()).head(-1), "count=-1", id="negative head"),
        pytest.param(lambda: Trace("t", (ask("a", 0), ask("a", 1))), "'a' appears twice", id="twice"),
    ],
)
def test_bad_arguments_say_what_is_legal(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def ask(name, at_s, **more):
    return TraceRequest(name, at_s, ((1, 0, 10),), ((2, 0, 3),), **more)


def test_a_trace_sorts_by_arrival_and_counts():
    trace = Trace("t", (ask("b", 2.0), ask("a", 1.0, session="s"), ask("c", 2.0, session="s")))
    assert [request.request_id for request in trace] == ["a", "b", "c"]
    assert (len(trace), trace.sessions, trace.duration_s) == (3, 2, 1.0)
    assert (trace.prompt_tokens, trace.output_tokens) == (30, 9)
    assert trace.describe()["prompt_tokens"] == 30
    assert Trace("none", ()).duration_s == 0.0


def test_head_keeps_the_first_and_cuts_no_thread_to_nowhere():
    trace = Trace("t", (ask("a", 0), ask("b", 1, after="late"), ask("late", 2, after="a")))
    head = trace.head(2)
    assert [(request.request_id, request.after) for request in head] == [("a", None), ("b", None)]
    assert head.notes == ("first 2 of 3 requests",)
    assert trace.head(3) is trace


@pytest.mark.parametrize(
    ("field", "value"),
    [("arrival_s", float("nan")), ("arrival_s", float("inf")), ("think_s", float("nan")), ("think_s", -1.0)],
)
def test_times_must_be_finite(field, value):
    times = {"arrival_s": 0.0, "think_s": 0.0, field: value}
    request = TraceRequest("a", times["arrival_s"], ((1, 0, 5),), (), think_s=times["think_s"])
    with pytest.raises(ValueError, match=f"{field}=.* of 'a': must be finite"):
        Trace("t", (request,))


def test_requests_must_not_wait_for_each_other():
    def request(name, after):
        return TraceRequest(name, 0.0, ((1, 0, 5),), (), after=after)

    Trace("chain", (request("a", None), request("b", "a"), request("c", "b"), request("d", "b")))
    with pytest.raises(ValueError, match="wait for each other: a after b after a"):
        Trace("ring", (request("a", "b"), request("b", "a"), request("d", "a")))
    with pytest.raises(ValueError, match="wait for each other: a after a"):
        Trace("self", (request("a", "a"),))
