"""``depthchart leaderboard``: all engines' bundles and ours on one trace, beside the offline bound."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from depthchart.commands.flags import add_geometry, add_verb, geometry_of
from depthchart.display import table_text
from depthchart.presets import PRESETS

NAME = "leaderboard"
HELP = "rank engines' bundles and ours on a trace, beside what no cache could exceed"
_EXAMPLES = """examples:
  depthchart leaderboard agentic --kv-tokens 131072 --state-slots 48
  depthchart leaderboard mooncake.jsonl.gz --limit 2000 --page-size 512 --presets sglang,vllm-junction,depthchart --json

exit code: 0 our bundle reuses most, 1 it does not, 2 the call or the trace is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "trace", nargs="?", default="agentic", help="a trace file, or a bundled trace (default: agentic)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read only so many requests")
    add_geometry(parser, page_size=64)
    parser.add_argument(
        "--kv-tokens", type=int, default=262_144, metavar="N", help="KV pool [tokens] (default: 262144)"
    )
    parser.add_argument(
        "--state-slots", type=int, default=128, metavar="N", help="state pool [slots] (default: 128)"
    )
    parser.add_argument(
        "--presets", metavar="A,B", help=f"which ones (default: all): {', '.join(PRESETS)}, sglang@DATE"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Serve and print; 1 where an engine's bundle reuses as much as ours or more."""
    from depthchart.leaderboard import leaderboard
    from depthchart.traces import load_trace

    geometry = geometry_of(args)
    try:
        trace = load_trace(args.trace, limit=args.limit)
    except OSError as fault:
        raise ValueError(str(fault)) from fault
    names = args.presets.split(",") if args.presets else list(PRESETS)
    with _bar(len(trace) * len(names)) as bar:
        board = leaderboard(
            trace,
            geometry,
            kv_tokens=args.kv_tokens,
            state_slots=args.state_slots,
            presets=names,
            advance=bar.update,
        )
    if args.json:
        facts = {
            **asdict(board),
            "standings": [row._asdict() for row in board.standings],
            "geometry": asdict(geometry),
        }
        facts["bound"] |= {"least": board.bound.least, "binding": board.bound.binding}
        print(json.dumps({**facts, "ours_first": board.ours_first}, indent=2))
    else:
        b = board.bound
        print(f"{trace}\n{geometry}\n")
        print(table_text(board.rows(), numeric=(1, 2, 3, 4, 5)))
        print(
            f"\nno cache exceeds {b.least:,} tokens: {b.binding}"
            f"\n(unbounded {b.unbounded:,}; KV alone limited {b.kv:,}, exact; states alone {b.states:,}, upper bound)"
            f"\none request at a time, in the order of the trace; {args.kv_tokens:,} KV tokens and "
            f"{args.state_slots} states for all"
        )
    return int("depthchart" in names and not board.ours_first)


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="request", disable=not sys.stderr.isatty(), leave=False)
