"""CPU time a request of the radix tree, and of the whole lifecycle, on one synthetic load.

The load: 200 sessions of 10 turns, turn about; 2,000 shared tokens of system prompt, 500 new ones a turn: 2,000 requests,
9.5 million tokens. ``tree``: match what is known, then insert the whole turn with a state at its last page; prompts are
prepared (interned) before the clock starts. ``lifecycle``: ``serial.serve`` on the same texts, 50 of each turn's tokens
decoded, under the rule and the policies of the ``sglang`` preset, so that states lie where SGLang has them. Each at a
pool with room for all and at half of that, turn and turn about in one process; a row is the median of the rounds, in CPU
time of the thread, since a machine may be shared.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from depthchart.cache.memory import Memory
from depthchart.files import write_table
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS
from depthchart.provenance import provenance
from depthchart.serial import serve
from depthchart.tokens import Ids, PrefixIndex, Tag, Text, canonical
from depthchart.traces.trace import Trace, TraceRequest

__all__ = ["COLUMNS", "Row", "load", "measure", "write_csv"]

SESSIONS, TURNS, SHARED, NEW, REPLY = 200, 10, 2000, 500, 50


class Row(NamedTuple):
    """``who``: depthchart, or a core of SGLang's (in the lifecycle, after a comma: how it took the reply's KV, where not at
    once); ``times_ours``: its time over ours at the roomy pool; ``spread``: the slowest round over the fastest; ``best_us``,
    ``best_times_ours``: by the fastest round of each, which other users of the machine disturb least;
    ``matched_tokens``: of all requests, at the roomy pool; ``half_pool_matched``: at the other."""

    part: str
    who: str
    page: int
    us_a_request: float
    half_pool_us: float
    half_over_roomy: float
    times_ours: float
    best_us: float
    best_times_ours: float
    spread: float
    rounds: int
    matched_tokens: int
    half_pool_matched: int


COLUMNS = Row._fields
Turns = Callable[[int], tuple[float, list[int]]]
"""Pool in tokens -> CPU seconds of all requests, and how many tokens each of them matched."""


def load(sessions: int = SESSIONS) -> list[TraceRequest]:
    """All turns, the sessions turn about; a turn's last tokens are its reply."""
    return [
        TraceRequest(
            f"{session}-{turn}",
            0.0,
            ((1, 0, SHARED), (2 + session, 0, NEW * (turn + 1) - REPLY)),
            ((2 + session, NEW * (turn + 1) - REPLY, REPLY),),
        )
        for turn in range(TURNS)
        for session in range(sessions)
    ]


def measure(
    page: int,
    sessions: int = SESSIONS,
    rounds: int = 5,
    cores: Sequence[str] = (),
    advance: Callable[[int], object] = lambda done: None,
) -> list[Row]:
    """Both parts at one tree page, and those of SGLang's ``cores`` ("python", "rust") in turn with ours.

    Raises ValueError where a core matches other tokens than ours at the roomy pool: then nothing is compared.
    """
    requests, index = load(sessions), PrefixIndex(page)
    total = SHARED + sessions * NEW * TURNS
    roomy = total + total // 4 + sessions * page  # every text ends in a page of its own
    texts = [Text(index, (*r.prompt, *r.output)) for r in requests]
    prepared = [text.ids(len(text)) for text in texts]
    slots = len(requests) + 8
    trace = Trace("bench", tuple(requests))
    parts: dict[Name, Turns] = {
        ("tree", "depthchart"): lambda pool: _tree(page, pool, slots, prepared, index),
        ("lifecycle", "depthchart"): lambda pool: _lifecycle(page, pool, slots, trace, index),
    }
    if cores:
        parts |= _theirs(requests, page, slots, cores)
    half = max(roomy // 2, SHARED + NEW * TURNS + page)  # one text must fit
    times, matched = _in_turn(parts, (roomy, half), rounds, advance)
    _check_matched(page, matched)
    whole = sorted(parts, key=lambda name: name[0] != "tree")  # the tree's rows first
    return [_row(name, page, times, len(requests), matched[name]) for name in whole]


def write_csv(rows: Sequence[Row], path: Path, command: str, peers: Mapping[str, str] | None = None) -> None:
    """The table, with where it comes from in its head; ``peers``: versions of what was compared with."""
    facts = {**provenance(), **(peers or {}), "command": command}
    write_table(path, facts, COLUMNS, rows)


# --- helpers ----------------------------------------------------------------------------------------------

Name = tuple[str, str]
Times = tuple[list[float], list[float]]  # at the roomy pool and at half of it
Matched = tuple[list[int], list[int]]


def _theirs(requests: list[TraceRequest], page: int, slots: int, cores: Sequence[str]) -> dict[Name, Turns]:
    from depthchart.sglang_peer import SglangTurns
    from depthchart.sglang_request_peer import WAYS, SglangRequests

    turns = SglangTurns([canonical((*r.prompt, *r.output)) for r in requests], page, slots)
    whole = SglangRequests([(r.prompt, r.output) for r in requests], page, slots)
    parts: dict[Name, Turns] = {("tree", f"sglang {core}"): partial(turns.run, core) for core in cores}
    for core in cores:
        for way in WAYS:
            who = f"sglang {core}" if way == WAYS[0] else f"sglang {core}, {way}"
            parts["lifecycle", who] = partial(whole.run, core, way)
    return parts


def _in_turn(
    parts: dict[Name, Turns], pools: tuple[int, int], rounds: int, advance: Callable[[int], object]
) -> tuple[dict[Name, Times], dict[Name, Matched]]:
    times: dict[Name, Times] = {name: ([], []) for name in parts}
    matched: dict[Name, Matched] = {name: ([], []) for name in parts}
    for _ in range(rounds):
        for name, run in parts.items():
            for seconds, found, pool in zip(times[name], matched[name], pools, strict=True):
                gc.collect()
                spent, found[:] = run(pool)
                seconds.append(spent)
        advance(1)
    return times, matched


def _check_matched(page: int, matched: dict[Name, Matched]) -> None:
    for part, who in matched:
        pairs = zip(matched[part, who][0], matched[part, "depthchart"][0], strict=True)
        for number, (theirs, ours) in enumerate(pairs):
            if theirs != ours:
                raise ValueError(
                    f"{who} at page {page}, {part}: request {number} matches {theirs} tokens and ours {ours}, so times "
                    "mean nothing"
                )


def _row(name: Name, page: int, times: dict[Name, Times], requests: int, matched: Matched) -> Row:
    rounds, ours = times[name][0], times[name[0], "depthchart"][0]
    roomy, half = median(rounds), median(times[name][1])
    return Row(
        *name,
        page,
        us_a_request=round(roomy / requests * 1e6, 1),
        half_pool_us=round(half / requests * 1e6, 1),
        half_over_roomy=round(half / roomy, 2),
        times_ours=round(roomy / median(ours), 2),
        best_us=round(min(rounds) / requests * 1e6, 1),
        best_times_ours=round(min(rounds) / min(ours), 2),
        spread=round(max(rounds) / min(rounds), 2),
        rounds=len(rounds),
        matched_tokens=sum(matched[0]),
        half_pool_matched=sum(matched[1]),
    )


def _tree(
    page: int, pool: int, slots: int, prepared: list[Ids], index: PrefixIndex
) -> tuple[float, list[int]]:
    memory = Memory(Geometry(page), pool, slots, index=index)
    start = time.thread_time()
    matched = [_turn(memory, ids, page) for ids in prepared]
    return time.thread_time() - start, matched


def _turn(memory: Memory, ids: Ids, page: int) -> int:
    """One request; how many tokens it matched."""
    tree, states = memory.tree, memory.states
    match = tree.match(ids)
    tree.lock(match.node)
    row, known = tree.pages_of(match.node), match.tokens // page
    row += memory.take_pages(len(ids) - known)
    inserted = tree.insert(ids, row)
    memory.allocator.free(row[known : inserted.existing // page])
    slot = memory.take_slot()
    if slot is not None:
        states.tags[slot] = Tag(len(ids) * page, ids[-1])
        if not tree.file_state(inserted.node, slot):
            states.free(slot)
    tree.unlock(match.node)
    return match.tokens


def _lifecycle(page: int, pool: int, slots: int, trace: Trace, index: PrefixIndex) -> tuple[float, list[int]]:
    start = time.thread_time()
    setup = PRESETS["sglang"].apply(Geometry(page), pool, slots)
    service = serve(trace, Geometry(page), **setup.settings, index=index)
    return time.thread_time() - start, [served.reused_tokens for served in service.requests]
