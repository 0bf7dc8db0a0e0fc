"""The bounded search: it must find the public faults by itself, and clear the sound rules."""

import json
import time
from dataclasses import replace
from itertools import product

import pytest

from depthchart.cases import load_script, replay
from depthchart.cases.expect import mismatches
from depthchart.cli import main
from depthchart.depth import RULES, Decision
from depthchart.depth import rule as register
from depthchart.geometry import Geometry
from depthchart.verify import Bounds, verify
from depthchart.verify.bounds import plans

QUICK = Bounds(tokens=4, tokens_together=2, page_size=(1, 2), dcp_size=(1, 2), chunk_width=(1, 2))


def check_replays(one, kind):
    """The counterexample is a script that any replay breaks on, at its own size and 64 times as long."""
    for script in (one.script, one.scaled(64).script):
        script = json.loads(json.dumps(script))
        result = replay(script)
        assert mismatches(result, script["expect"]) == []
        assert any(v["type"] == kind for v in result["violations"])
        strict = replay({**script, "strict": True, "expect": {}})
        assert strict["error"]["step"] == len(script["steps"]) - 1


def test_rediscovers_the_seed_bug():
    """sglang#39115: a cut inside the first tree page, then a depth counted from there. Three tokens are the fewest:
    one before the cut, and a grid of two after it."""
    start = time.process_time()
    report = verify("prefix_relative")
    assert time.process_time() - start < 10
    one = report.smallest
    assert (one.fault.kind, one.tokens, one.steps) == ("misplaced state", 3, 3)
    assert [step["op"] for step in one.script["steps"]] == ["request", "extend", "extend"]
    assert [step["tokens"] for step in one.script["steps"][1:]] == [1, 2]
    g = load_script(one.script).geometry
    assert (g.page_size, g.tree_page, g.checkpoint_grid) == (1, 2, 2)
    assert g.dcp_size == 2
    check_replays(one, "MisplacedStateError")


def test_rediscovers_the_crash_of_the_seed_bug():
    """One token more, and a request that stops there: the two freed tails share a page."""
    start = time.process_time()
    report = verify("prefix_relative", replace(Bounds(), tokens_together=2), kinds=("shared page",))
    assert time.process_time() - start < 10
    one = report.smallest
    assert (one.tokens, one.steps) == (4, 4)
    check_replays(one, "PageSharedError")
    error = replay({**one.scaled(64).script, "strict": True})["error"]
    assert error["type"] == "PageSharedError"
    assert "[128, 192)" in error["message"]
    assert "[192, 256)" in error["message"]


def test_rediscovers_34808_from_chunk_grid():
    """A single extend past one tree page by a chunk: 2 · 1 + 1 tokens."""
    report = verify("chunk_grid")
    one = report.smallest
    assert (one.fault.kind, one.tokens, one.steps) == ("misplaced state", 3, 2)
    check_replays(one, "MisplacedStateError")


def test_rediscovers_the_decode_fault_of_35412():
    """Decode checkpoints on the interval alone, under a rule that is sound otherwise."""
    report = verify("absolute", Bounds(decode_grid="interval"))
    one = report.smallest
    assert one.tokens == 3
    assert one.script["steps"][-2]["op"] == "decode"
    assert one.script["steps"][-1]["op"] == "finish"
    assert one.script["decode_grid"] == "interval"
    check_replays(one, "MisplacedStateError")
    fixed = {key: value for key, value in one.script.items() if key not in ("decode_grid", "expect")}
    assert replay(fixed)["violations"] == []


@pytest.mark.parametrize("rule", ["absolute", "page_exact"])
def test_sound_rules_are_judged_sound(rule):
    report = verify(rule, QUICK)
    assert report.sound
    assert report.found == {}
    assert report.histories > 1000
    assert report.histories == report.worlds + report.merged + (
        report.histories - report.worlds - report.merged
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["absolute", "page_exact", "marconi", "vllm_align"])
def test_sound_rules_within_the_default_bounds(rule):
    report = verify(rule)
    assert report.sound
    assert report.histories > 20_000


def test_index_pool_without_dcp_breaks_dcp_gated():
    """sglang#38212 widens the tree page without DCP, where the rule still counts from the prefix."""
    report = verify("dcp_gated", replace(QUICK, dcp_size=(1,), index_pool=(2,), page_size=(1,), cuts="page"))
    check_replays(report.smallest, "MisplacedStateError")
    assert verify("dcp_gated", replace(QUICK, dcp_size=(2,), index_pool=(1,), page_size=(1,))).sound


def test_lost_donations_are_counted_not_blamed():
    """An absolute rule gives none where the prefix is off the chunk grid; a kernel that stores any depth does (what
    it still loses lies in decoded tokens, whose checkpoints keep to the chunk grid)."""
    bounds = replace(
        QUICK, page_size=(1,), chunk_width=(2,), dcp_size=(1,), together=1, requests=1, pools=("roomy",)
    )
    absolute, exact = verify("absolute", bounds), verify("page_exact", bounds)
    assert absolute.sound
    assert exact.sound
    assert absolute.lost > 0
    assert absolute.ended > absolute.lost
    assert exact.lost < absolute.lost


def test_a_user_rule_is_judged_like_any_other():
    @register("always_end")
    def always_end(geometry, prefix, end, branch):
        """Donates wherever the step ends."""
        return Decision(end, True, "the end")

    report = verify(
        "always_end", replace(QUICK, dcp_size=(2,), page_size=(1,), chunk_width=(1,), index_pool=(1,))
    )
    assert report.smallest.fault.kind == "misplaced state"
    assert report.smallest.tokens == 3


def test_a_rule_that_raises_is_named():
    @register("raises_late")
    def raises_late(geometry, prefix, end, branch):
        """Cannot count to three."""
        if end == 3:
            raise RuntimeError("three")
        return Decision(None, False, "no")

    report = verify(
        "raises_late", replace(QUICK, dcp_size=(1,), page_size=(1,), chunk_width=(1,), index_pool=(1,))
    )
    one = report.smallest
    assert one.fault.kind == "bad rule"
    assert "raises_late" in one.fault.message
    assert "three" in one.fault.message
    assert one.tokens == 3


def test_unregistered_rules_and_bad_bounds_are_refused():
    with pytest.raises(ValueError, match="not registered"):
        verify(replace(RULES["absolute"], summary="another"))
    with pytest.raises(ValueError, match="kinds: 'leak'"):
        verify("absolute", kinds=("leak",))
    for wrong, words in (
        ({"tokens": 0}, "tokens=0"),
        ({"page_size": ()}, r"page_size=\(\)"),
        ({"page_size": (0,)}, "page_size"),
        ({"cuts": "all"}, "cuts='all'"),
        ({"decode_grid": "x"}, "decode_grid"),
        ({"pools": ("huge",)}, "pools"),
        ({"evictions": -1}, "evictions=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            Bounds(**wrong)


def test_geometries_that_are_left_out_decide_alike():
    """Every geometry that is not searched has one that is, with the same decisions, cuts and decode grid in reach."""
    bounds = Bounds(tokens=4)
    for name in (
        "absolute",
        "prefix_relative",
        "dcp_gated",
        "chunk_grid",
        "marconi",
        "page_exact",
        "vllm_align",
    ):
        rule = RULES[name]
        kept = {plan.geometry for plan in plans(bounds, rule)[0]}

        def behaviour(g, rule=rule):
            spans = [(p, e) for p, e in product(range(5), range(5)) if p < e]
            answers = tuple(rule(g, p, e).depths for p, e in spans)
            return g.tree_page, answers, tuple(d for d in range(1, 5) if d % g.track_grid == 0)

        def ends(g, rule=rule):
            return {
                (p, max(rule.cut(g, p, e, 9), 0) if rule.cut(g, p, e, 9) > p else e)
                for p in range(4)
                for e in range(p + 1, 5)
            }

        for values in product((1, 2), (1, 2), (1, 2, 3), (1, 2, 4), (1, 3)):
            page, pool, dcp, chunk, interval = values
            g = Geometry(
                page,
                index_pool=pool,
                dcp_size=dcp,
                chunk_width=chunk,
                track_interval=interval,
                chunked_prefill_size=5,
            )
            if g.tree_page > 4 or g in kept:
                continue
            twins = [k for k in kept if behaviour(k) == behaviour(g) and ends(g) <= ends(k)]
            assert twins, (name, g)


def test_given_up_is_not_called_sound():
    report = verify("absolute", max_seconds=0.05)
    assert not report.complete
    assert not report.sound


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--rule", "prefix_relative", "--tokens", "3"], 1),
        (["--rule", "absolute", "--tokens", "2", "--page-size", "1", "--chunk-width", "1"], 0),
        (["--rule", "absolut"], 2),
        (["--rule", "absolute", "--tokens", "0"], 2),
    ],
    ids=["broken", "sound", "unknown rule", "bad bound"],
)
def test_command_codes(argv, code, capsys):
    assert main(["verify", *argv]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert bool(out) == (code != 2)


def test_command_writes_script_and_chart(tmp_path, capsys):
    script, chart = tmp_path / "bug.json", tmp_path / "bug.svg"
    argv = ["verify", "--rule", "prefix_relative", "--tokens", "3", "--scale", "64", "--json"]
    assert main([*argv, "--save", str(script), "--chart", str(chart)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] is False
    assert told["found"][0]["tokens"] == 192
    assert json.loads(script.read_text()) == told["found"][0]["script"]
    assert "<svg" in chart.read_text()
    assert main(["replay", str(script)]) == 0  # it breaks, as it says that it will
    assert "WRONG by 64 tokens" in capsys.readouterr().out
