"""Engines as complete bundles: depth rule, cuts, decode checkpoints, eviction, refresh, matching, caps.

A preset is given a geometry and two pools and answers the settings for ``simulate`` or ``serve``. What is simplified:
every engine gets the same radix tree over whole pages and two pools, one for KV and one for states. vLLM in truth
keeps both in one pool of equal blocks, and llama.cpp keeps a copy of the text for each slot; both
reuse no more than the bundle here, which shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from typing import Any, Final

from depthchart.cache.worth import Worth
from depthchart.depth import RULES, Rule
from depthchart.geometry import Geometry
from depthchart.rules import (
    HEAD_STEP,
    decode_on_interval,
    every_n,
    spaced,
    vllm_all,
    vllm_any_cut,
    vllm_junction,
    vllm_steps,
)
from depthchart.scheduler.planner import MIN_STATE_SLOTS

__all__ = ["ENGINES", "FAULTY", "PRESETS", "Preset", "Setup", "llamacpp", "preset", "sglang_at"]


SMALLEST_BLOCK: Final = 528
"""Tokens of the smallest block that holds a state of a hybrid model, of those that vLLM is known to log (vllm#20016)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A preset applied: the rule, the pools (tokens, slots) and the cache's policies by name."""

    rule: Rule
    kv_tokens: int
    state_slots: int
    policies: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for ``simulate`` and ``serve``, the rule among them."""
        return {
            "rule": self.rule,
            "kv_tokens": self.kv_tokens,
            "state_slots": self.state_slots,
            **self.policies,
        }


@dataclass(frozen=True, slots=True)
class Preset:
    """One engine at one time.

    ``since``: from when the engine behaves so (ISO date, "" where it is not dated); ``source``: public threads;
    ``make_rule(geometry, kv_tokens, state_slots)`` gives the depth rule; ``policies`` are keyword arguments of
    ``Memory``; ``joint_pool`` where KV and states share one pool of blocks half and half.
    """

    name: str
    summary: str
    source: str
    make_rule: Callable[[Geometry, int, int], Rule]
    policies: Mapping[str, Any] = field(default_factory=dict)
    since: str = ""
    joint_pool: bool = False
    on_page: bool = False  # branch depths on the tree page, for rules that can store any depth

    def apply(
        self,
        geometry: Geometry,
        kv_tokens: int,
        state_slots: int,
        *,
        state_tokens: int | None = None,
        divided: bool = False,
    ) -> Setup:
        """The settings on these pools. A joint pool has the memory of both, and half of it goes to each kind, since each
        block of text takes a block for its KV and one for its state. A state is as large as a block in vLLM, which raises
        its blocks until they hold one; on pages too small for any (``SMALLEST_BLOCK``), as large as ``Worth`` says, unless
        ``state_tokens`` says how many tokens of KV are as large as a state. ``divided``: the pools are those halves already,
        as a run tells them; they are taken as they are."""
        kv, slots, page = kv_tokens, state_slots, geometry.tree_page
        if self.joint_pool and not divided:
            state = page if page >= SMALLEST_BLOCK else max(page, round(Worth().state_tokens))
            state = state if state_tokens is None else state_tokens
            half = (kv_tokens + state_slots * state) // 2
            # no fewer states than one request takes, or the tiny pools of a search could serve nobody
            kv, slots = half // page * page, max(half // state, min(state_slots, MIN_STATE_SLOTS))
        policies = dict(self.policies)
        if self.on_page:
            policies["branch_grid"] = geometry.tree_page
        return Setup(self.make_rule(geometry, kv, slots), kv, slots, policies)


def sglang_at(day: str | date) -> Preset:
    """SGLang's bundle on a day (ISO); raises ValueError before the first one."""
    asked = day if isinstance(day, date) else _day(day)
    known = [made for made in _SGLANG if date.fromisoformat(made.since) <= asked]
    if not known:
        first = _SGLANG[0].since
        raise ValueError(
            f"day={asked.isoformat()}: SGLang has checkpoints in a paged tree since {first}; nearest: {first}"
        )
    return known[-1]


def llamacpp(every: int = 8192, keep: int = 32, *, restores: bool = True) -> Preset:
    """llama.cpp with a checkpoint every ``every`` tokens, at most ``keep`` on one text besides the live state at its end,
    the nearest earlier one restored; ``restores=False``: checkpoints are kept and never used (llama.cpp#24035), so that
    only a text that goes on where another ended is not run anew."""
    if keep < 1:
        raise ValueError(f"keep={keep}: must be at least 1; nearest legal: 1")
    rule = every_n(every)
    settings = "" if (every, keep) == (8192, 32) else f"@{every},{keep}"
    return Preset(
        ("llamacpp" if restores else "llamacpp-24035") + settings,
        f"a checkpoint every {every} tokens, at most {keep} a text, "
        + ("nearest earlier one restored" if restores else "none ever restored"),
        "llama.cpp#16382, #20087, #24035",
        lambda g, kv, slots: rule,
        {"max_states_per_path": keep + 1, "matching": "nearest" if restores else "tip"},
    )


def preset(name: str) -> Preset:
    """A preset by name, one of FAULTY, SGLang's on a day as ``sglang@2026-08-20``, or llama.cpp's with other settings as
    ``llamacpp@EVERY,KEEP``; an unknown name raises ValueError with the nearest one."""
    known = {**PRESETS, **FAULTY}
    if name in known:
        return known[name]
    base, at, given = str(name).partition("@")
    if base == "sglang" and at:
        return sglang_at(given)
    if base in ("llamacpp", "llamacpp-24035") and at:
        return llamacpp(*_every_keep(name, given), restores=base == "llamacpp")
    near = get_close_matches(str(name), known, n=1, cutoff=0.4)
    hint = f"; nearest: {near[0]!r}" if near else ""
    raise ValueError(
        f"preset={name!r}: no such preset{hint}; there are {', '.join(known)}, sglang@YYYY-MM-DD and llamacpp@EVERY,KEEP"
    )


def _named(rule: str) -> Callable[[Geometry, int, int], Rule]:
    return lambda g, kv, slots: RULES[rule]


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"day={text!r}: must be an ISO date, such as 2026-08-20") from None


def _every_keep(name: str, text: str) -> tuple[int, int]:
    try:
        every, keep = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"preset={name!r}: must be as llamacpp@8192,32: tokens between checkpoints, and how many"
        ) from None
    return every, keep


def _spaced(geometry: Geometry, kv_tokens: int, state_slots: int) -> Rule:
    """One inner state for each stretch of KV that one slot has to serve, and at the head of a text as many as make up a
    sixteenth of the slots: those that turn out to be of no use go first (``gain``)."""
    return spaced(max(geometry.tree_page, kv_tokens // state_slots), HEAD_STEP * (state_slots // 16))


_OLD_DECODE = decode_on_interval(RULES["chunk_grid"])
# of a name of its own: its decode grid is not that of the registered rule, and a run must tell which it had
_VLLM_STEPS = vllm_steps()
_R1_OLD_DECODE = decode_on_interval(RULES["prefix_relative"])

_SGLANG: Final = (
    Preset(
        "sglang-2025-12",
        "chunk_grid; a match refreshes the states of its whole path; decode checkpoints on their interval",
        "sglang#14792",
        lambda g, kv, slots: _OLD_DECODE,
        {"refresh": "path", "keep_tombstones": True},
        "2025-12-10",
    ),
    Preset(
        "sglang-before-34808",
        "chunk_grid; a match refreshes the state that it uses",
        "sglang#31648",
        lambda g, kv, slots: _OLD_DECODE,
        {"keep_tombstones": True},
        "2026-07-18",
    ),
    Preset(
        "sglang-34808",
        "prefix_relative: depths on lcm(cache_chunk, tree_page), counted from the prefix",
        "sglang#34808",
        lambda g, kv, slots: _R1_OLD_DECODE,
        {"keep_tombstones": True},
        "2026-08-14",
    ),
    Preset(
        "sglang-35412",
        "the same, decode checkpoints on lcm(grid, interval)",
        "sglang#35412",
        _named("prefix_relative"),
        {"keep_tombstones": True},
        "2026-08-18",
    ),
    Preset(
        "sglang-39115",
        "absolute: depths are multiples of the grid in the text",
        "sglang#39115",
        _named("absolute"),
        {"keep_tombstones": True},
        "2026-09-11",
    ),
    Preset(
        "sglang",
        "release 0.5.23: absolute under DCP, with cuts on cache_chunk, else counted from the prefix",
        "sglang#40907",
        _named("dcp_gated"),
        {"keep_tombstones": True},
        "2026-10-01",
    ),
)

_OTHERS: Final = (
    Preset(
        "vllm-align",
        "each step ends on a block and leaves its state there",
        "vllm#30877",
        lambda g, kv, slots: _VLLM_STEPS,
        since="2025-12-17",
    ),
    Preset(
        "vllm-junction",
        "align, and a cut where KV goes on and no state does",
        "vllm#37898",
        lambda g, kv, slots: vllm_junction(),
        since="2026-06-10",
    ),
    Preset(
        "vllm-all",
        "a state at every block end, in one pool with the KV",
        "vllm#25752",
        lambda g, kv, slots: vllm_all(),
        since="2025-10",
        joint_pool=True,
    ),
    llamacpp(),
    Preset(
        "depthchart",
        "exact depths: last page, branch, head, some on the way; what goes is what is expected to save the fewest tokens",
        "this project",
        _spaced,
        {"eviction": "gain", "state_eviction": "gain"},
        on_page=True,
    ),
)

PRESETS: Final[Mapping[str, Preset]] = {made.name: made for made in (*_SGLANG, *_OTHERS)}
FAULTY: Final[Mapping[str, Preset]] = {
    made.name: made
    for made in (
        Preset(
            "vllm-align-before-51113",
            "steps end anywhere; a block that is passed publishes whatever its slot holds",
            "vllm#51113",
            lambda g, kv, slots: vllm_any_cut(),
        ),
        llamacpp(restores=False),
    )
}
"""Bundles that only show a public fault; they are not ranked or swept with the others."""

ENGINES: Final = tuple(name for name in PRESETS if name != "depthchart")
"""All presets of engines, as opposed to our own."""
