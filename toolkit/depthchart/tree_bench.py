"""CPU time a request of the radix tree, and of the whole lifecycle, on one synthetic load.

The load: 200 sessions of 10 turns, turn about; 2,000 shared tokens of system prompt, 500 new ones a turn: 2,000 requests,
9.5 million tokens. ``tree``: match what is known, then insert the whole turn with a state at its last page; prompts are
prepared (interned) before the clock starts. ``lifecycle``: ``serial.serve`` on the same texts, 50 of each turn's tokens
decoded. Each at a pool with room for all and at half of that, turn and turn about in one process; a row is the median of
the rounds, in CPU time of the thread, since a machine may be shared.
"""

from __future__ import annotations

import csv
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from depthchart.cache.memory import Memory
from depthchart.files import whole_file
from depthchart.geometry import Geometry
from depthchart.provenance import provenance
from depthchart.serial import serve
from depthchart.tokens import Ids, PrefixIndex, Tag, Text
from depthchart.traces.trace import Trace, TraceRequest

__all__ = ["COLUMNS", "Row", "load", "measure", "write_csv"]

SESSIONS, TURNS, SHARED, NEW, REPLY = 200, 10, 2000, 500, 50


class Row(NamedTuple):
    """``who``: depthchart, or a core of SGLang's; ``times_ours``: its time over ours at the roomy pool; ``spread``: the
    slowest round over the fastest; ``matched_tokens``: of all requests, at the roomy pool."""

    part: str
    who: str
    page: int
    us_a_request: float
    half_pool_us: float
    half_over_roomy: float
    times_ours: float
    spread: float
    rounds: int
    matched_tokens: int


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
    """Both parts at one tree page, and the tree part of SGLang's ``cores`` ("python", "rust") in turn with ours.

    Raises ValueError where a core matches other tokens than our tree at the roomy pool: then nothing is compared.
    """
    requests, index = load(sessions), PrefixIndex(page)
    total = SHARED + sessions * NEW * TURNS
    roomy = total + total // 4 + sessions * page  # every text ends in a page of its own
    texts = [Text(index, (*r.prompt, *r.output)) for r in requests]
    prepared = [text.ids(len(text)) for text in texts]
    slots = len(requests) + 8
    parts: dict[tuple[str, str], Turns] = {
        ("tree", "depthchart"): lambda pool: _tree(page, pool, slots, prepared, index)
    }
    if cores:
        from depthchart.sglang_peer import SglangTurns

        theirs = SglangTurns([text.runs for text in texts], page, slots)
        parts |= {
            ("tree", f"sglang {core}"): lambda pool, core=core: theirs.run(core, pool)  # type: ignore[misc]
            for core in cores
        }
    trace = Trace("bench", tuple(requests))
    parts["lifecycle", "depthchart"] = lambda pool: _lifecycle(page, pool, slots, trace, index)
    half = max(roomy // 2, SHARED + NEW * TURNS + page)  # one text must fit
    times, matched = _in_turn(parts, (roomy, half), rounds, advance)
    for name in parts:
        if name[0] == "tree" and matched[name] != matched["tree", "depthchart"]:
            raise ValueError(
                f"{name[1]} at page {page}: matches other tokens than our tree, so times mean nothing"
            )
    return [_row(name, page, times, len(requests), sum(matched[name])) for name in parts]


def write_csv(rows: Sequence[Row], path: Path, command: str) -> None:
    """The table, with where it comes from in its head."""
    with whole_file(path) as draft, draft.open("w", newline="") as out:
        out.writelines(f"# {key}: {value}\n" for key, value in {**provenance(), "command": command}.items())
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


# --- helpers ----------------------------------------------------------------------------------------------

Name = tuple[str, str]


def _in_turn(
    parts: dict[Name, Turns], pools: tuple[int, int], rounds: int, advance: Callable[[int], object]
) -> tuple[dict[Name, tuple[list[float], list[float]]], dict[Name, list[int]]]:
    times: dict[Name, tuple[list[float], list[float]]] = {name: ([], []) for name in parts}
    matched: dict[Name, list[int]] = {}
    for _ in range(rounds):
        for name, run in parts.items():
            for seconds, pool in zip(times[name], pools, strict=True):
                gc.collect()
                spent, found = run(pool)
                seconds.append(spent)
                if pool == pools[0]:
                    matched[name] = found
        advance(1)
    return times, matched


def _row(
    name: Name, page: int, times: dict[Name, tuple[list[float], list[float]]], requests: int, matched: int
) -> Row:
    roomy, half = (median(seconds) for seconds in times[name])
    ours = median(times[name[0], "depthchart"][0])
    spread = max(times[name][0]) / min(times[name][0])
    return Row(
        *name,
        page,
        us_a_request=round(roomy / requests * 1e6, 1),
        half_pool_us=round(half / requests * 1e6, 1),
        half_over_roomy=round(half / roomy, 2),
        times_ours=round(roomy / ours, 2),
        spread=round(spread, 2),
        rounds=len(times[name][0]),
        matched_tokens=matched,
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
    service = serve(trace, Geometry(page), "absolute", kv_tokens=pool, state_slots=slots, index=index)
    return time.thread_time() - start, [served.reused_tokens for served in service.requests]
