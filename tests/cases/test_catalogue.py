"""The catalogue: every public row is there, and every case comes out under every rule that it speaks of.

What a case expects was worked out from its thread and by arithmetic, row by row; it stands in ``data/cases``.
"""

import json
import re
from pathlib import Path

import pytest

from depthchart.cases.catalogue import KINDS, catalogue, find_case
from depthchart.cases.outcome import OUTCOMES, _simulated, by_name, matrix
from depthchart.cli import main
from depthchart.commands.cases import unexpected
from depthchart.depth import RULES

CASES = {case.id: case for case in catalogue()}
SOUND = ("absolute", "page_exact", "vllm_align", "marconi")

# the public threads that must be in the catalogue, by the number that their address ends in
ROWS = (39115, 34808, 35412, 31648, 31230, 31181, 30938, 16067, 45238, 40696, 24035, 494, 1104, 122)
REPORTS = (
    36005, 40907, 33450, 35086, 30882, 22935, 38625, 29633, 51113, 46384, 34445, 52959, 36131, 36935,
    36770, 37729, 22493, 39436, 29792, 23496, 49962, 52527, 27220, 32763, 34441, 14524, 22542, 39830,
    4809, 53749, 1015, 23279, 1077, 997, 25752, 37898, 20087, 38000,
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return matrix()


@pytest.mark.parametrize("number", [*ROWS, *REPORTS])
def test_every_public_row_is_there(number):
    assert [case.id for case in CASES.values() if case.thread.endswith(f"/{number}")]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case_comes_out_as_expected(case, found):
    assert case.kind in KINDS
    assert case.thread.startswith("https://github.com/")
    assert case.needs or case.covered_by or case.kind != "note", "what cannot run must say what it lacks"
    assert unexpected(case, found[case.id]) == []
    assert {one.outcome for one in found[case.id].values()} <= set(OUTCOMES)
    if case.runs:
        assert case.expect, "a case that runs must expect something"
        assert not any(one.outcome == "not run" for one in found[case.id].values())


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.covered_by], ids=lambda case: case.id
)
def test_the_test_that_covers_a_case_exists(case):
    file, name = case.covered_by.split("::")
    source = (Path(__file__).resolve().parents[2] / file).read_text(encoding="utf-8")
    assert f"\ndef {name}(" in source


def test_what_is_not_run_is_no_matter_of_rules_or_policies(found):
    """Each of these needs a tier, a buffer, a table or a schedule that this library does not have, or is arithmetic
    about pool sizes."""
    idle = {case.id for case in CASES.values() if case.kind == "note" and not case.covered_by}
    assert idle == {
        "sglang-29633", "sglang-39436", "sglang-29792", "vllm-49962", "sglang-32763", "sglang-34441",
        "tensorrt-llm-14524", "sglang-22542", "sglang-39830",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case_id", "faulty", "right"),
    [
        ("sglang-39115", "sglang-35412", "sglang-39115"),
        ("sglang-34808", "sglang-before-34808", "sglang-34808"),
        ("sglang-35412-bundle", "sglang-34808", "sglang-35412"),
        ("sglang-40907", "sglang-39115", "sglang"),
        ("sglang-31648", "sglang-2025-12", "sglang-before-34808"),
        ("vllm-51113", "vllm-align-before-51113", "vllm-align"),
        ("vllm-37898", "vllm-align", "vllm-junction"),
        ("vllm-25752", "vllm-align", "vllm-all"),
        ("llamacpp-24035", "llamacpp-24035", "llamacpp"),
        ("sglang-36935", "sglang", "depthchart"),
    ],
)
def test_the_engine_of_the_day_shows_the_fault_and_the_next_one_mends_it(case_id, faulty, right, found):
    assert found[case_id][faulty].outcome in ("crash", "wrong state", "no reuse")
    assert found[case_id][right].outcome == "ok"


def test_52527_counts_what_was_found_and_thrown_away():
    """floor(40000 / 512) * 512 - 32768 = 7168."""
    run = _simulated(CASES["vllm-52527"], by_name("absolute"))
    assert run.requests["lost_tokens"].tolist() == [0, 7168]


def test_27220_three_slots_a_request_run_25_on_75():
    run = _simulated(CASES["sglang-27220"], by_name("absolute"))
    assert run.steps["running"].max() == 75 // 3


def test_36935_coverage_is_a_policy_of_its_own(found):
    """The order of sglang#38000 gives the fork its 8192 and every chain at least as much; LRU gives the fork nothing."""
    assert found["sglang-36935"]["absolute"].values[3:5] == (0, 8192)
    assert found["sglang-36935-coverage"]["absolute"].values[3] == 8192


@pytest.mark.parametrize("rule", SOUND)
def test_sound_rules_break_nothing(rule, found):
    """Whatever the case: a sound rule may give reuse away, it never breaks an invariant (but for decode
    checkpoints that ignore the tree page, which no rule decides)."""
    for case in CASES.values():
        if case.decode_grid == "lcm":
            assert found[case.id][rule].outcome in ("ok", "no reuse", "not run"), (
                case.id,
                found[case.id][rule],
            )


def test_each_fault_of_the_matrix_occurs(found):
    outcomes = {one.outcome for row in found.values() for one in row.values()}
    assert outcomes >= {"ok", "wrong state", "crash", "no reuse", "not run"}


def test_a_wrong_expectation_is_noticed(found):
    case = find_case("sglang-39115")
    row = dict(found[case.id])
    row["absolute"], row["prefix_relative"] = row["prefix_relative"], row["absolute"]
    said = unexpected(case, row)
    assert len(said) == 2
    assert "sglang-39115 under absolute" in "\n".join(said)


def test_unknown_ids_name_the_nearest():
    with pytest.raises(ValueError, match=r"sglang-39116.*nearest: sglang-39115"):
        find_case("sglang-39116")


def test_damaged_files_are_told(tmp_path, monkeypatch):
    (tmp_path / "cases").mkdir()
    file = tmp_path / "cases" / "x.toml"
    monkeypatch.setenv("DEPTHCHART_DATA", str(tmp_path))
    good = "[[case]]\n" + "".join(
        f'{key} = "x"\n' for key in ("id", "title", "thread", "explanation", "shows", "faulty", "right")
    )
    for text, words in (
        ("[[case]\n", r"x\.toml: is not TOML"),
        ('[[case]]\nid = ""\n', "id=''"),
        (good, "kind=None"),
        (good + 'kind = "xs"\n', "kind='xs'"),
        (good + 'kind = "note"\nstepz = 3\n', "unknown key 'stepz'; nearest: 'steps'"),
        ((good + 'kind = "note"\n') * 2, "appears twice"),
        (good + 'kind = "note"\npreset = "vllm"\n', "neither a rule nor a preset.*vllm-a"),
        (good + 'kind = "note"\n[case.expect]\nabsolut = {}\n', "neither a rule nor a preset.*'absolut'"),
    ):
        file.write_text(text)
        catalogue.cache_clear()
        with pytest.raises(ValueError, match=words):
            catalogue()
    catalogue.cache_clear()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 0, "sglang-39115"),
        (["list", "sglang-39115"], 0, "faulty: depth 576"),
        (["run", "sglang-39115", "--rule", "prefix_relative", "--rule", "absolute"], 0, "crash"),
        (["run", "vllm-51113", "--preset", "vllm-align-before-51113"], 0, "gets the state of 364"),
        (["list", "fla-494"], 0, "test_public_cases.py"),
        (["run", "sglang-39115", "--preset", "sglang@2026-08-20"], 0, "sglang-35412: crash"),
        (["run", "sglang-39115", "--preset", "vllm-aligned"], 2, ""),
        (["run", "nothing"], 2, ""),
        (["run", "sglang-39115", "--rule", "absolut"], 2, ""),
    ],
    ids=["list", "one", "run", "preset", "kernel", "day", "unknown preset", "unknown case", "unknown rule"],
)
def test_command(argv, code, words, capsys):
    assert main(["cases", *argv]) == code
    assert words in capsys.readouterr().out


def test_command_prints_json(capsys):
    assert main(["cases", "run", "sglang-34808", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unexpected"] == []
    assert told["outcomes"]["sglang-34808"]["chunk_grid"]["outcome"] == "wrong state"
    assert main(["cases", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == len(CASES)
    assert all(re.match(r"[a-z]+-[a-z0-9-]+$", entry["id"]) for entry in listed)


def test_a_users_rule_joins_the_matrix():
    from depthchart.depth import Decision, rule

    @rule("never_donates")
    def never(geometry, prefix, end, branch):
        """Keeps nothing."""
        return Decision(None, False, "never")

    assert (
        matrix([find_case("sglang-39115")], ["never_donates"])["sglang-39115"]["never_donates"].outcome
        == "no reuse"
    )
    assert "never_donates" in RULES
