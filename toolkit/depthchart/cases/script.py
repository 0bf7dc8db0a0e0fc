"""Lifecycle scripts: the format (docs/replay.md), its checks, and where the bundled ones lie."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import lcm
from pathlib import Path
from typing import Any

from depthchart.datafiles import data_path
from depthchart.depth import RULES
from depthchart.errors import ScriptError
from depthchart.geometry import Geometry
from depthchart.presets import Setup, preset
from depthchart.tokens import INDEX_LIMIT

__all__ = ["DECODE_GRIDS", "Script", "UnwidenedTracking", "find_script", "load_script", "script_names"]

# op -> its required keys and types; optional ones end in "?"
_OPS: dict[str, dict[str, type]] = {
    "request": {"id": str, "tokens": list, "extra_key?": str},
    "extend": {"id": str, "tokens": int, "final?": bool},
    "decode": {"id": str, "tokens": int},
    "finish": {"id": str},
    "abort": {"id": str},
    "match": {"tokens": list, "extra_key?": str},
    "evict": {"kv_tokens?": int, "states?": int},
}
_GEOMETRY = ("page_size", "dcp_size", "chunk_width", "index_pool", "chunked_prefill_size", "track_interval")
_KEYS = (
    "geometry",
    "rule",
    "preset",
    "strict",
    "pools",
    "steps",
    "expect",
    "source",
    "name",
    "story",
    "decode_grid",
)
DECODE_GRIDS = ("lcm", "interval")
"""Where decode checkpoints lie: on lcm(checkpoint_grid, track_interval), or on lcm(page_size, track_interval)."""


class UnwidenedTracking(Geometry):
    """A geometry whose decode checkpoints ignore what widens the tree page, as in SGLang before #35412: the interval
    had to be a multiple of ``page_size`` alone. For scripts that show what that does."""

    __slots__ = ()

    @property
    def track_grid(self) -> int:
        return lcm(self.page_size, self.track_interval)


@dataclass(frozen=True)
class Script:
    """A checked script. ``kv_tokens`` and ``state_slots`` size the pools; ``steps`` are its operations;
    ``expect`` holds the settled parts of the result, ``source`` the public thread. Where it names a ``preset``, that
    gives the rule (``rule`` is its name) and the cache's policies."""

    geometry: Geometry
    rule: str
    strict: bool
    kv_tokens: int
    state_slots: int
    steps: tuple[Mapping[str, Any], ...]
    expect: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    name: str = ""
    story: str = ""
    preset: str = ""

    @property
    def setup(self) -> Setup:
        """Rule, pools and policies to run it with."""
        if self.preset:
            return preset(self.preset).apply(self.geometry, self.kv_tokens, self.state_slots)
        return Setup(RULES[self.rule], self.kv_tokens, self.state_slots, {})

    def under(self, *, rule: str | None = None, strict: bool | None = None) -> Script:
        """The same script under another rule, or with checks on or off. What it expects holds no longer, unless
        rule and checks are its own."""
        kept = self.strict if strict is None else strict
        named = None if rule is None else RULES[rule].name
        if named is None or (named == self.rule and not self.preset):
            return self if kept == self.strict else replace(self, strict=kept, expect={})
        return replace(self, rule=named, preset="", strict=kept, expect={})


def load_script(raw: Mapping[str, Any], name: str = "") -> Script:
    """Check a script's JSON object. Raises ScriptError naming the step and the key that is wrong."""
    _known("script", raw, _KEYS)
    geometry, pools = _mapping("geometry", raw.get("geometry")), _mapping("pools", raw.get("pools"))
    _known("geometry", geometry, _GEOMETRY)
    _known("pools", pools, ("kv_tokens", "state_slots"))
    strict = raw.get("strict", True)
    if not isinstance(strict, bool):
        raise ScriptError(f"strict={strict!r}: must be true or false")
    if not isinstance(raw.get("steps"), list):
        raise ScriptError(f"steps: must be a list of operations, got {type(raw.get('steps')).__name__}")
    if "page_size" not in geometry:
        raise ScriptError("geometry: page_size is missing")
    bundle = raw.get("preset", "")
    if not isinstance(bundle, str) or (bundle and "rule" in raw):
        raise ScriptError(
            f"preset={bundle!r}: must be a preset's name, and stand alone: it brings its own rule"
        )
    rule = raw.get("rule", "absolute")
    try:
        RULES[rule]
        if bundle:
            preset(bundle)
        made = _geometry_kind(raw.get("decode_grid", "lcm"))(**geometry)
    except ValueError as error:
        raise ScriptError(str(error)) from None
    kv_tokens = _count("pools.kv_tokens", pools.get("kv_tokens"))
    if kv_tokens < made.tree_page:
        raise ScriptError(
            f"pools.kv_tokens={kv_tokens}: must hold at least one tree page; nearest legal: {made.tree_page}"
        )
    script = Script(
        geometry=made,
        rule=rule,
        strict=strict,
        kv_tokens=kv_tokens,
        state_slots=_count("pools.state_slots", pools.get("state_slots")),
        steps=tuple(_step(number, step) for number, step in enumerate(raw["steps"])),
        expect=_mapping("expect", raw.get("expect", {})),
        source=str(raw.get("source", "")),
        name=str(raw.get("name", name)),
        story=str(raw.get("story", "")),
        preset=bundle,
    )
    return replace(script, rule=script.setup.rule.name) if bundle else script


def script_names() -> list[str]:
    """The names of the bundled scripts, sorted."""
    return sorted(path.stem for path in data_path("conformance", "scripts").glob("*.json"))


def find_script(name_or_path: str) -> Script:
    """A script by file path, or a bundled one by its name or the beginning of it (``sglang-39115``).

    Raises ScriptError where there is none, with the nearest names, or where the file is damaged.
    """
    path = Path(name_or_path)
    if not path.is_file():
        path = _bundled(name_or_path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ScriptError(f"{path.name}: is not JSON: {error}") from None
    return load_script(_mapping(path.name, raw), path.stem)


def _bundled(name: str) -> Path:
    names = script_names()
    stem = name.removesuffix(".json")
    found = [stem] if stem in names else [known for known in names if known.startswith(stem + "-")]
    if found:
        return data_path("conformance", "scripts", f"{found[0]}.json")
    near = get_close_matches(stem, names, n=3, cutoff=0.3)
    raise ScriptError(
        f"script={name!r}: no such file, and no bundled script of that name; nearest: {', '.join(near or names)}"
    )


def _geometry_kind(decode_grid: object) -> type[Geometry]:
    if decode_grid not in DECODE_GRIDS:
        raise ScriptError(f"decode_grid={decode_grid!r}: must be one of {', '.join(DECODE_GRIDS)}")
    return UnwidenedTracking if decode_grid == "interval" else Geometry


def _step(number: int, step: object) -> Mapping[str, Any]:
    where = f"step {number}"
    step = _mapping(where, step)
    op = step.get("op")
    if not isinstance(op, str) or op not in _OPS:
        raise ScriptError(f"{where}: op={op!r}: must be one of {', '.join(_OPS)}")
    wanted = _OPS[op]
    _known(f"{where} ({op})", step, ["op", *(key.rstrip("?") for key in wanted)])
    for key, kind in wanted.items():
        name = key.rstrip("?")
        if name not in step:
            if key.endswith("?"):
                continue
            raise ScriptError(f"{where} ({op}): key {name!r} is missing")
        value: Any = step[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ScriptError(
                f"{where} ({op}): {name}={value!r}: must be {kind.__name__}, not {type(value).__name__}"
            )
        least = 1 if op in ("extend", "decode") else 0
        if kind is int and isinstance(value, int) and value < least:
            raise ScriptError(f"{where} ({op}): {name}={value}: must be at least {least}")
        if isinstance(value, list):
            _check_runs(f"{where} ({op})", value)
            if op == "request" and not value:
                raise ScriptError(f"{where} ({op}): tokens=[]: must hold at least one [segment, length]")
    return step


def _check_runs(where: str, runs: Sequence[object]) -> None:
    for run in runs:
        match run:
            case [str() | int(), int() as length] if 0 < length <= INDEX_LIMIT and length is not True:
                continue
        raise ScriptError(f"{where}: tokens: {run!r} must be [segment, length] with a length from 1 to 2**32")


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ScriptError(f"{name}: must be a JSON object, got {type(value).__name__}")
    return value


def _known(where: str, value: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in value:
        if key not in keys:
            near = get_close_matches(str(key), keys, n=1)
            raise ScriptError(
                f"{where}: unknown key {key!r}; {f'nearest: {near[0]!r}' if near else 'known: ' + ', '.join(keys)}"
            )


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScriptError(f"{name}={value!r}: must be a positive whole number")
    return value
