"""The case explorer, moved by hand; the outcomes are those that the bundled scripts state."""

import pytest

from depthchart.errors import ScriptError
from depthchart.widgets import case_explorer


@pytest.fixture
def explorer():
    return case_explorer()


def test_it_opens_on_the_seed_bug_as_recorded(explorer):
    assert "Sound: every invariant held, as the script expects" in explorer.verdict.value
    assert "sglang#39115" in explorer.intro.value
    assert "state of this depth" in bytes(explorer.pane.picture.value).decode()


def test_another_rule_breaks_it_and_going_on_misplaces_a_state(explorer):
    explorer.rule.value = "prefix_relative"
    assert "PageSharedError at step 3" in explorer.verdict.value
    explorer.strict.value = False
    assert "64 too many" in explorer.verdict.value
    assert "has read 576 (+64)" in bytes(explorer.pane.picture.value).decode()
    assert "<b>step 3  finish a</b>" in explorer.story.value


def test_the_slider_goes_through_the_steps(explorer):
    explorer.slider.value = 0
    assert "no nodes" in explorer.pane.head.value
    assert "<b>" not in explorer.story.value
    explorer.slider.value = 2
    assert "step 1" in explorer.pane.head.value
    assert "<b>step 1  extend a by 64 tokens</b>" in explorer.story.value
    assert " s ·" not in explorer.pane.head.value  # a script has steps, no time


def test_every_bundled_case_shows_something(explorer):
    for name in explorer.case.options:
        explorer.case.value = name
        assert explorer.message.value == ""
        script = explorer.stage.script
        assert bool(script and script.expect) == ("as the script expects" in explorer.verdict.value)
        assert explorer.strict.value == bool(explorer.stage.strict)
        assert bool(explorer.moments) == bool(explorer.stage.entries)
        assert explorer.story.value or "no tree to see here" in explorer.verdict.value


def test_the_catalogue_agrees_with_what_is_shown(explorer):
    """What the catalogue states of each script case, under each rule, is what the explorer shows."""
    from depthchart import RULES
    from depthchart.cases.catalogue import catalogue

    scripts = [case for case in catalogue() if case.kind == "script"]
    assert {case.id for case in scripts} <= set(explorer.case.options)
    for case in scripts:
        explorer.case.value = case.id
        for rule, expected in (
            (name, one) for name, one in case.expect.items() if name in RULES
        ):  # others are presets
            explorer.rule.value = rule
            assert explorer.message.value == ""
            assert explorer.stage.under == rule
            assert bool(explorer.stage.faults) == (expected["outcome"] in ("wrong state", "crash", "leak")), (
                case.id,
                rule,
            )


@pytest.mark.parametrize(
    ("case", "engine", "said"),
    [
        (
            "llamacpp-24035",
            "llamacpp-24035",
            "less is reused than the right answer allows: 0 tokens reused for 9676",
        ),
        ("llamacpp-24035", "llamacpp", "Right: what the case asks for came out"),
        ("vllm-51113-run", "vllm-align-before-51113", "Wrong state"),
        ("vllm-25752", "vllm-all", "Right: what the case asks for came out"),
        ("vllm-25752", "vllm_align", "0 tokens reused for 528"),
        ("sglang-39115", "sglang", "Right: what the case asks for came out"),
    ],
)
def test_engines_are_offered_and_come_out_as_the_catalogue_says(explorer, case, engine, said):
    explorer.case.value = case
    assert ("engine " if "_" not in engine else "rule ") + engine in dict(explorer.rule.options)
    explorer.rule.value = engine
    assert said in explorer.verdict.value
    assert ("engine preset" if "_" not in engine else "rule") in explorer.intro.value
    flag = "--preset" if "_" not in engine else "--rule"
    assert f"depthchart cases run {case} {flag} {engine}" in explorer.repeat.value


def test_a_trace_case_shows_its_requests_and_its_tree(explorer):
    """vllm#45238: of 64 prompts that share 1,500 tokens the rule reuses none, of blocks of 528 two could be."""
    explorer.case.value = "vllm-45238-1500"
    assert "KV alone [tokens]" in explorer.story.value
    assert "<svg" in bytes(explorer.pane.picture.value).decode()
    assert " s ·" in explorer.pane.head.value  # a trace has a clock
    assert explorer.strict.layout.display == "none"  # nothing here stops at an invariant


def test_a_note_says_where_it_is_shown(explorer):
    explorer.case.value = "fla-122"
    assert "tests/kernels/test_public_cases.py::test_fla_122" in explorer.verdict.value
    assert explorer.pane not in explorer.body.children
    explorer.case.value = "sglang-39436"
    assert "host tier" in explorer.verdict.value


def test_a_click_on_a_node_tells_its_history(explorer):
    key = explorer.pane.picture.spots[0][0]
    explorer.pane.picture.click(key)
    assert f"Node {key}: what happened to it" in explorer.pane.past.value
    assert explorer.pane.picture.chosen == [key]
    explorer.pane.picture.click(key)
    assert explorer.pane.past.value == ""


def test_a_rule_that_fails_is_told_in_words(explorer, own_rules):
    from depthchart import rule

    @rule("explodes")
    def explodes(geometry, prefix, end, branch):
        raise ZeroDivisionError("by <nought>")

    explorer.rule.options = [*explorer.rule.options, ("rule explodes", "explodes")]
    explorer.rule.value = "explodes"
    shown = explorer.verdict.value + explorer.message.value
    assert "RuleError" in shown
    assert "explodes" in shown
    assert "<nought>" not in shown
    explorer.rule.value = "absolute"
    assert "Sound" in explorer.verdict.value


def test_the_report(explorer, tmp_path):
    explorer.rule.value = "prefix_relative"
    explorer.report.path.value = str(tmp_path / "case.html")
    explorer.report.start.click()
    explorer.report.wait(60)
    text = (tmp_path / "case.html").read_text()
    for words in (
        "sglang#39115",
        "PageSharedError",
        "depthchart replay sglang-39115-absolute --rule prefix_relative",
    ):
        assert words in text


def test_what_is_unknown_is_refused():
    with pytest.raises(ScriptError, match="nearest"):
        case_explorer("sglang-1")
    with pytest.raises(ValueError, match="absolut"):
        case_explorer(rule="absolut")
