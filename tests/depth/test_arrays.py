"""Many decisions at once equal single ones; bad extends are refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthchart import RULES, Decision, Geometry, decide_many, rule

sys.path.insert(0, str(Path(__file__).parent))
from depth_support import BUILT_IN, SEED, extends, geometries


def assert_arrays_equal_scalars(chosen, g, prefix, end, branch):
    found = decide_many(chosen, g, prefix, end, branch)
    assert found.depth.dtype == np.int64
    assert found.donate.dtype == np.bool_
    asked = RULES[chosen] if isinstance(chosen, str) else chosen
    for i in range(len(prefix)):
        b = None if branch is None or branch[i] < 0 else int(branch[i])
        answer = asked(g, int(prefix[i]), int(end[i]), b)
        right = -1 if answer.depth is None else answer.depth, answer.donate
        assert (found.depth[i], found.donate[i]) == right, (prefix[i], end[i], b)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=40, deadline=None)
@given(g=geometries(), rows=st.lists(extends(), max_size=12), with_branch=st.booleans())
def test_arrays_equal_scalars(name, g, rows, with_branch):
    prefix, end = ([row[k] for row in rows] for k in (0, 1))
    branch = [-1 if row[2] is None else row[2] for row in rows] if with_branch else None
    as_ints = [np.array(a, np.int64) for a in (prefix, end)]
    assert_arrays_equal_scalars(name, g, *as_ints, None if branch is None else np.array(branch, np.int64))


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("g", [SEED, Geometry(64, 3, 256), Geometry(1), Geometry(528, 1, 1)], ids=str)
def test_arrays_equal_scalars_on_long_texts(name, g):
    rng = np.random.default_rng(39115)
    prefix = rng.integers(0, 200_000, 1500) // rng.choice([1, 64, g.tree_page], 1500)
    end = prefix + rng.integers(0, 20_000, 1500)
    branch = np.where(rng.random(1500) < 0.3, -1, rng.integers(1, 400, 1500) * g.checkpoint_grid)
    branch = np.where(rng.random(1500) < 0.1, rng.integers(1, 200_000, 1500), branch)
    assert_arrays_equal_scalars(name, g, prefix, end, branch)


def test_more_rows_than_one_block():
    end = np.arange(70_000)
    found = decide_many("page_exact", SEED, np.zeros(70_000, np.int64), end)
    assert (found.depth == end // 512 * 512).all()
    assert (found.donate == (end >= 512)).all()


def test_arrays_of_a_users_rule(own_rules):
    @rule("half")
    def half(g, prefix, end, branch):
        return Decision(end // 2, end // 2 > prefix, "") if branch is None else Decision(None, False, "")

    rows = np.array([0, 3, 0]), np.array([10, 4, 0]), np.array([-1, -1, 2])
    for chosen in ("half", half):
        assert_arrays_equal_scalars(chosen, SEED, *rows)


def test_lists_and_empty_arrays_are_fine():
    assert decide_many("absolute", SEED, [64], [605]).depth.tolist() == [512]
    assert decide_many("absolute", SEED, [], []).depth.size == 0
    small = decide_many("absolute", SEED, np.array([64], np.uint8), np.array([605], np.uint16))
    assert small.depth.tolist() == [512]


BAD_ARRAYS = [
    # id, prefix, end, branch -> words
    ("shapes", [1, 2], [3], None, ["end", "(1,)", "(2,)"]),
    ("branch's shape", [1], [3], [1, 2], ["branch", "(2,)", "(1,)"]),
    ("floats", [1.0], [3], None, ["prefix", "integer", "float64"]),
    ("two dimensions", [[1]], [[3]], None, ["prefix", "one-dimensional", "(1, 1)"]),
    ("truth values", [True], [3], None, ["prefix", "bool"]),
    ("end before prefix", [0, 9], [3, 8], None, ["end[1]=8", "prefix[1]=9"]),
    ("negative prefix", [-1], [3], None, ["prefix[0]=-1", "at least 0"]),
    ("branch 0", [0, 0], [3, 3], [-1, 0], ["branch[1]=0", "positive", "-1"]),
]


@pytest.mark.parametrize("row", BAD_ARRAYS, ids=[row[0] for row in BAD_ARRAYS])
def test_bad_arrays(row):
    _, prefix, end, branch, words = row
    with pytest.raises(ValueError) as caught:
        decide_many("absolute", SEED, prefix, end, branch)
    for word in words:
        assert word in str(caught.value)


BAD_EXTENDS = [
    # prefix, end, branch -> words
    (-1, 5, None, ["prefix=-1", "nearest legal: 0"]),
    (9, 8, None, ["end=8", "prefix=9", "nearest legal: 9"]),
    (0, 5, 0, ["branch=0", "None or a positive depth"]),
    (0, 5, -1, ["branch=-1", "None or a positive depth"]),
    (1.5, 5, None, ["prefix=1.5", "whole number of tokens"]),
    (0, "5", None, ["end='5'", "whole number of tokens"]),
    (0, 600, 512.0, ["branch=512.0", "whole number of tokens"]),
    (None, 5, None, ["prefix=None", "whole number of tokens"]),
    (True, 5, None, ["prefix=True", "whole number of tokens"]),
]


@pytest.mark.parametrize("row", BAD_EXTENDS, ids=str)
@pytest.mark.parametrize("name", ["absolute", "page_exact"])
def test_bad_extends(name, row):
    *extend, words = row
    with pytest.raises(ValueError) as caught:
        RULES[name](SEED, *extend)
    for word in words:
        assert word in str(caught.value)


def test_numpy_integers_answer_python_integers():
    answer = RULES["absolute"](SEED, np.int64(64), np.int32(605), np.int64(512))
    assert answer == RULES["absolute"](SEED, 64, 605, 512)
    assert type(answer.depth) is int
    assert type(answer.donate) is bool
