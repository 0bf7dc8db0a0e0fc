"""The catalogue of public bugs: ``data/cases/*.toml``, each case replayable under any rule.

A file holds ``[[case]]`` tables. Keys of a case: ``id``, ``title``, ``thread`` (public addresses), ``explanation``
(our words), ``shows`` (the rule or engine bundle that shows the fault), ``faulty`` and ``right`` (in words), ``needs``
(what today's library lacks to show the fault, empty where nothing is missing), ``preset`` (an engine bundle under
which it is replayed beside the rules), ``kind``, the inputs of that kind, and ``expect``: what must come out, by rule
or preset. ``covered_by`` names the test of the kernels that shows a fault which no rule decides.

Kinds, their inputs, and what is compared:

- ``extends``: ``geometry``, ``rows`` of {prefix, end, branch, right}, a single extend each (right = 0: none is to be
  donated); depths.
- ``script``: ``geometry``, ``pools`` and ``steps`` as in a conformance script, ``right_reuse`` of its request and
  match steps; reuse, broken invariants.
- ``trace``: ``geometry``, ``pools``, ``requests``, scheduler ``settings``, ``right_reuse`` of each request; the same.
- ``geometry``: ``rows`` of geometry fields and the values or remarks that they must give.
- ``segments``: ``rows`` of {page, segments, ok}: ranges freed by one request.
- ``note``: nothing; what it needs is not in this library, or is no matter of the cache (``covered_by``, ``needs``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any

from depthchart.datafiles import data_path
from depthchart.depth import RULES
from depthchart.presets import preset

__all__ = ["KINDS", "Case", "catalogue", "find_case"]

KINDS = ("extends", "script", "trace", "geometry", "segments", "note")
_TEXTS = ("id", "title", "thread", "explanation", "shows", "faulty", "right", "kind")
_KEYS = (
    *_TEXTS,
    "needs",
    "preset",
    "covered_by",
    "geometry",
    "pools",
    "steps",
    "rows",
    "requests",
    "right_reuse",
    "settings",
    "decode_grid",
    "expect",
)


@dataclass(frozen=True)
class Case:
    """One public bug; see the module's docstring."""

    id: str
    title: str
    thread: str
    explanation: str
    shows: str
    faulty: str
    right: str
    kind: str
    needs: str = ""
    preset: str = ""
    covered_by: str = ""
    geometry: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    requests: tuple[Mapping[str, Any], ...] = ()
    right_reuse: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    decode_grid: str = "lcm"
    expect: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether this library can run it under a rule."""
        return self.kind != "note"

    @property
    def presets(self) -> tuple[str, ...]:
        """The engine bundles that it speaks of, the one that shows the fault first."""
        named = [self.preset, *(name for name in self.expect if name not in RULES)]
        return tuple(dict.fromkeys(name for name in named if name))


@cache
def catalogue() -> tuple[Case, ...]:
    """All cases, by id. Raises ValueError naming file, case and key where a file is damaged."""
    cases: dict[str, Case] = {}
    for path in sorted(data_path("cases").glob("*.toml")):
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path.name}: is not TOML: {error}") from None
        for number, entry in enumerate(raw.get("case", [])):
            case = _case(f"{path.name}, case {number} ({entry.get('id', 'no id')})", entry)
            if case.id in cases:
                raise ValueError(f"{path.name}: id={case.id!r} appears twice; ids must be unique")
            cases[case.id] = case
    return tuple(cases[name] for name in sorted(cases))


def find_case(case_id: str) -> Case:
    """A case by its id; raises ValueError with the nearest ids where there is none."""
    known = {case.id: case for case in catalogue()}
    if case_id in known:
        return known[case_id]
    near = get_close_matches(case_id, known, n=3, cutoff=0.3)
    raise ValueError(f"id={case_id!r}: no such case; nearest: {', '.join(near or known)}")


def _case(where: str, entry: Mapping[str, Any]) -> Case:
    for key in entry:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            raise ValueError(f"{where}: unknown key {key!r}{f'; nearest: {near[0]!r}' if near else ''}")
    for key in _TEXTS:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise ValueError(f"{where}: {key}={entry.get(key)!r}: must be a text that is not empty")
    if entry["kind"] not in KINDS:
        raise ValueError(f"{where}: kind={entry['kind']!r}: must be one of {', '.join(KINDS)}")
    for name in (entry.get("preset"), *entry.get("expect", {})):
        if name is not None and name not in RULES:
            try:
                preset(name)
            except ValueError as error:
                raise ValueError(f"{where}: neither a rule nor a preset: {error}") from None
    lists = ("steps", "rows", "requests", "right_reuse")
    values: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in entry.items()}
    return Case(**values)
