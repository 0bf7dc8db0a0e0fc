"""The handed lifecycle scripts: every settled part of each result must come out."""

from __future__ import annotations

import json

import pytest

from depthchart.cases import find_script, replay, script_names


def contains(result, expect, where="result"):
    """``expect`` names a part of ``result``: dicts by the keys they name, lists element by element."""
    if isinstance(expect, dict):
        for key, value in expect.items():
            assert key in result, f"{where}: no key {key!r}"
            contains(result[key], value, f"{where}.{key}")
    elif isinstance(expect, list):
        assert len(result) == len(expect), f"{where}: {result} for {expect}"
        for number, value in enumerate(expect):
            contains(result[number], value, f"{where}[{number}]")
    else:
        assert result == expect, f"{where}: {result!r}, expected {expect!r}"


@pytest.mark.parametrize("name", script_names())
def test_script(name):
    script = find_script(name)
    result = replay(script)
    json.dumps(result)
    expect = dict(script.expect)
    if expect.pop("violations_not_empty", False):
        assert result["violations"]
    error = expect.get("error")
    if isinstance(error, dict):
        expect = {key: value for key, value in expect.items() if key != "error"}
        assert result["error"]["step"] == error["step"]
        assert all(part in result["error"]["message"] for part in error.get("message_contains", []))
    contains(result, expect)
    assert script.expect, "a script without expectations proves nothing"
