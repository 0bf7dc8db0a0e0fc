"""Seconds and memory of simulation: a real trace, a grid of configurations on two cores, and a stream of growing length.

    python benchmarks/bench_simulate.py trace conversation_trace.jsonl.gz
    python benchmarks/bench_simulate.py grid conversation_trace.jsonl.gz --workers 2
    python benchmarks/bench_simulate.py growth --requests 1000,10000,100000,1000000
    python benchmarks/bench_simulate.py growth --one-at-a-time

``trace`` and ``grid`` run Mooncake's conversation trace (FAST25 release) through scheduler, cache and time model, reading
it not counted. ``growth`` streams synthetic chat (``depthchart.streaming``, or one request at a time without the step loop,
``depthchart.serial``), each length in a process of its own, whose largest resident set is read at its end. CPU
seconds, but for the grid's wall time.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from depthchart.files import write_table
from depthchart.geometry import Geometry
from depthchart.provenance import provenance
from depthchart.serial import serve_each
from depthchart.simulate import simulate
from depthchart.streaming import stream
from depthchart.traces import load_trace
from depthchart.traces.trace import TraceRequest

PAGES, RULES, POOLS = (16, 64, 256, 512), ("absolute", "page_exact", "marconi"), (1, 2, 4, 8)
POOL_TOKENS, SLOTS = 1_000_000, 500  # the smallest pools of the grid; POOLS multiplies both
SESSIONS, TURNS, SHARED, NEW, REPLY = 64, 10, 2000, 484, 16
RATE = 16.0  # synthetic requests a simulated second


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["trace", "grid", "growth"])
    parser.add_argument("path", nargs="?", type=Path, help="trace: file of the conversation trace")
    parser.add_argument("--limit", type=int, help="its first so many requests only")
    parser.add_argument("--pages", default=",".join(map(str, PAGES)), help="grid: tree pages")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", default="1000,10000,100000,1000000")
    parser.add_argument(
        "--one-at-a-time", action="store_true", help="growth: cache alone, without the step loop"
    )
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args(argv)
    if args.what == "growth":
        measured = growth_alone if args.one_at_a_time else growth
        rows = [in_own_process(measured, int(count)) for count in args.requests.split(",")]
    elif args.path is None:
        parser.error(f"path: is missing; {args.what} needs the conversation trace")
    else:
        grid = list(itertools.product(map(int, args.pages.split(",")), RULES, POOLS))
        rows = (one_trace if args.what == "trace" else whole_grid)(args.path, args.limit, grid, args.workers)
    show(rows, args.csv)
    return 0


# --- a recorded trace -------------------------------------------------------------------------------------


def one_trace(path: Path, limit: int | None, grid: list[tuple], workers: int) -> list[dict]:
    """Pages 64 and 512 at the default pools."""
    start_reading(path, limit)
    return [configuration((page, "absolute", 2)) for page in (64, 512)]


def whole_grid(path: Path, limit: int | None, grid: list[tuple], workers: int) -> list[dict]:
    began = time.perf_counter()
    with ProcessPoolExecutor(workers, initializer=start_reading, initargs=(path, limit)) as pool:
        rows = list(pool.map(configuration, grid))
    for row in rows:
        row["grid_wall_s"] = round(time.perf_counter() - began, 1)
    return rows


def start_reading(path: Path, limit: int | None) -> None:
    global TRACE  # one trace a process
    TRACE = load_trace(path, limit=limit)


def configuration(choice: tuple[int, str, int]) -> dict:
    page, rule, pools = choice
    start = time.process_time()
    run = simulate(
        TRACE, Geometry(page), rule, kv_tokens=pools * POOL_TOKENS, state_slots=pools * SLOTS, strict=False
    )
    spent = time.process_time() - start
    decoded = sum(step.decode_rows for step in run.records)
    row = {"page": page, "rule": rule, "kv_tokens": pools * POOL_TOKENS, "state_slots": pools * SLOTS}
    return row | {
        "requests": len(TRACE),
        "steps": len(run.records),
        "decode_rows": decoded,
        "simulated_s": round(run.end_s, 1),
        "cpu_s": round(spent, 2),
        "us_a_request": round(spent / len(TRACE) * 1e6, 1),
    }


# --- a stream ---------------------------------------------------------------------------------------------


def growth(count: int) -> dict:
    """A stream of ``count`` requests; the pool, and so the live tree, is the same for every count."""
    start = time.process_time()
    totals = stream(chat(count), Geometry(64), kv_tokens=400_000, state_slots=256)
    spent = time.process_time() - start
    assert totals.finished == count
    assert not totals.violations
    return grown(count, totals.prompt_tokens, totals.reused_tokens, totals.steps, spent)


def growth_alone(count: int) -> dict:
    """The same requests one at a time, on the same pools."""
    start = time.process_time()
    prompt = reused = 0
    for served in serve_each(chat(count), Geometry(64), "absolute", kv_tokens=400_000, state_slots=256):
        prompt += served.prompt_tokens
        reused += served.reused_tokens
    return grown(count, prompt, reused, 0, time.process_time() - start)


def grown(count: int, prompt: int, reused: int, steps: int, spent: float) -> dict:
    return {
        "requests": count,
        "prompt_tokens": prompt,
        "reuse": round(reused / prompt, 4),
        "steps": steps,
        "cpu_s": round(spent, 2),
        "us_a_request": round(spent / count * 1e6, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def chat(count: int) -> Iterator[TraceRequest]:
    """Sessions of ten turns, 64 at a time, turn about; a new one takes the place of one that ended."""
    for number in range(count):
        lap, place = divmod(number, SESSIONS)
        generation, turn = divmod(lap + place % TURNS, TURNS)
        segment = 2 + generation * SESSIONS + place
        said = (NEW + REPLY) * turn
        yield TraceRequest(
            f"{segment}.{turn}",
            number / RATE,
            ((1, 0, SHARED), (segment, 0, said + NEW)),
            ((segment, said + NEW, REPLY),),
            f"{segment}",
            after=f"{segment}.{turn - 1}" if turn else None,
        )


def in_own_process(function, argument) -> dict:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


# --- output -----------------------------------------------------------------------------------------------


def show(rows: list[dict], path: Path | None) -> None:
    print("".join(f"{name:>15}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value!s:>15}" for value in row.values()))
    facts = {**provenance(), "command": " ".join(["python", *map(shlex.quote, sys.argv)])}
    print("\n" + "\n".join(f"{key:11} {value}" for key, value in facts.items()))
    if path is None:
        return
    write_table(path, facts, list(rows[0]), (row.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
