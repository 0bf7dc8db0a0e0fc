"""Our bundle against every engine's on recorded traces that it was not tuned on: the leaderboard over a table of memories.

    python benchmarks/holdout.py conversation_trace.jsonl.gz@6000:8000 ragpulse/0_trace.jsonl.gz@3553: --csv holdout.csv

``PATH@FIRST:LAST`` takes the requests ``[FIRST, LAST)`` in the file's order, so that a file of sessions is parted between
sessions or inside one, never across all. The memories follow from the part alone (``memories``), so that nobody
chooses those that flatter; ``--memory KV:SLOTS`` sets others. Every part is served one request at a time on an empty cache.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from depthchart.files import write_table
from depthchart.geometry import Geometry
from depthchart.leaderboard import Leaderboard, leaderboard
from depthchart.presets import ENGINES, PRESETS
from depthchart.provenance import provenance
from depthchart.scheduler.planner import MIN_STATE_SLOTS
from depthchart.tokens import PrefixIndex, Text
from depthchart.traces import load_trace, stream_trace
from depthchart.traces.trace import Trace, canonical

GEOMETRIES = {
    "16": Geometry(16, chunk_width=128),
    "64": Geometry(64),
    "256": Geometry(64, dcp_size=4, chunk_width=64),
}
KV_SHARES, REQUESTS_A_SLOT = (16, 4), (32, 4)  # tight and roomy
POOL_STEP = 1024  # tokens: every tree page divides it


@dataclass(frozen=True)
class Part:
    """The requests ``[first, last)`` of a file, in its own order."""

    path: Path
    first: int = 0
    last: int | None = None

    @classmethod
    def of(cls, text: str) -> Part:
        """``PATH@FIRST:LAST``; either number may be left out, and so may both."""
        path, at, span = text.rpartition("@")
        if not at:
            return cls(Path(text))
        first, _, last = span.partition(":")
        return cls(Path(path), int(first or 0), int(last) if last else None)

    def load(self) -> Trace:
        trace = load_trace(self.path, limit=self.last)
        before = {request.request_id for request in islice(stream_trace(self.path), self.first)}
        return replace(trace, requests=tuple(one for one in trace if one.request_id not in before))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", metavar="PATH[@FIRST:LAST]", type=Part.of)
    parser.add_argument("--memory", action="append", type=memory, metavar="KV:SLOTS", help="may be repeated")
    parser.add_argument(
        "--pages", default=",".join(GEOMETRIES), help="tree pages; 256 is a page of 64 under DCP 4"
    )
    parser.add_argument("--presets", default=",".join(PRESETS), help="ours and engines' (default: all)")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args(argv)
    rows: list[dict] = []
    for part in args.parts:
        for row in table(part, args.memory, args.pages.split(","), args.presets.split(",")):
            rows.append(row)
            show(row, header=len(rows) == 1)
            if args.csv:
                write(rows, args.csv)
    return 0


def memory(text: str) -> tuple[int, int]:
    kv, slots = (int(number) for number in text.split(":"))
    return kv, slots


def table(
    part: Part, pools: list[tuple[int, int]] | None, pages: list[str], presets: list[str]
) -> Iterator[dict]:
    """One row for each memory and tree page."""
    trace = part.load()
    for kv, slots in dict.fromkeys(pools or memories(trace)):
        for page in pages:
            began = time.process_time()
            board = leaderboard(trace, GEOMETRIES[page], kv_tokens=kv, state_slots=slots, presets=presets)
            row = as_row(part, trace, board, GEOMETRIES[page])
            yield row | {"cpu_s": round(time.process_time() - began, 1)}


def memories(trace: Trace, page: int = 64) -> Iterator[tuple[int, int]]:
    """Tight and roomy pools: a sixteenth and a quarter of the distinct tokens (no less than twice the longest request), a
    slot for 32 and for 4 requests (no fewer than two requests take)."""
    distinct = distinct_tokens(trace, page)
    longest = max(request.prompt_tokens + request.output_tokens for request in trace)
    for share in KV_SHARES:
        tokens = max(distinct // share, 2 * longest)
        for requests in REQUESTS_A_SLOT:
            yield -(-tokens // POOL_STEP) * POOL_STEP, max(len(trace) // requests, 2 * MIN_STATE_SLOTS)


def distinct_tokens(trace: Trace, page: int) -> int:
    """Tokens of KV that a cache ends with if it never evicts, in whole pages."""
    index, seen = PrefixIndex(page), set()
    for request in trace:
        text = Text(index, canonical((*request.prompt, *request.output)), request.extra_key or "")
        seen.update(text.ids(len(text)))
    return len(seen) * page


def as_row(part: Part, trace: Trace, board: Leaderboard, geometry: Geometry) -> dict:
    ours = next(one for one in board.standings if one.preset == "depthchart")
    engine = next(one for one in board.standings if one.preset in ENGINES)  # the best one stands first
    return {
        "trace": trace.name,
        "part": f"{part.first}:{part.first + len(trace)}",
        "prompt_tokens": board.prompt_tokens,
        "kv_tokens": board.settings["kv_tokens"],
        "state_slots": board.settings["state_slots"],
        "tree_page": geometry.tree_page,
        "dcp": geometry.dcp_size,
        "ours": ours.reused_tokens,
        "engine": engine.preset,
        "engine_tokens": engine.reused_tokens,
        "ratio": round(ours.reused_tokens / engine.reused_tokens, 4) if engine.reused_tokens else "",
        "bound": board.bound.least,
        "of_bound": round(ours.of_bound, 4),
    }


def show(row: dict, *, header: bool) -> None:
    if header:
        print("".join(f"{name:>15}" for name in row))
    print("".join(f"{value!s:>15.15}" for value in row.values()), flush=True)


def write(rows: list[dict], path: Path) -> None:
    facts = {**provenance(), "command": " ".join(["python", *map(shlex.quote, sys.argv)])}
    write_table(path, facts, list(rows[0]), (row.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
