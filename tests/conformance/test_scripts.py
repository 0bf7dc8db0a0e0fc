"""The handed lifecycle scripts: every settled part of each result must come out."""

from __future__ import annotations

import copy
import json

import pytest

from depthchart.cases import find_script, replay, script_names
from depthchart.cases.expect import mismatches


@pytest.mark.parametrize("name", script_names())
def test_script(name):
    script = find_script(name)
    result = replay(script)
    json.dumps(result)
    assert script.expect, "a script without expectations proves nothing"
    assert mismatches(result, script.expect) == []


def leaves(value, path=()):
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for at in range(len(value)):
            yield from leaves(value[at], (*path, at))
    else:
        yield path


@pytest.mark.parametrize("name", script_names())
def test_every_settled_part_is_compared(name):
    """Change one expected leaf after another: each change must be noticed."""
    script = find_script(name)
    result = replay(script)
    for path in leaves(script.expect):
        changed = copy.deepcopy(dict(script.expect))
        place = changed
        for key in path[:-1]:
            place = place[key]
        if path[-1] == "violations_not_empty":
            continue
        place[path[-1]] = "something else"
        assert mismatches(result, changed), path


def test_missing_violations_and_errors_are_told():
    result = replay(find_script("sglang-39115-absolute"))
    assert mismatches(result, {"violations_not_empty": True}) == ["violations: expected some, there are none"]
    assert mismatches(result, {"error": {"step": 3}}) == ["error: expected one at step 3, there is none"]
