"""Long random lives, with faults thrown in: nothing is lost, nothing breaks, every fault is told."""

import json
import random
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depthchart.cache.memory import Memory
from depthchart.cases import load_script, replay
from depthchart.cli import main
from depthchart.depth import RULES, Decision, Rule
from depthchart.errors import InvariantError, RuleError, ScriptError
from depthchart.events import Extended, NotDonated
from depthchart.geometry import Geometry
from depthchart.presets import FAULTY, PRESETS, Preset
from depthchart.scheduler.executor import StepResult
from depthchart.scheduler.loop import Scheduler
from depthchart.tokens import Runs
from depthchart.verify.fuzz import GEOMETRIES, fuzz

SOUND = ("absolute", "page_exact", "marconi", "vllm_align")


@pytest.mark.parametrize("rule", SOUND)
def test_a_short_life_loses_nothing(rule):
    report = fuzz(rule, 2500, seed=7)
    assert report.total >= 2500
    assert report.checks > 2000
    assert (report.lost_pages, report.lost_slots) == (0, 0)
    assert set(report.injected) == {"pages gone", "slots gone", "rule raises", "rule lies", "row not run"}
    assert set(report.steps) == {"begin", "extend", "decode", "finish", "retract", "abort", "evict"}


def test_the_same_seed_gives_the_same_life():
    one, other = fuzz("absolute", 600, seed=3), fuzz("absolute", 600, seed=3)
    assert (one.steps, one.refused, one.injected, one.reused_tokens) == (
        other.steps,
        other.refused,
        other.injected,
        other.reused_tokens,
    )


@pytest.mark.parametrize("rule", ["prefix_relative", "chunk_grid"])
def test_an_unsound_rule_is_caught(rule):
    """The fuzz has teeth: on DCP geometries the two broken rules do not survive it."""
    with pytest.raises(InvariantError) as caught:
        fuzz(rule, 20_000, seed=1, geometry=GEOMETRIES[0])
    assert f"rule {rule}, seed 1, step" in "\n".join(caught.value.__notes__)


# --- whole engines ----------------------------------------------------------------------------------------

BROKEN_UNDER_DCP = (
    "sglang-2025-12",
    "sglang-before-34808",
    "sglang-34808",
    "sglang-35412",
    "vllm-align-before-51113",
)
POOL_ALONE = Geometry(4, chunk_width=4, index_pool=2, chunked_prefill_size=32, track_interval=8)


def test_every_preset_is_sorted_here():
    """docs/findings.md has the same verdicts from the exhaustive search; ``sglang`` has a test of its own."""
    named = {*BROKEN_UNDER_DCP, *SOUND_ENGINES}
    assert {*PRESETS, *FAULTY} <= named


SOUND_ENGINES = (
    "sglang-39115", "sglang", "vllm-align", "vllm-junction", "vllm-all", "llamacpp", "llamacpp@8,2", "llamacpp-24035",
    "depthchart",
)  # fmt: skip


@pytest.mark.parametrize("name", SOUND_ENGINES)
def test_a_sound_engine_loses_nothing(name):
    report = fuzz(name, 2500, seed=7)
    assert report.preset == name
    assert report.checks > 2000
    assert report.refused["extend"] + report.refused["begin"] > 0, "its pools were never short"
    assert (report.lost_pages, report.lost_slots) == (0, 0)
    assert set(report.injected) == {"pages gone", "slots gone", "rule raises", "rule lies", "row not run"}
    assert report.reused_tokens > 0


@pytest.mark.parametrize("name", BROKEN_UNDER_DCP)
def test_an_unsound_engine_is_caught_under_dcp(name):
    with pytest.raises(InvariantError) as caught:
        fuzz(name, 20_000, seed=1, geometry=GEOMETRIES[0])
    assert f"preset {name}, seed 1, step" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("name", ["sglang-2025-12", "sglang-before-34808", "sglang-34808", "sglang-35412"])
def test_the_same_engines_are_sound_on_a_page_alone(name):
    """No DCP and no pool: cuts on the page are all that counting from the prefix needs."""
    report = fuzz(name, 1500, seed=2, geometry=GEOMETRIES[2])
    assert (report.lost_pages, report.lost_slots) == (0, 0)


def test_an_index_pool_without_dcp_breaks_the_released_bundle_and_not_the_one_before():
    """The first finding of docs/findings.md."""
    with pytest.raises(InvariantError):
        fuzz("sglang", 20_000, seed=1, geometry=POOL_ALONE)
    assert fuzz("sglang-39115", 1500, seed=1, geometry=POOL_ALONE).lost_pages == 0


def test_the_whole_bundle_lives(monkeypatch):
    """Rule, policies and the halves of a joint pool reach the memory that is lived in."""
    seen = []

    def watched(self, *args, **kwargs):
        seen.append((args, kwargs))
        return real(self, *args, **kwargs)

    real = Memory.__init__
    monkeypatch.setattr(Memory, "__init__", watched)
    fuzz("depthchart", 5, geometry=GEOMETRIES[0])
    ((_, policies),) = seen
    assert policies == {"eviction": "gain", "state_eviction": "gain", "branch_grid": GEOMETRIES[0].tree_page}
    seen.clear()
    fuzz("llamacpp@8,2", 5)
    assert seen[0][1] == {"max_states_per_path": 3, "matching": "nearest"}
    seen.clear()
    fuzz("vllm-all", 5, geometry=GEOMETRIES[0])
    (_, kv_tokens, state_slots), policies = seen[0]
    assert kv_tokens == state_slots * GEOMETRIES[0].tree_page, "as many blocks for KV as for states"
    assert policies == {}


def test_a_preset_of_ones_own_lives_too():
    mine = Preset(
        "mine",
        "absolute, first in first out",
        "",
        lambda g, kv, slots: RULES["absolute"],
        {"eviction": "fifo"},
    )
    assert fuzz(mine, 300).preset == "mine"


@pytest.mark.parametrize(
    ("subject", "said"),
    [("sglnag", "nearest: 'sglang'"), ("absolut", "nearest: 'absolute'"), ("llamacpp@8", "llamacpp@8192,32")],
)
def test_an_unknown_subject_is_answered_with_the_nearest(subject, said):
    with pytest.raises(ValueError, match=said):
        fuzz(subject, 10)


@pytest.mark.slow
def test_a_million_steps_lose_nothing():
    report = fuzz("absolute", 1_000_000, seed=1)
    assert report.total >= 1_000_000
    assert report.checks > 900_000
    assert (report.lost_pages, report.lost_slots) == (0, 0)
    assert sum(report.injected.values()) > 20_000


# --- the step loop ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    request_id: str
    prompt: Runs
    output_tokens: int
    session: str | None = None
    priority: int = 0
    extra_key: str | None = None


class Flaky:
    """Samples fresh tokens; now and then the device is lost before anything ran."""

    def __init__(self, dice):
        self.dice, self.sampled = dice, 0

    def run(self, batch):
        if self.dice.random() < 0.05:
            raise ConnectionError("the device is lost")
        tokens = {}
        for name in sorted(batch.samples):
            self.sampled += 1
            tokens[name] = (99, self.sampled, 1)
        return StepResult(1.0, tokens)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    geometry=st.sampled_from(GEOMETRIES),
    rule=st.sampled_from(SOUND),
    mixed=st.booleans(),
)
def test_the_loop_ends_with_clean_books(seed, geometry, rule, mixed):
    """Tight pools, aborts, lost devices: every request ends, every book is right after every step, and prefill is cut on
    the page (where a step is at least a page long)."""
    dice = random.Random(seed)
    memory = Memory(geometry, dice.randint(6, 14) * geometry.tree_page, dice.randint(4, 12))
    loop = Scheduler(memory, Flaky(dice), rule, mixed=mixed, seed=seed, spare_pages=dice.choice((0, 1)))
    goals = {}
    for i in range(dice.randint(2, 8)):
        prompt = (
            (dice.randint(1, 2), 0, dice.randint(1, 4 * geometry.tree_page)),
            (10 + i, 0, dice.randint(0, 9)),
        )
        job = loop.submit(Ask(f"q{i}", prompt, dice.randint(1, 12)))
        goals[job.request_id] = len(job.text)
    for _ in range(3000):
        if loop.idle:
            break
        if dice.random() < 0.02:
            loop.abort(dice.choice([*loop.waiting, *loop.running]))
            continue
        with suppress(ConnectionError):
            loop.step()
        loop.lifecycle.check_invariants()
    assert loop.idle, "some request never ended"
    memory.tree.reset()
    assert memory.free_kv_tokens == memory.allocator.total_tokens
    assert memory.free_state_slots == memory.states.total_slots
    assert all(e.end % geometry.page_size == 0 or e.end >= goals[e.request] for e in loop.log.of(Extended))


def test_a_locked_state_pool_skips_the_donation():
    """sglang#36770: no slot is free or evictable when a donation is due. It is skipped, told, and kept."""
    from depthchart.events import EventLog
    from depthchart.scheduler.lifecycle import Lifecycle
    from depthchart.tokens import Text

    log = EventLog()
    memory = Memory(Geometry(4, chunk_width=4), 64, 4, emit=log)
    life = Lifecycle(memory, "absolute", emit=log)
    one = life.begin("a", Text(memory.index, [(1, 0, 16)]))
    for end in (4, 8, 12):
        life.commit_extend(life.plan_extend(one, end))
        life.checkpoint(one)
        life.check_invariants()
    told = [event for event in log.of(NotDonated) if event.outcome == "refused"]
    assert told
    assert "no state slot is free or evictable" in told[0].reason
    life.finish(one)
    life.check_invariants()
    assert memory.tree.lookup(Text(memory.index, [(1, 0, 16)]).ids(16)).tokens == 12


# --- users' mistakes --------------------------------------------------------------------------------------

DEPTHS = st.one_of(st.none(), st.integers(-9, 99), st.floats(), st.text(max_size=2))
ALSO = st.lists(st.integers(-9, 99), max_size=2).map(tuple)
ANSWERS = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.tuples(st.integers(), st.booleans()),
    st.builds(Decision, DEPTHS, st.booleans(), st.just("?"), ALSO),
)


@settings(max_examples=150, deadline=None)
@given(answer=ANSWERS)
def test_a_rule_that_answers_anything_leaves_the_memory_intact(answer):
    from depthchart.scheduler.lifecycle import Lifecycle
    from depthchart.tokens import Text

    memory = Memory(Geometry(4, dcp_size=2, chunk_width=4), 64, 8)
    life = Lifecycle(memory, Rule("my_rule", "anything", decide=lambda g, p, e, b: answer))
    one = life.begin("a", Text(memory.index, [(1, 0, 20)]))
    before = (memory.free_kv_tokens, memory.free_state_slots)
    try:
        plan = life.plan_extend(one, 20)
    except RuleError as error:
        said = str(error)
        assert "'my_rule'" in said
        assert "[0, 20)" in said
        assert (memory.free_kv_tokens, memory.free_state_slots) == before
    else:
        assert isinstance(answer, Decision)
        life.commit_extend(plan)
        with suppress(
            InvariantError
        ):  # a depth where no node ends, or no chunk does: refused before anything changes
            life.checkpoint(one)
    life.check_invariants()
    life.abort(one)
    memory.tree.reset()
    assert (memory.free_kv_tokens, memory.free_state_slots) == (64, 8)


SCRIPT = {
    "geometry": {"page_size": 4, "dcp_size": 2, "chunk_width": 4}, "rule": "absolute", "strict": True,
    "pools": {"kv_tokens": 64, "state_slots": 8},
    "steps": [
        {"op": "request", "id": "a", "tokens": [["doc", 20]]}, {"op": "extend", "id": "a", "tokens": 20},
        {"op": "decode", "id": "a", "tokens": 2}, {"op": "finish", "id": "a"}, {"op": "match", "tokens": [["doc", 20]]},
        {"op": "evict", "kv_tokens": 1},
    ],
}  # fmt: skip
SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=4))
JUNK = SIMPLE | st.lists(st.integers(), max_size=2) | st.just({}) | st.just("evict")


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from places(value[at], (*path, at))


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from([path for path in places(SCRIPT) if path]), junk=JUNK, drop=st.booleans())
def test_damaged_scripts_are_told_not_crashed_on(place, junk, drop):
    script = json.loads(json.dumps(SCRIPT))
    inside = script
    for key in place[:-1]:
        inside = inside[key]
    if drop:
        del inside[place[-1]]
    else:
        inside[place[-1]] = junk
    try:
        load_script(script)
        result = replay(script)
    except ScriptError as error:
        said = str(error)
        assert said
    else:
        assert result["violations"] == []


@settings(max_examples=200, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from(["page_size", "dcp_size", "chunk_width", "index_pool", "track_interval"]), JUNK
    )
)
def test_damaged_geometries_are_told(fields):
    try:
        Geometry(**{"page_size": 4, **fields})
    except ValueError as error:
        said = str(error)
        assert "=" in said


def test_command_counts(capsys):
    assert main(["verify", "--rule", "absolute", "--fuzz", "300", "--seed", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total"] >= 300
    assert told["lost_pages"] == told["lost_slots"] == 0
    assert main(["verify", "--rule", "absolute", "--fuzz", "300", "--seed", "5"]) == 0
    assert "lost at the end: 0 pages, 0 state slots" in capsys.readouterr().out
    assert main(["verify", "--rule", "absolute", "--fuzz", "0"]) == 2


def test_command_takes_a_preset(capsys):
    assert main(["verify", "--preset", "sglang@2026-09-15", "--fuzz", "300", "--seed", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["preset"], told["rule"]) == ("sglang-39115", "absolute")
    assert main(["verify", "--preset", "vllm-all", "--fuzz", "300"]) == 0
    assert capsys.readouterr().out.startswith("preset vllm-all (rule vllm_all), seed 0:")


def test_command_tells_what_broke_and_how_to_meet_it_again(capsys):
    words = ["verify", "--preset", "sglang-34808", "--fuzz", "20000", "--seed", "1", "--dcp-size", "2"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "MisplacedStateError" in out or "PageSharedError" in out
    assert "preset sglang-34808, seed 1, step" in out
    assert "dcp_size=2" in out
    assert main([*words, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["broken"]["type"] in ("MisplacedStateError", "PageSharedError", "InvariantError")
    assert told["preset"] == "sglang-34808"
    assert main(["verify", "--rule", "chunk_grid", "--fuzz", "20000", "--seed", "1"]) == 1


def test_command_takes_geometries(capsys):
    words = ["verify", "--preset", "sglang", "--fuzz", "20000", "--index-pool", "2"]
    assert main([*words, "--dcp-size", "1"]) == 1  # docs/findings.md, section 1
    assert (
        main(["verify", "--preset", "sglang", "--fuzz", "1000", "--index-pool", "1,2", "--dcp-size", "2"])
        == 0
    )
    capsys.readouterr()
    assert (
        main(["verify", "--preset", "sglang", "--fuzz", "1000", "--page-size", "3", "--chunk-width", "4"])
        == 2
    )
    assert "no legal geometry" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "sglang-39151"], "nearest: 'sglang-39115'"),
        (["--rule", "absolut"], "nearest: 'absolute'"),
        (["--rule", "absolute", "--steps", "3"], "--steps: belongs to the search"),
        (["--rule", "absolute", "--save", "a.json"], "--save: belongs to the search"),
        (["--rule", "absolute", "--cuts", "page"], "--cuts: belongs to the search"),
        (["--preset", "sglang", "--page-size", "0"], "page_size=(0,)"),
    ],
)
def test_command_refuses_what_the_fuzz_cannot_do(words, said, capsys):
    assert main(["verify", *words, "--fuzz", "10"]) == 2
    assert said in capsys.readouterr().err


def test_the_sound_rules_exist():
    assert set(SOUND) <= set(RULES)
