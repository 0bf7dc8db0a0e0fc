"""The state pool: slots and their shadow tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthchart.cache import StatePool
from depthchart.errors import DoubleFreeError, InvariantError
from depthchart.tokens import Tag


def test_every_slot_once_then_none():
    pool = StatePool(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    assert pool.allocate() is None
    assert (pool.free_slots, pool.total_slots) == (0, 3)


def test_a_slot_that_comes_back_has_lost_its_tag():
    pool = StatePool(1)
    slot = pool.allocate()
    pool.tags[slot] = Tag(512, 7)
    pool.free(slot)
    assert pool.tags[slot] is None
    pool.tags[slot] = Tag(1, 1)  # a late write of somebody who no longer owns it
    assert pool.allocate() == slot
    assert pool.tags[slot] is None


@pytest.mark.parametrize("slot", [1, 2, -1], ids=["free", "outside", "negative"])
def test_freeing_what_is_not_in_use_is_refused(slot):
    pool = StatePool(2)
    held = pool.allocate()
    assert held == 0
    with pytest.raises(DoubleFreeError, match=f"state slot {slot} is not in use"):
        pool.free(slot)
    pool.free(held)
    with pytest.raises(DoubleFreeError, match="state slot 0"):
        pool.free(held)
    pool.check([])


@pytest.mark.parametrize(("owned", "slot", "count"), [([], 0, 0), ([0, 0], 0, 2), ([0, 1], 1, 2)])
def test_check_finds_what_is_not_owned_exactly_once(owned, slot, count):
    pool = StatePool(2)
    pool.allocate()
    with pytest.raises(InvariantError, match=f"state slot {slot} has {count} owners"):
        pool.check(owned)


@given(st.integers(1, 6), st.lists(st.integers(-1, 6), max_size=20))
def test_against_a_plain_set(slots, moves):
    """A move -1 allocates, any other frees that slot."""
    pool, held = StatePool(slots), set()
    for move in moves:
        if move < 0:
            slot = pool.allocate()
            assert (slot is None) == (len(held) == slots)
            assert slot not in held
            held |= {slot} - {None}
        elif move in held:
            pool.free(move)
            held.remove(move)
        else:
            with pytest.raises(DoubleFreeError):
                pool.free(move)
        assert pool.free_slots == slots - len(held)
        pool.check(held)
