"""The geometry explorer without a kernel or a browser: controls moved by hand."""

import sys
from itertools import pairwise

import pytest

from depthchart.widgets import geometry_explorer


@pytest.fixture(scope="module")
def explorer():
    return geometry_explorer()


@pytest.fixture(autouse=True)
def at_the_seed(explorer):
    for control, value in zip(explorer.controls, (64, 8, 64, "prefix_relative", 1, 8192), strict=True):
        control.value = value


def picture(explorer):
    return bytes(explorer.picture.value).decode()


def test_it_opens_on_the_seed_bug(explorer):
    assert "has read 576 (+64)" in picture(explorer)
    assert "64 tokens run through the recurrence twice" in explorer.verdict.value
    assert "shares a page" in explorer.verdict.value
    assert "64 to 604" in explorer.decisions.value
    assert "sglang#39115" in explorer.advice.value
    assert "tree page <b>512</b>" in explorer.grids.value


def test_another_rule_mends_it(explorer):
    explorer.rule.value = "absolute"
    assert explorer.path.faults == []
    assert "has read" not in picture(explorer)
    assert "reuses 512 of 604 tokens" in explorer.verdict.value


@pytest.mark.parametrize(
    ("control", "value", "grids"),
    [
        ("page", 128, "tree page <b>1,024</b>"),
        ("dcp", 1, "tree page <b>64</b>"),
        ("chunk", 256, "cache chunk <b>256</b>"),
        ("pool", 2, "tree page <b>1,024</b>"),
    ],
)
def test_every_slider_changes_the_picture(explorer, control, value, grids):
    before = picture(explorer)
    getattr(explorer, control).value = value
    assert picture(explorer) != before
    assert grids in explorer.grids.value


def test_a_small_prefill_budget_cuts_the_prompt(explorer):
    assert explorer.decisions.value.count("604") > 0
    explorer.prefill.value = 256
    steps = [row[1] for row in explorer.path.rows()[1:]]
    assert all(
        int(b.replace(",", "")) - int(a.replace(",", "")) <= 256 for a, b in (s.split(" to ") for s in steps)
    )
    assert "chunked_prefill_size=256" in explorer.repeat.value


def test_the_page_decides_the_theme(explorer):
    assert "#14181d" not in picture(explorer)
    explorer.picture.dark = True  # as the front end says
    assert "#14181d" in picture(explorer)
    explorer.picture.dark = False
    assert "#14181d" not in picture(explorer)
    asked = geometry_explorer(theme="dark")
    assert "#14181d" in picture(asked)
    with pytest.raises(ValueError, match="theme='drak': must be one of auto, light, dark; nearest: 'dark'"):
        geometry_explorer(theme="drak")


def test_what_is_shown_can_be_repeated(explorer):
    from html import unescape

    lines = unescape(
        explorer.repeat.value.split("<pre", 1)[1].split(">", 1)[1].split("</pre>")[0]
    ).splitlines()
    given = {}
    exec("\n".join([*lines[:-1], f"again = {lines[-1]}"]), given)
    assert given["again"].verdict == explorer.path.verdict


def test_each_change_draws_once(explorer, monkeypatch):
    drawn = []
    draw = explorer.redraw
    monkeypatch.setattr(explorer, "redraw", lambda: (drawn.append(1), draw()))
    explorer.page.value = 32
    explorer.rule.value = "marconi"
    explorer.rule.value = "marconi"  # no change
    assert len(drawn) == 2


def test_an_illegal_choice_shows_the_errors_words_and_no_stale_picture(explorer):
    explorer.page.value = 528
    assert (
        "page_size=528: must divide chunk_width=64 or be a multiple of it; nearest legal page_size: 512"
        in explorer.message.value
    )
    assert explorer.path is None
    assert explorer._result.layout.display == "none"
    explorer.chunk.value = 16
    assert explorer.message.value == ""
    assert explorer._result.layout.display is None
    assert explorer.path.geometry.page_size == 528


def test_a_budget_too_small_for_the_rule_is_told(explorer):
    explorer.rule.value = "vllm_align"
    explorer.page.value = 1024
    explorer.dcp.value = 16
    assert "chunked_prefill_size=8192" in explorer.message.value
    assert "nearest legal: 16384" in explorer.message.value


def test_every_offered_combination_draws_or_says_why_not(explorer):
    for rule in ("absolute", "vllm_align"):
        explorer.rule.value = rule
        for page in explorer.page.options:
            explorer.page.value = page
            for dcp in (1, 3, 16):
                explorer.dcp.value = dcp
                assert bool(explorer.message.value) == (explorer.path is None)
                assert explorer.path is not None or "nearest legal" in explorer.message.value


def test_text_from_outside_is_escaped():
    from depthchart.widgets.panels import error_panel, verdict_panel

    assert "<script>" not in error_panel(ValueError("<script>")) + verdict_panel("<script>", ["<script>"])


def test_it_shows_its_picture_where_no_kernel_runs(explorer):
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "has read 576 (+64)" in bundle["image/svg+xml"]


def test_redraws_leave_no_figure_behind(explorer):
    for rule in ("absolute", "prefix_relative"):
        explorer.rule.value = rule
    plt = sys.modules.get("matplotlib.pyplot")
    assert plt is None or plt.get_fignums() == []


def test_sliders_offer_the_start_value_too():
    explorer = geometry_explorer(48, 2, 48, "absolute", pages=(16, 64))
    assert explorer.page.options == (16, 48, 64)
    assert all(a < b for control in explorer.controls[:3] for a, b in pairwise(control.options))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: geometry_explorer(rule="absolut"), "nearest: 'absolute'"),
        (lambda: geometry_explorer(page_size=0), "page_size=0"),
    ],
)
def test_bad_starts(call, said):
    if "page" in said:
        assert said in call().message.value  # shown inside, as any illegal choice
    else:
        with pytest.raises(ValueError, match=said):
            call()


def test_a_redraw_costs_less_than_200_ms_of_one_core(explorer):
    """The processor's time, which a busy machine does not stretch; the browser test reads the clock."""
    from time import process_time

    spent = []
    for rule in ("absolute", "prefix_relative") * 5:
        start = process_time()
        explorer.rule.value = rule
        spent.append(process_time() - start)
    assert sorted(spent)[len(spent) // 2] < 0.2
