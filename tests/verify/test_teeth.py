"""The search is only worth its verdict if it sees what it looks for: known faults are put in and must be found."""

from dataclasses import replace

import pytest

from depthchart.cache.memory import Memory
from depthchart.cache.tree import RadixTree
from depthchart.scheduler.admission import PrefillBudget
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.publish import Publisher
from depthchart.verify import Bounds, verify

TINY = Bounds(
    page_size=(1,),
    dcp_size=(2,),
    chunk_width=(1,),
    index_pool=(1,),
    track_interval=(1,),
    tokens=4,
    tokens_together=3,
)


def found(bounds=TINY, rule="absolute"):
    return verify(rule, bounds).smallest


def test_nothing_is_found_where_nothing_was_put_in():
    assert found() is None


def test_a_slot_forgotten_at_abort(monkeypatch):
    """sglang#16067: the copy that a match takes is not given back."""
    real = Lifecycle._release

    def forgetful(self, sequence):
        if sequence.computed and not sequence.tracks:  # matched and never run
            sequence.working = None
        real(self, sequence)

    monkeypatch.setattr(Lifecycle, "_release", forgetful)
    one = found()
    assert one.fault.kind == "lost or doubly owned"
    assert "state slot" in one.fault.message
    assert [step["op"] for step in one.script["steps"]][-2:] == ["request", "abort"]
    assert one.tokens == 2  # one donated page to match


def test_pages_forgotten_at_finish(monkeypatch):
    """The tail beyond the key stays with nobody."""
    real = Publisher._segments
    monkeypatch.setattr(
        Publisher, "_segments", lambda self, *args, **kwargs: real(self, *args, **kwargs)[:-1]
    )
    one = found()
    assert one.fault.kind == "lost or doubly owned"
    assert "page" in one.fault.message
    assert one.tokens == 1


def test_a_split_that_takes_the_state_along(monkeypatch):
    """sglang#22935 the other way round: the upper half inherits a state that has read more."""
    real = RadixTree._split

    def greedy(self, node, pages):
        upper = real(self, node, pages)
        if node.state is not None and not node.state_locks:
            upper.state, node.state = node.state, None
            del self.state_order[node]
            self.state_order[upper] = None
        return upper

    monkeypatch.setattr(RadixTree, "_split", greedy)
    one = found(replace(TINY, tokens=5))
    assert one.fault.kind == "misplaced state"


def test_a_step_that_does_not_move(monkeypatch):
    """vllm#34445: the cut leaves nothing, for ever."""
    monkeypatch.setattr(PrefillBudget, "next_cut", lambda self, prefix, goal, branch=None: prefix)
    one = found()
    assert one.fault.kind == "no progress"


def test_a_refusal_that_keeps_what_it_took(monkeypatch):
    """Pages are taken before the refusal and not given back."""
    real = Memory.take_pages

    def leaky(self, pages, spare=0):
        if pages > self.free_kv_tokens // self.allocator.page and self.allocator.free_tokens:
            self.allocator.allocate(1)
        return real(self, pages, spare)

    monkeypatch.setattr(Memory, "take_pages", leaky)
    one = found(replace(TINY, pools=("tight",), tokens=5, tokens_together=5))
    assert one is not None
    assert one.fault.kind in ("lost or doubly owned", "no progress")


@pytest.mark.parametrize("name", ["evict", "abort", "finish"])
def test_a_crash_is_reported_as_one(monkeypatch, name):
    def broken(self, *args, **kwargs):
        raise KeyError("gone")

    monkeypatch.setattr(Memory if name == "evict" else Lifecycle, name, broken)
    one = found()
    assert one.fault.kind == "crash"
    assert "KeyError" in one.fault.message
    assert one.script["steps"][-1]["op"] == name
