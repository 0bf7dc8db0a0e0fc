"""Rules of one's own: what they may answer, how nonsense is refused, how they are registered."""

import sys
from pathlib import Path

import numpy as np
import pytest

from depthchart import RULES, Decision, decide_many, rule
from depthchart.errors import RuleError

sys.path.insert(0, str(Path(__file__).parent))
from depth_support import BUILT_IN, SEED


def raises(g, prefix, end, branch):
    raise ZeroDivisionError("by hand")


NONSENSE = [
    # id, answer -> words of the error
    ("nothing", None, ["None", "must be a Decision"]),
    ("a number", 512, ["512", "must be a Decision"]),
    ("a plain tuple", (512, True, "why"), ["must be a Decision"]),
    ("a fraction", Decision(512.0, True, ""), ["512.0", "whole numbers"]),
    ("a word", Decision("512", True, ""), ["'512'", "whole numbers"]),
    ("a truth value", Decision(True, True, ""), ["whole numbers"]),
    ("at the prefix", Decision(64, True, ""), ["depth=64", "(64, 605]"]),
    ("beyond the end", Decision(606, True, ""), ["depth=606", "(64, 605]"]),
    ("negative", Decision(-512, True, ""), ["depth=-512", "(64, 605]"]),
    ("donate without a depth", Decision(None, True, ""), ["depth=None", "(64, 605]"]),
    ("donate is no truth value", Decision(512, "no", ""), ["'no'", "True or False"]),
    ("donate left out", Decision(512, None, ""), ["donate=None", "True or False"]),
    ("reason is no text", Decision(512, True, None), ["reason=None", "text"]),
    ("also is a number", Decision(512, True, "", 64), ["also=64", "whole numbers"]),
    ("also is nothing", Decision(512, True, "", None), ["also=None", "whole numbers"]),
    ("also has a fraction", Decision(512, True, "", (128.5,)), ["128.5", "whole numbers"]),
    ("also at the prefix", Decision(512, True, "", (64,)), ["also=(64,)", "(64, 605]"]),
    ("also beyond the end", Decision(512, True, "", (700,)), ["also=(700,)", "(64, 605]"]),
]


@pytest.mark.parametrize("row", NONSENSE, ids=[row[0] for row in NONSENSE])
def test_nonsense_is_refused_naming_rule_extend_and_answer(own_rules, row):
    _, answer, words = row
    made = rule("odd_one")(lambda g, prefix, end, branch: answer)
    for ask in (lambda: made(SEED, 64, 605), lambda: decide_many("odd_one", SEED, [64], [605])):
        with pytest.raises(RuleError) as caught:
            ask()
        for word in ("'odd_one'", "[64, 605)", "answered", *words):
            assert word in str(caught.value)


def test_a_rule_that_raises_is_named_with_what_it_raised(own_rules):
    made = rule("breaks")(raises)
    with pytest.raises(
        RuleError,
        match=r"rule 'breaks' on the extend \[64, 605\) with branch 512 raised ZeroDivisionError: by hand",
    ):
        made(SEED, 64, 605, 512)
    with pytest.raises(RuleError) as caught:
        decide_many(made, SEED, [0], [10])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_rule_with_too_few_arguments_is_a_rule_error(own_rules):
    with pytest.raises(RuleError, match=r"'short' .* raised TypeError"):
        rule("short")(lambda g, prefix: Decision(1, True, ""))(SEED, 0, 64)


def test_stopping_the_notebook_is_no_rule_error(own_rules):
    def stopped(g, prefix, end, branch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rule("stopped")(stopped)(SEED, 0, 64)


def test_what_a_rule_may_answer(own_rules):
    g = SEED

    def ask(answer):
        return rule("mine")(lambda *_: answer)(g, 64, 605)

    assert ask(Decision(None, False, "no")) == Decision(None, False, "no")
    assert ask(Decision(9999, False, "not donated, so anywhere")).depths == ()
    numpys = ask(Decision(np.int64(512), np.bool_(True), "", [np.int32(128)]))
    assert numpys == Decision(512, True, "", (128,))
    assert [type(numpys.depth), type(numpys.donate), type(numpys.also[0])] == [int, bool, int]
    assert numpys.depths == (128, 512)


def test_a_rule_learns_its_extend(own_rules):
    asked = []

    @rule("listens", snapshots="any")
    def listens(geometry, prefix, end, branch):
        """Takes notes.

        And more."""
        asked.append((geometry, prefix, end, branch))
        return Decision(None, False, "")

    listens(SEED, 64, 605)
    listens(SEED, 64, 605, 512)
    assert asked == [(SEED, 64, 605, None), (SEED, 64, 605, 512)]
    assert (listens.summary, listens.snapshots) == ("Takes notes.", "any")
    assert RULES["listens"] is listens


def test_registering_again_replaces_a_users_rule(own_rules):
    rule("mine")(lambda *_: Decision(64, False, "first"))
    rule("mine")(lambda *_: Decision(64, False, "second"))
    assert RULES["mine"](SEED, 0, 64).reason == "second"
    assert list(RULES).count("mine") == 1


BAD_NAMES = [
    ("", ["name=''", "identifier"]),
    ("my rule", ["name='my rule'", "identifier", "my_rule"]),
    (5, ["name=5", "identifier"]),
    ("absolute", ["name='absolute'", "built-in", "my_absolute"]),
]


@pytest.mark.parametrize(("name", "words"), BAD_NAMES)
def test_bad_names(own_rules, name, words):
    with pytest.raises(ValueError) as caught:
        rule(name)
    for word in words:
        assert word in str(caught.value)


def test_bad_snapshots(own_rules):
    with pytest.raises(ValueError, match="snapshots='page': must be 'chunk' or 'any'"):
        rule("mine", snapshots="page")


@pytest.mark.parametrize("name", ["absolut", "", None, 5, ["absolute"]], ids=str)
@pytest.mark.parametrize("kind", [KeyError, ValueError])
def test_an_unknown_rule_lists_the_known_ones(name, kind):
    with pytest.raises(kind) as caught:
        RULES[name]
    for word in (f"rule={name!r}", "no such rule", *BUILT_IN):
        assert word in str(caught.value)
    assert ("nearest: 'absolute'" in str(caught.value)) == ("absolut" in str(name))


def test_the_registry_is_a_mapping_that_begins_with_the_seven_rules():
    assert tuple(RULES)[:7] == BUILT_IN  # rules that a user registers follow
    assert len(RULES) == len(tuple(RULES))
    assert "absolute" in RULES
    assert "absolut" not in RULES
    assert RULES.get("absolut") is None
    assert all(made.name == name and made.summary for name, made in RULES.items())
