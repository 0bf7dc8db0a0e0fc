"""The schedule and reuse charts: what they show, and what they refuse."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from depthchart.charts.compare import compare_chart
from depthchart.charts.requests import reuse_chart
from depthchart.charts.timeline import schedule_chart
from depthchart.columns import REQUESTS, STEPS

sys.path.insert(0, str(Path(__file__).parent))
from chart_frames import requests_frame, steps_frame
from test_checkpoint_chart import assert_text_is_clear, words


@pytest.mark.parametrize("count", [0, 1, 2, 120, 5_000])
def test_schedule_text_is_clear_at_any_length(count):
    assert_text_is_clear(schedule_chart(steps_frame(count), title=f"{count} steps"))


@pytest.mark.parametrize("count", [0, 1, 24, 700])
def test_reuse_text_is_clear_at_any_length(count):
    assert_text_is_clear(
        reuse_chart(requests_frame(count) if count else pd.DataFrame(columns=list(REQUESTS)))
    )


def test_schedule_keeps_the_largest_step_and_the_fullest_moment_of_an_interval():
    steps = steps_frame(4_000)
    steps.loc[2_000, ["prefill_tokens", "decode_rows", "free_state_slots", "evictable_state_slots"]] = [
        99_000,
        77,
        0,
        0,
    ]
    prefill, decode, _, states = schedule_chart(steps).axes
    tallest = max(path.vertices[:, 1].max() for path in prefill.collections[0].get_paths())
    assert tallest == 99_000
    assert max(patch.get_data()[0].max() for patch in decode.patches) == 77
    assert min(patch.get_data()[0].min() for patch in states.patches) == 0


def test_few_steps_are_drawn_one_by_one():
    steps = steps_frame(300)
    bars = schedule_chart(steps).axes[0].collections[0].get_segments()
    assert [bar[1][1] for bar in bars] == steps["prefill_tokens"].tolist()


def test_reuse_bars_add_up_to_the_prompts():
    requests = requests_frame(24)
    bars = reuse_chart(requests).axes[0].patches
    known = requests.dropna(subset=["reused_tokens"])
    assert sum(bar.get_height() for bar in bars) == known["prompt_tokens"].sum()


def test_reuse_says_what_it_leaves_out_and_who_lost_some():
    requests = requests_frame(24)
    shown = words(reuse_chart(requests))
    lost = int(requests["lost_tokens"].dropna().gt(0).sum())
    assert "Reuse of 23 requests (1 without a match yet left out)" in shown
    assert f"{lost} of 23 lost some" in shown


def admitted(count):
    return requests_frame(count).assign(admitted_s=lambda frame: frame["arrival_s"])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_compared_runs_are_told_apart_and_their_text_is_clear(count):
    runs = {f"a rule with quite a long name, number {i}": admitted(10 + i) for i in range(count)}
    stopped = {next(iter(runs)): 3.0}
    drawn = compare_chart(runs, stopped)
    assert_text_is_clear(drawn)
    lines = [line for line in drawn.axes[0].lines if len(line.get_xdata()) > 1]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == count
    assert "a rule with quite a long name, number 0, stopped at 3 s" in words(drawn)


def test_compared_lines_end_at_the_sum_of_the_requests():
    frame = admitted(24)
    reused, lost = (ax.lines[0].get_ydata()[-1] for ax in compare_chart({"one": frame}).axes)
    assert (reused, lost) == (frame["reused_tokens"].sum(), frame["lost_tokens"].sum())


@pytest.mark.parametrize("count", [0, 5])
def test_too_few_or_too_many_runs_are_refused(count):
    with pytest.raises(ValueError, match=f"runs: {count} of them; must be 1 to 4"):
        compare_chart({str(i): admitted(3) for i in range(count)})


@pytest.mark.parametrize(
    ("chart", "frame", "said"),
    [
        (
            schedule_chart,
            pd.DataFrame(columns=list(STEPS)).drop(columns="decode_rows"),
            "steps: lacks the columns decode_rows",
        ),
        (
            reuse_chart,
            pd.DataFrame({"arrival_s": [0.0]}),
            "requests: lacks the columns prompt_tokens, reused_tokens, lost_tokens",
        ),
    ],
    ids=["schedule", "reuse"],
)
def test_missing_columns_are_named(chart, frame, said):
    with pytest.raises(ValueError, match=said):
        chart(frame)
