"""Does a replay's result have the parts that its script expects?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["mismatches"]


def mismatches(result: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    """Where a result differs from the parts that ``expect`` settles, in words; empty where all come out.

    Dicts are compared by the keys that ``expect`` names, lists element by element, an error by its step and the
    words in ``message_contains``.
    """
    rest = dict(expect)
    found: list[str] = []
    if rest.pop("violations_not_empty", False) and not result["violations"]:
        found.append("violations: expected some, there are none")
    if isinstance(rest.get("error"), Mapping):
        found += _error(result["error"], rest.pop("error"))
    return found + _compare(result, rest, "result")


def _error(error: Mapping[str, Any] | None, expect: Mapping[str, Any]) -> list[str]:
    if error is None:
        return [f"error: expected one at step {expect['step']}, there is none"]
    found = _compare(error["step"], expect["step"], "error.step")
    missing = [part for part in expect.get("message_contains", ()) if part not in error["message"]]
    return found + [f"error.message: {part!r} is not in {error['message']!r}" for part in missing]


def _compare(result: Any, expect: Any, where: str) -> list[str]:
    if isinstance(expect, Mapping):
        if not isinstance(result, Mapping):
            return [f"{where}: {result!r}, expected an object"]
        absent = [f"{where}: no key {key!r}" for key in expect if key not in result]
        return absent + [
            text
            for key in expect
            if key in result
            for text in _compare(result[key], expect[key], f"{where}.{key}")
        ]
    if isinstance(expect, list):
        if not isinstance(result, list) or len(result) != len(expect):
            return [f"{where}: {result!r}, expected {expect!r}"]
        pairs = enumerate(zip(result, expect, strict=True))
        return [text for at, (one, other) in pairs for text in _compare(one, other, f"{where}[{at}]")]
    return [] if result == expect else [f"{where}: {result!r}, expected {expect!r}"]
