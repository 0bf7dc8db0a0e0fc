"""CPU time a request of the radix tree, and of the whole lifecycle, on one synthetic load.

The load: 200 sessions of 10 turns, turn about; 2,000 shared tokens of system prompt, 500 new ones a turn: 2,000 requests,
9.5 million tokens. ``tree``: match what is known, then insert the whole turn with a state at its last page;
prompts are prepared (interned) before the clock starts. ``lifecycle``: ``serial.serve`` on the same texts, 50 of each
turn's tokens decoded. Each at a pool with room for all and at half of that, turn and turn about in one process; a row
is the median of ``--rounds``, in CPU time of the thread, since a machine may be shared.
"""

from __future__ import annotations

import argparse
import csv
import gc
import shlex
import sys
import time
from pathlib import Path
from statistics import median

from depthchart.cache.memory import Memory
from depthchart.files import whole_file
from depthchart.geometry import Geometry
from depthchart.provenance import provenance
from depthchart.serial import serve
from depthchart.tokens import PrefixIndex, Tag, Text
from depthchart.traces.trace import Trace, TraceRequest

SESSIONS, TURNS, SHARED, NEW, REPLY = 200, 10, 2000, 500, 50
SLOTS = SESSIONS * TURNS + 8
COLUMNS = ("part", "page", "us_a_request", "half_pool_us", "half_over_roomy", "spread", "rounds")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", default="64,512", help="tree pages (default: 64,512; 1 takes gigabytes)")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"(default: {SESSIONS})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", type=Path, help="write the table here, too")
    args = parser.parse_args(argv)
    rows = [
        row for page in map(int, args.pages.split(",")) for row in measure(page, args.sessions, args.rounds)
    ]
    show(rows)
    if args.csv:
        write_csv(rows, args.csv)
    return 0


def requests(sessions: int) -> list[TraceRequest]:
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


def measure(page: int, sessions: int, rounds: int) -> list[dict]:
    """Both parts at one page, roomy and half-sized pools in turn."""
    load, index = requests(sessions), PrefixIndex(page)
    total = SHARED + sessions * NEW * TURNS
    roomy = total + total // 4 + sessions * page  # every text ends in a page of its own
    trace = Trace("bench", tuple(load))
    prepared = [text.ids(len(text)) for text in (Text(index, (*r.prompt, *r.output)) for r in load)]
    parts = {
        "tree": lambda pool: tree_s(page, pool, prepared, index),
        "lifecycle": lambda pool: life_s(page, pool, trace, index),
    }
    rows = []
    for name, run in parts.items():
        times: dict[int, list[float]] = {roomy: [], roomy // 2: []}
        for _ in range(rounds):
            for pool, seconds in times.items():
                gc.collect()
                seconds.append(run(pool) / len(load) * 1e6)
        full, half = (median(seconds) for seconds in times.values())
        spread = max(times[roomy]) / min(times[roomy])
        values = (name, page, round(full, 1), round(half, 1), round(half / full, 2), round(spread, 2), rounds)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def tree_s(page: int, pool: int, prepared: list[list[int]], index: PrefixIndex) -> float:
    """CPU seconds of all matches and inserts, evictions included."""
    memory = Memory(Geometry(page), pool, SLOTS, index=index)
    start = time.thread_time()
    for ids in prepared:
        one_turn(memory, ids, page)
    return time.thread_time() - start


def one_turn(memory: Memory, ids: list[int], page: int) -> None:
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


def life_s(page: int, pool: int, trace: Trace, index: PrefixIndex) -> float:
    start = time.thread_time()
    serve(trace, Geometry(page), "absolute", kv_tokens=pool, state_slots=SLOTS, index=index)
    return time.thread_time() - start


def show(rows: list[dict]) -> None:
    print("".join(f"{name:>16}" for name in COLUMNS))
    for row in rows:
        print("".join(f"{row[name]!s:>16}" for name in COLUMNS))
    print("\nCPU time of one thread; medians")
    for key, value in machine().items():
        print(f"{key:11} {value}")


def machine() -> dict[str, str]:
    return {**provenance(), "command": " ".join(["python", *map(shlex.quote, sys.argv)])}


def write_csv(rows: list[dict], path: Path) -> None:
    with whole_file(path) as draft, draft.open("w", newline="") as out:
        out.writelines(f"# {key}: {value}\n" for key, value in machine().items())
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
