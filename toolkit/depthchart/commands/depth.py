"""``depthchart depth``: what the rules decide for one extend."""

from __future__ import annotations

import argparse
import json
from typing import Any

from depthchart.commands.flags import add_geometry, add_verb, geometry_of
from depthchart.depth import RULES, Rule
from depthchart.display import geometry_text, table_text
from depthchart.geometry import Geometry

NAME = "depth"
HELP = "show which checkpoint depth each rule chooses for one extend"
_EXAMPLES = """examples:
  depthchart depth --page-size 64 --dcp-size 8 --prefix 64 --end 604
  depthchart depth --page-size 64 --prefix 0 --end 700 --branch 256 --rule marconi --json"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    add_geometry(parser)
    parser.add_argument(
        "--prefix", type=int, default=0, metavar="N", help="tokens computed before the extend (default: 0)"
    )
    parser.add_argument("--end", type=int, required=True, metavar="N", help="tokens computed after it")
    parser.add_argument("--branch", type=int, metavar="N", help="branch depth, where the match has one")
    parser.add_argument(
        "--rule", action="append", metavar="NAME", help="this rule alone (may be repeated; default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the decisions; always 0 where the call makes sense."""
    geometry = geometry_of(args)
    rules = [RULES[name] for name in args.rule] if args.rule else list(RULES.values())
    rows = [_decide(chosen, geometry, args.prefix, args.end, args.branch) for chosen in rules]
    if args.json:
        asked = {"prefix": args.prefix, "end": args.end, "branch": args.branch}
        print(json.dumps({**asked, "tree_page": geometry.tree_page, "decisions": rows}, indent=2))
        return 0
    print(geometry_text(geometry), end="\n\n")
    head = ("rule", "depth [tokens]", "donates", "kernel stores", "node ends at", "why")
    keys = ("rule", "depth", "donate", "stored_depth", "node_end", "reason")
    cells = [
        [
            "-"
            if row[key] is None
            else {True: "yes", False: "no"}.get(row[key], row[key])
            if key == "donate"
            else row[key]
            for key in keys
        ]
        for row in rows
    ]
    print(table_text([head, *cells], numeric=(1, 3, 4)))
    wrong = [str(row["rule"]) for row in rows if row["donate"] and row["stored_depth"] != row["node_end"]]
    if wrong:
        print(f"\nThe state does not fit the node that can hold it under: {', '.join(wrong)}")
    return 0


def _decide(chosen: Rule, geometry: Geometry, prefix: int, end: int, branch: int | None) -> dict[str, Any]:
    answer = chosen(geometry, prefix, end, branch)
    donated = answer.depth is not None and answer.donate
    return {
        "rule": chosen.name,
        "depth": answer.depth,
        "donate": answer.donate,
        "also": list(answer.also),
        "stored_depth": chosen.stored_depth(geometry, prefix, end, answer.depth)
        if donated and answer.depth is not None
        else None,
        "node_end": answer.depth // geometry.tree_page * geometry.tree_page
        if donated and answer.depth is not None
        else None,
        "reason": answer.reason,
    }
