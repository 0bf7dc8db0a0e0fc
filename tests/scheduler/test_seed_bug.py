"""sglang#39115 in the lifecycle: refused with the books as they were, or told and spread without the check."""

import sys
from pathlib import Path

import pytest

from depthchart.errors import InvariantError, MisplacedStateError, PageSharedError
from depthchart.events import (
    Violation,
)
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.tokens import TAINTED, Tag

sys.path.insert(0, str(Path(__file__).parent))
from lifecycle_bench import Bench


def seed(rule, *, strict, checkpoint=False):
    """A cut at 64, an extend to 604, one token decoded: 605 tokens owned at the end."""
    b = Bench(rule, strict=strict)
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=checkpoint)
    b.decode(s, 1)
    assert s.computed == 605
    return b, s


@pytest.mark.parametrize("rule", ["absolute", "dcp_gated", "page_exact", "marconi"])
def test_seed_bug_under_a_sound_rule(rule):
    b, s = seed(rule, strict=True)
    assert [x.wanted for x in s.tracked] == [512]
    assert b.life.finish(s) == ((512, 605),)
    assert b.states() == {512: 512}
    b.check()


@pytest.mark.parametrize("rule", ["prefix_relative", "chunk_grid"])
@pytest.mark.parametrize("how", ["finish", "retract"])
def test_seed_bug_refused_with_the_books_as_they_were(rule, how):
    b, s = seed(rule, strict=True)
    assert [x.wanted for x in s.tracked] == [576]
    message = b.refuses(PageSharedError, lambda: getattr(b.life, how)(s))
    for word in ("[512, 576)", "[576, 605)", "page 1"):
        assert word in message
    assert b.life.abort(s) == ((0, 605),)
    assert (b.memory.free_kv_tokens, b.memory.free_state_slots) == (16 * 512, 16)


def test_seed_bug_refused_at_a_checkpoint_with_the_books_as_they_were():
    b = Bench("prefix_relative")
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=False)
    message = b.refuses(MisplacedStateError, lambda: b.life.checkpoint(s))
    assert "tracked at depth 576 has consumed 576 tokens" in message
    assert "ends at 512" in message


def test_seed_bug_at_a_checkpoint_without_a_free_slot_evicts_nothing():
    b = Bench("prefix_relative", slots=5)
    for segment in (7, 8):
        b.run(str(segment), b.text((segment, 512)))
    s = b.begin("a", b.doc(604))
    b.extend(s, 64)
    b.extend(s, 604, checkpoint=False)
    assert b.memory.free_state_slots == 0
    b.refuses(MisplacedStateError, lambda: b.life.checkpoint(s))


def test_seed_bug_with_an_older_state_beside_it_changes_nothing():
    """The older ping-pong state must not be given up before the refusal."""
    b = Bench("prefix_relative", slots=3)
    s = b.begin("a", b.doc(1200))
    b.extend(s, 64, 600, checkpoint=False)  # tracks 576
    b.extend(s, 1200, checkpoint=False)  # tracks 600 + 512 = 1112
    assert [x.wanted for x in s.tracked] == [576, 1112]
    b.refuses(PageSharedError, lambda: b.life.finish(s))


def test_seed_bug_without_the_check():
    b, s = seed("prefix_relative", strict=False)
    assert b.life.finish(s) == ((512, 576), (576, 605))
    assert [v.kind for v in b.log.of(Violation)] == ["PageSharedError", "MisplacedStateError"]
    assert b.states() == {512: 576}
    assert b.memory.free_kv_tokens == 15 * 512, "the shared page goes back once"
    with pytest.raises(MisplacedStateError, match="node ending at 512 has consumed 576 tokens: 64 too many"):
        b.life.check_invariants()
    assert b.memory.violations(misplaced=False) == []


def test_seed_bug_spreads_to_whoever_matches_the_node():
    """The next request runs [512, 576) through the recurrence twice, and donates what comes of it."""
    b, s = seed("prefix_relative", strict=False)
    b.life.finish(s)
    two = b.begin("b", b.doc(1100))
    assert two.computed == 512
    b.extend(two, 1100)  # a sound depth now: 512 + 512
    tags = b.memory.states.tags
    assert tags[two.working] == Tag(1100 + 64, TAINTED)
    assert b.states() == {512: 576, 1024: 1024 + 64}
    assert b.log.of(Violation)[-1].message.endswith("has consumed 1088 tokens: 64 too many")
    assert b.memory.violations(b.life.holdings(), misplaced=False) == []


def test_seed_bug_strict_at_the_second_request_is_refused():
    """A tainted state never enters the tree in strict mode, even at a depth that looks right."""
    b, s = seed("prefix_relative", strict=False)
    b.life.finish(s)
    strict = Lifecycle(b.memory, "absolute", strict=True, emit=b.log)
    two = strict.begin("b", b.doc(1100))
    strict.commit_extend(strict.plan_extend(two, 1100))
    with pytest.raises(InvariantError, match="tracked at depth 1024 has consumed 1088 tokens"):
        strict.checkpoint(two)
    strict.abort(two)
    assert b.states() == {512: 576}
