"""``depthchart bench kernels``: measure the scans on this machine, or show a recorded table; ``bench tree`` beside it."""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depthchart.commands import bench_tree
from depthchart.commands.flags import add_verb
from depthchart.display import table_text

NAME = "bench"
HELP = "measure the scan kernels, or the radix tree"
RECORDED = "kernels/cpu.csv"
# Flags that are handed on to the kernels' own bench, which holds the defaults and refuses what is not legal.
LISTS = {
    "op": "gated_delta, kda, ssd",
    "width": "chunk widths [tokens]",
    "length": "tokens of each sequence",
    "batch": "sequences a call",
    "dtype": "fp32, bf16",
    "snapshots": "snapshots a sequence",
    "decay": "a token's log decay goes down to about −DECAY",
    "against": "measure these in the same run, too: reference, fla-core, transformers, mamba-ssm; bench tree: sglang",
}
VALUES = {
    "heads": "heads of K = V = 128; ssd takes twice as many of 64",
    "rounds": "times that each case is measured",
    "threads": "torch threads",
    "device": "cpu or cuda",
    "out": "CSV file to write",
}
_EXAMPLES = """examples:
  depthchart bench kernels --op gated_delta --width 16 32 64 --length 1024
  depthchart bench kernels --against reference --length 512 --out mine.csv
  depthchart bench kernels --table            show the recorded table, measure nothing
  depthchart bench kernels --table mine.csv --json
  depthchart bench tree                       CPU time a request, at tree pages 1, 64 and 512
  depthchart bench tree --pages 64 --against sglang --csv mine.csv

exit code: 0 fine, 1 a result was wrong, 2 the call is wrong"""
_COLUMNS = {  # shown of a recorded table: column -> (heading, form)
    "op": ("operator", "{}"),
    "impl": ("impl", "{}"),
    "chunk_width": ("width", "{}"),
    "length": ("tokens", "{}"),
    "batch": ("batch", "{}"),
    "dtype": ("dtype", "{}"),
    "snapshots": ("snapshots", "{}"),
    "decay": ("decay", "{}"),
    "best_s": ("best ms", "{:,.1f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "roofline_share": ("of roofline", "{:.0%}"),
    "times_reference": ("× reference", "{:.1f}"),
    "times_peer": ("× best peer", "{:.2f}"),
}
_ORIGIN = (
    "device",
    "threads",
    "load",
    "matmul_flops_per_s",
    "copy_bytes_per_s",
    "torch",
    "peers",
    "python",
    "command",
)


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("what", choices=["kernels", "tree"], help="what to measure")
    parser.add_argument(
        "--table",
        nargs="?",
        const="",
        metavar="CSV",
        help="show a recorded table (default: the bundled one) instead of measuring",
    )
    for name, text in LISTS.items():
        parser.add_argument(f"--{name}", nargs="+", metavar=name.upper(), help=text)
    for name, text in VALUES.items():
        parser.add_argument(f"--{name}", metavar=name.upper(), help=text)
    bench_tree.add_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object: provenance and rows")


def run(args: argparse.Namespace) -> int:
    """Measure the kernels in a process of its own (only the engine may load them), or the tree, or print a table."""
    tree = args.what == "tree"
    foreign = [*LISTS, *VALUES, "table"] if tree else bench_tree.FLAGS
    wrong = [
        name for name in foreign if name not in bench_tree.KERNELS_TOO and getattr(args, name) is not None
    ]
    if wrong:
        raise ValueError(f"--{wrong[0]}: is no flag of bench {args.what}; leave it out")
    if tree:
        return bench_tree.run(args)
    words = _handed_on(args)
    if args.table is None:
        return _measure(words + (["--json"] if args.json else []))
    if words:
        raise ValueError(f"--table: shows what was recorded and measures nothing; leave out {words[0]}")
    rows, origin = _read(args.table)
    if args.json:
        print(json.dumps({"provenance": origin, "rows": rows}, indent=2))
    else:
        print(_text(rows, origin))
    return 0


# --- helpers ----------------------------------------------------------------------------------------------


def _handed_on(args: argparse.Namespace) -> list[str]:
    words: list[str] = []
    for name in (*LISTS, *VALUES):
        given = getattr(args, name)
        if given is not None:
            words += [f"--{name}", *([given] if isinstance(given, str) else given)]
    return words


def _measure(words: list[str]) -> int:
    if find_spec("torch") is None:
        raise ValueError(
            "bench kernels: needs torch, which is not installed; pip install 'depthchart[kernels]'"
        )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    sys.stdout.flush()
    argv = [sys.executable, "-m", "depthchart_kernels.bench", *words]
    return subprocess.run(argv, env=env, check=False).returncode


def _read(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows with numbers as numbers, and what all rows have in common: their origin."""
    from depthchart.datafiles import data_path

    path = Path(name) if name else data_path(RECORDED)
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as fault:
        raise ValueError(f"--table {name}: {fault}") from fault
    newer = {"times_peer", "peers"}  # tables without peers may lack them
    missing = [
        column
        for column in (*_COLUMNS, *_ORIGIN)
        if column not in newer and (not rows or column not in rows[0])
    ]
    if missing:
        raise ValueError(
            f"--table {name}: lacks the columns {', '.join(missing)}; give a table that bench kernels --out wrote"
        )
    origin = {column: _value(rows[0].get(column, "")) for column in _ORIGIN}
    return [{key: _value(text) for key, text in row.items() if key not in _ORIGIN} for row in rows], origin


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def _text(rows: list[dict[str, Any]], origin: dict[str, Any]) -> str:
    shown: list[tuple[object, ...]] = [tuple(heading for heading, _ in _COLUMNS.values())]
    shown += [tuple(_cell(row, column) for column in _COLUMNS) for row in rows]
    facts = ", ".join(f"{name} {value}" for name, value in origin.items() if name != "command")
    return f"{table_text(shown, numeric=range(2, len(_COLUMNS)))}\n\n{facts}\n{origin['command']}"


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    return _COLUMNS[column][1].format(1e3 * value if column == "best_s" else value)
