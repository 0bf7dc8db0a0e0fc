"""How many depth decisions a second does one core make, in arrays and one by one?

For each built-in rule the same random extends of a Kimi-K3-like geometry (page 64, DCP 8, chunk 64) are decided by
``decide_many`` and by a plain loop over the rule, turn and turn about in one process on one core. A row's rates are
medians over the turns, in CPU time of the thread, so that a busy machine does not count; ``spread`` is the largest
array time over the smallest. Prints one table with its provenance; ``--csv`` writes the same. Ends in about
``--seconds``.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from depthchart import RULES, Geometry, decide_many
from depthchart.provenance import provenance

GEOMETRY = Geometry(page_size=64, dcp_size=8, chunk_width=64)
ARRAY_ROWS, LOOP_ROWS = 1_000_000, 5_000
COLUMNS = ("rule", "branch", "array_per_s", "loop_per_s", "ratio", "spread", "turns")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="time for all rows together")
    parser.add_argument("--csv", type=Path, help="write the table here, too")
    args = parser.parse_args(argv)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cases = [(name, branch) for name in RULES for branch in (False, True)]
    rows = [measure(name, branch, args.seconds / len(cases)) for name, branch in cases]
    print_table(rows)
    if args.csv:
        write_csv(rows, args.csv)
    return 0


def measure(name: str, with_branch: bool, seconds: float) -> dict:
    """One row of the table: array and loop on the same extends, turn about, for about ``seconds``."""
    prefix, end, branch = extends(ARRAY_ROWS)
    given = branch if with_branch else None
    few = slice(0, LOOP_ROWS)
    one_by_one = list(zip(prefix[few].tolist(), end[few].tolist(), branch[few].tolist(), strict=True))
    check_equal(name, one_by_one, decide_many(name, GEOMETRY, prefix, end, given), with_branch)
    array_s, loop_s = [], []
    stop = time.perf_counter() + seconds
    while len(array_s) < 3 or time.perf_counter() < stop:
        start = time.thread_time()
        decide_many(name, GEOMETRY, prefix, end, given)
        middle = time.thread_time()
        loop(name, one_by_one, with_branch)
        array_s.append(middle - start)
        loop_s.append(time.thread_time() - middle)
    array_rate, loop_rate = ARRAY_ROWS / median(array_s), LOOP_ROWS / median(loop_s)
    return {
        "rule": name,
        "branch": "yes" if with_branch else "no",
        "array_per_s": round(array_rate),
        "loop_per_s": round(loop_rate),
        "ratio": round(array_rate / loop_rate, 1),
        "spread": round(max(array_s) / min(array_s), 2),
        "turns": len(array_s),
    }


def extends(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prefixes up to 128k tokens on the scheduler's page, extends up to 8192 tokens, a branch depth (a multiple of
    the grid, or -1) for every other one."""
    rng = np.random.default_rng(39115)
    prefix = rng.integers(0, 2048, rows) * GEOMETRY.page_size
    end = prefix + rng.integers(1, 8193, rows)
    branch = rng.integers(1, 256, rows) * GEOMETRY.checkpoint_grid
    return prefix, end, np.where(rng.random(rows) < 0.5, branch, -1)


def loop(name: str, rows: list[tuple[int, int, int]], with_branch: bool) -> list:
    rule = RULES[name]
    if not with_branch:
        return [rule(GEOMETRY, prefix, end) for prefix, end, _ in rows]
    return [rule(GEOMETRY, prefix, end, branch if branch > 0 else None) for prefix, end, branch in rows]


def check_equal(name: str, rows: list, found, with_branch: bool) -> None:
    """A fast wrong answer is no answer: stop where array and loop differ."""
    for i, answer in enumerate(loop(name, rows, with_branch)):
        if (answer.depth, answer.donate) != (found.depth[i], found.donate[i]):
            raise SystemExit(f"{name}: array and loop differ on {rows[i]}: {answer} against {found.depth[i]}")


def print_table(rows: list[dict]) -> None:
    print(
        f"{'rule':16} {'branch':>6} {'array /s':>13} {'loop /s':>11} {'ratio':>8} {'spread':>7} {'turns':>6}"
    )
    for row in rows:
        print(
            f"{row['rule']:16} {row['branch']:>6} {row['array_per_s']:>13,} {row['loop_per_s']:>11,} "
            f"{row['ratio']:>8} {row['spread']:>7} {row['turns']:>6}"
        )
    slowest = min(rows, key=lambda row: row["array_per_s"])
    reached = "at least" if slowest["array_per_s"] >= 10_000_000 else "below"
    branch = "with" if slowest["branch"] == "yes" else "without"
    print(
        f"slowest: {slowest['rule']} {branch} branch depths, {reached} the 10,000,000 decisions/s asked for "
        f"({slowest['array_per_s']:,})"
    )
    print(f"\n{ARRAY_ROWS:,} extends an array, {LOOP_ROWS:,} a loop, one core, CPU time; {GEOMETRY}")
    for key, value in machine().items():
        print(f"{key:11} {value}")


def machine() -> dict[str, str]:
    command = " ".join(["python", *map(shlex.quote, sys.argv)])
    return {**provenance(), "cpu": cpu_name(), "command": command}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def write_csv(rows: list[dict], path: Path) -> None:
    """The table, and the provenance in comment lines; written aside, then renamed."""
    aside = path.with_name(path.name + ".part")
    with aside.open("w", newline="") as out:
        out.writelines(f"# {key}: {value}\n" for key, value in machine().items())
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
