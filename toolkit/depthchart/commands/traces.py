"""``depthchart traces``: look at a trace, convert it, make a synthetic one."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

from depthchart.commands.flags import add_verb

NAME = "traces"
HELP = "describe, convert or make request traces"
_EXAMPLES = """examples:
  depthchart traces describe agentic --figure agentic.png
  depthchart traces convert conversation_trace.jsonl.gz conversation.parquet
  depthchart traces make rag --seed 3 --set requests=500 --out rag.jsonl.gz"""


def add_parser(subparsers: Any) -> None:
    """Add ``traces`` with its verbs describe, convert and make."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    verbs = parser.add_subparsers(dest="traces_verb", metavar="WHAT", required=True)

    look = verbs.add_parser("describe", help="lengths, arrivals and ideal reuse")
    _add_input(look)
    look.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    look.add_argument("--figure", metavar="FILE", help="also draw it: .png, .svg or .pdf")

    convert = verbs.add_parser("convert", help="write any readable trace in the neutral format")
    _add_input(convert)
    convert.add_argument("out", help="a .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet file")

    make = verbs.add_parser("make", help="write a synthetic trace")
    make.add_argument("name", help="agentic, chat, rag, few_shot or random")
    make.add_argument("--seed", type=int, default=0)
    make.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a generator's parameter"
    )
    make.add_argument("--out", help="file to write (default: NAME-SEED.jsonl.gz)")


def run(args: argparse.Namespace) -> int:
    """Do what is asked and answer 0; ValueError where the call or the file is at fault."""
    try:
        return {"describe": _describe, "convert": _convert, "make": _make}[args.traces_verb](args)
    except BrokenPipeError:
        raise
    except OSError as fault:
        raise ValueError(str(fault)) from fault


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a trace file or folder, or the name of a bundled trace")
    parser.add_argument("--format", help="do not look, take this format")
    parser.add_argument("--strict", action="store_true", help="stop at the first damaged line")
    parser.add_argument("--limit", type=int, help="read only this many requests")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the format's reader"
    )


def _load(args: argparse.Namespace) -> Any:
    from depthchart.traces import load_trace
    from depthchart.traces.lines import DamageLog

    log = DamageLog(args.strict)
    trace = load_trace(args.path, format=args.format, limit=args.limit, log=log, **_settings(args.option))
    for damage in log.damages[:20]:
        print(f"damaged line {damage.line}: {damage.reason}", file=sys.stderr)
    if log.count:
        print(f"{log.count} damaged lines left out", file=sys.stderr)
    return trace


def _describe(args: argparse.Namespace) -> int:
    from depthchart.traces import describe

    summary = describe(_load(args))
    if args.figure:
        summary.figure().savefig(args.figure, dpi=150)
    if args.json:
        found = {**summary.trace.describe(), "notes": list(summary.trace.notes)}
        print(json.dumps({**found, "reuse": summary.reuse.to_dict("records")}, default=str))
    else:
        print(summary)
    return 0


def _convert(args: argparse.Namespace) -> int:
    from depthchart.traces.formats import save_trace

    trace = _load(args)
    print(f"{save_trace(trace, Path(args.out))}: {trace}")
    return 0


def _make(args: argparse.Namespace) -> int:
    from depthchart.traces import make
    from depthchart.traces.formats import save_trace

    trace = make(args.name, args.seed, **_settings(args.set))
    out = Path(args.out or f"{args.name}-{args.seed}.jsonl.gz")
    print(f"{save_trace(trace, out)}: {trace}")
    return 0


def _settings(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; a value is a Python literal (number, True, (2, 5)) or else plain text."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise ValueError(f"{pair!r} must have the form KEY=VALUE")
        try:
            out[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            out[key] = value
    return out
