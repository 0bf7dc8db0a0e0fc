"""The offline bounds against exhaustive search on small problems, and against every preset on random ones."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from depthchart.bounds import RUNNING_SLOTS, bounds
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.serial import serve
from depthchart.traces import make
from depthchart.traces.trace import TraceRequest

PAGE = 4
SMALL = Geometry(PAGE, chunk_width=PAGE, chunked_prefill_size=64, track_interval=PAGE)


def asks(*texts, outputs=0):
    return [
        TraceRequest(f"r{at}", float(at), tuple(text), ((1000 + at, 0, outputs),) if outputs else ())
        for at, text in enumerate(texts)
    ]


def random_asks(seed, count, branches=3, pages=4):
    """Texts from a small random tree: each is a walk of a few segments of one page, and a tail within a page."""
    dice, found = random.Random(seed), []
    for at in range(count):
        walk, segment = [], 0
        for depth in range(dice.randint(1, pages)):
            segment = segment * branches + dice.randint(1, branches if depth else 2)
            walk.append((segment, 0, PAGE))
        found.append([*walk, (10_000 + at, 0, dice.randint(0, 3) + (not walk))])
    return asks(*[[run for run in text if run[2]] for text in found])


def prefixes(request):
    """The page-aligned prefixes of a prompt, shortest first, and how many of them a match can give."""
    pages, at = [], []
    for run in request.prompt:
        at.append(run)
        if run[2] == PAGE:
            pages.append(tuple(at))
    return pages, (request.prompt_tokens - 1) // PAGE


def best_kv(requests, capacity):
    """Every choice of what to keep, page by page."""
    states = {frozenset(): 0}
    for request in requests:
        pages, usable = prefixes(request)
        row = -(-request.prompt_tokens // PAGE)
        after = {}
        for kept, hits in states.items():
            gained = hits
            for page in pages[:usable]:
                if page not in kept:
                    break
                gained += 1
            others = kept - set(pages)
            for size in range(min(len(others), capacity - row) + 1):
                for spared in combinations(sorted(others), size):
                    for mine in range(len(pages) + 1):  # of the text's own pages only a prefix is ever of use
                        state = frozenset(spared) | frozenset(pages[:mine])
                        after[state] = max(after.get(state, -1), gained)
        states = after
    return max(states.values())


def best_states(requests, slots):
    """Every choice of which states to keep, KV being free."""
    found = {frozenset(): 0}
    for request in requests:
        pages, usable = prefixes(request)
        after = {}
        for kept, gained in found.items():
            reused = max((depth + 1 for depth in range(usable) if pages[depth] in kept), default=0)
            free = sorted(set(kept) | set(pages))
            for size in range(len(free) + 1):
                for state in combinations(free, size):
                    if len(set(state) - set(pages)) <= slots:
                        held = frozenset(state)
                        after[held] = max(after.get(held, -1), gained + reused)
        found = after
    return max(found.values())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("capacity", [5, 6, 8])
def test_kv_bound_is_the_optimum(seed, capacity):
    requests = random_asks(seed, 7)
    assert bounds(requests, SMALL, capacity * PAGE, 100).kv == PAGE * best_kv(requests, capacity)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slots", [0, 1, 2])
def test_state_bound_is_no_less_than_the_optimum(seed, slots):
    requests = random_asks(seed, 6, branches=2, pages=3)
    found = bounds(requests, SMALL, 1000 * PAGE, slots + RUNNING_SLOTS)
    assert PAGE * best_states(requests, slots) <= found.states <= found.unbounded


def test_by_hand():
    """A B A B, 8 whole pages each and a tail: one of them fits beside the other, or does not."""
    a, b = [(1, 0, 32), (11, 0, 1)], [(2, 0, 32), (12, 0, 1)]
    requests = asks(a, b, a, b)
    roomy = bounds(requests, SMALL, 18 * PAGE, 100)
    assert (roomy.unbounded, roomy.kv, roomy.states, roomy.prompt_tokens) == (64, 64, 64, 4 * 33)
    # 9 pages run, 13 in all: 4 pages of A outlive B, then 4 of B outlive A, ...: two requests save 4 pages each
    assert bounds(requests, SMALL, 13 * PAGE, 100).kv == 2 * 4 * PAGE
    # one slot beside the running request's: A's state is kept while B runs, and B's while A runs
    assert bounds(requests, SMALL, 18 * PAGE, RUNNING_SLOTS + 1).states == 64
    assert bounds(requests, SMALL, 18 * PAGE, RUNNING_SLOTS).states == 0


def test_a_request_that_never_fits_is_left_out():
    requests = asks([(1, 0, 400)], [(1, 0, 40), (2, 0, 1)], [(1, 0, 40), (3, 0, 1)])
    assert bounds(requests, SMALL, 80, 100).unbounded == 40
    with pytest.raises(ValueError, match="nearest legal: 4"):
        bounds(requests, SMALL, 3, 100)


@pytest.mark.parametrize("workload", ["agentic", "chat", "rag", "few_shot"])
@pytest.mark.parametrize(("kv", "slots"), [(1 << 17, 200), (1 << 16, 20), (1 << 15, 6)])
def test_no_preset_exceeds_the_bound(workload, kv, slots):
    geometry = Geometry(64)
    trace = make(workload, 7).head(150)
    for name in PRESETS:
        setup = preset(name).apply(geometry, kv, slots)
        best = bounds(trace, geometry, setup.kv_tokens, setup.state_slots).least
        assert serve(trace, geometry, **setup.settings).reused_tokens <= best, name


@pytest.mark.parametrize("seed", range(30))
def test_no_preset_exceeds_the_bound_on_tiny_pools(seed):
    requests = random_asks(seed, 30)
    for name in PRESETS:
        setup = preset(name).apply(SMALL, 8 * PAGE, 5)
        best = bounds(requests, SMALL, setup.kv_tokens, setup.state_slots).least
        assert serve(requests, SMALL, **setup.settings).reused_tokens <= best, name
