"""Ideal reuse against its definition, and the frames made of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthchart.traces import Trace, TraceRequest, describe, make
from depthchart.traces.overlap import reusable, seen_prefixes
from depthchart.traces.trace import canonical, runs_to_tokens

RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=5)


def ask(number, prompt, output, key):
    return TraceRequest(str(number), float(number), canonical(prompt), canonical(output), extra_key=key)


@given(
    st.lists(st.tuples(RUNS, RUNS | st.just([]), st.sampled_from(["a", "b"])), max_size=9), st.integers(1, 5)
)
def test_seen_prefixes_are_the_longest_common_ones(rows, block):
    requests = [ask(number, *row) for number, row in enumerate(rows)]
    past: list[tuple[str, list[int]]] = []
    for request, seen in zip(requests, seen_prefixes(requests), strict=True):
        prompt, reply = runs_to_tokens(request.prompt).tolist(), runs_to_tokens(request.output).tolist()
        same = [old for key, old in past if key == request.extra_key]
        assert seen == max((shared(prompt, old) for old in same), default=0)
        # Block by block, as an engine would: full blocks that some earlier request holds in full.
        blocks = [shared(prompt[:-1], old[: len(old) // block * block]) // block * block for old in same]
        assert reusable(seen, len(prompt), block) == max(blocks, default=0)
        past.append((request.extra_key, prompt + reply[:-1]))


def shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_describe_by_hand():
    first = TraceRequest("a", 0.0, ((1, 0, 100),), ((2, 0, 11),))
    again = TraceRequest("b", 4.0, ((1, 0, 100), (2, 0, 11), (3, 0, 9)), ((4, 0, 5),))
    same = TraceRequest("c", 10.0, ((1, 0, 100),), ())
    summary = describe(Trace("t", (first, again, same), "by hand"), blocks=(1, 64))
    assert summary.requests["seen_tokens"].tolist() == [
        0,
        110,
        100,
    ]  # the last reply token was never computed
    assert summary.requests["gap_s"].tolist()[1:] == [4.0, 6.0]
    # Never the last prompt token: 110 + 99 to the token, 64 + 64 in blocks of 64; 320 prompt tokens.
    assert summary.reuse["reusable_tokens"].tolist() == [209, 128]
    assert summary.reuse["reuse_share"].tolist() == [209 / 320, 128 / 320]
    table = summary.table.set_index("quantity")["value"]
    assert (table["prompt"], table["output"], table["mean arrival rate"]) == (320, 16, 0.2)
    assert "by hand" in str(summary)
    assert "<table" in summary._repr_html_()


def test_describe_of_nothing_and_bad_blocks():
    empty = describe(Trace("none", ()))
    assert empty.reuse["reusable_tokens"].sum() == 0
    empty.figure()
    with pytest.raises(ValueError, match=r"nearest legal value for 0: 1"):
        describe(Trace("none", ()), blocks=(16, 0))


def test_random_prompts_reuse_nothing_and_chat_falls_with_the_block():
    assert describe(make("random", requests=100)).reuse["reusable_tokens"].sum() == 0
    shares = describe(make("chat", requests=200)).reuse["reuse_share"].tolist()
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 > shares[-1]


def test_the_figure_has_four_filled_panels_with_units():
    figure = describe(make("chat", requests=100)).figure()
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels[0] == "tokens"
    assert "(min)" in labels[1] or "(s)" in labels[1]
    assert labels[2] == "block size (tokens)"
    assert all(axes.patches or axes.lines for axes in figure.axes)
    assert "synthetic" in figure.get_suptitle()


def test_the_room_imports_no_heavy_library():
    code = (
        "import sys, depthchart.traces as t; t.load_trace('agentic'); t.describe; "
        "print([m for m in ('pandas', 'matplotlib', 'torch', 'pyarrow') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
