"""Old objects are left alone for as long as anybody asks for it, and no longer."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from depthchart import Geometry
from depthchart.collector import NEVER, collecting
from depthchart.simulate import simulate
from depthchart.traces import Trace, TraceRequest


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(500, 7, 9)
    yield (500, 7, 9)
    gc.set_threshold(*before)


def test_the_old_generation_is_left_alone_within(thresholds):
    with collecting():
        assert gc.get_threshold() == (500, 7, NEVER)
        with collecting():
            pass
        assert gc.get_threshold() == (500, 7, NEVER)
    assert gc.get_threshold() == thresholds


def test_the_first_thresholds_hold_until_the_last_has_left(thresholds):
    with collecting(100_000, 50, 1000):
        with collecting():
            assert gc.get_threshold() == (100_000, 50, 1000)
        assert gc.get_threshold() == (100_000, 50, 1000)
    assert gc.get_threshold() == thresholds


def test_thresholds_come_back_after_an_error(thresholds):
    with pytest.raises(KeyError), collecting():
        raise KeyError
    assert gc.get_threshold() == thresholds


def test_two_threads_that_overlap(thresholds):
    first_in, first_out = threading.Event(), threading.Event()

    def first():
        with collecting():
            first_in.set()
            first_out.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(10)
    with collecting():
        first_out.set()
        thread.join(10)
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == thresholds


class Ring:
    def __init__(self):
        self.me = self


def test_young_cycles_are_collected_all_the_same(thresholds):
    gc.collect()
    with collecting():
        ring = weakref.ref(Ring())
        kept = [[at] for at in range(20_000)]
    assert ring() is None
    assert len(kept) == 20_000


def test_a_run_gives_the_thresholds_back(thresholds):
    trace = Trace("t", (TraceRequest("a", 0.0, ((1, 0, 200),), ((2, 0, 5),)),))
    run = simulate(trace, Geometry(16), kv_tokens=1024, state_slots=8)
    assert len(run.log)
    assert gc.get_threshold() == thresholds
