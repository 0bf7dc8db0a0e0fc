"""``depthchart check``: the grids of a geometry or of an engine's launch line, and what they cost."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, fields
from typing import Any

from depthchart.commands.flags import add_geometry, add_verb, given_geometry
from depthchart.depth import RULES
from depthchart.display import geometry_text, table_text
from depthchart.geometry import Advice, Geometry
from depthchart.launch import Launch, LaunchError, parse_launch

NAME = "check"
HELP = "show the grids that launch flags give, and what is lost or breaks"
TAKES_LINE = True

_GRIDS = ("tree_page", "cache_chunk", "checkpoint_grid", "track_grid")
_EXAMPLES = """examples:
  depthchart check --page-size 64 --dcp-size 8 --chunk-width 64
  depthchart check -- python -m sglang.launch_server --page-size 64 --dcp-size 8
  depthchart check --json -- "vllm serve MODEL --block-size 528"

exit code: 0 fine (reuse may still be lost), 1 something breaks, 2 the call is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(
        subparsers, NAME, HELP, _EXAMPLES, usage="depthchart check [options] [-- ENGINE LAUNCH LINE]"
    )
    add_geometry(parser)
    parser.add_argument("--rule", metavar="NAME", help="depth rule to judge by (default: the engine's own)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 where the geometry is illegal or something breaks, else 0."""
    given = given_geometry(args)
    if args.rule is not None:
        RULES[args.rule]  # an unknown rule is a wrong call, also where the geometry is illegal
    if args.line is None and "page_size" not in given:
        raise ValueError("page_size: is missing; give --page-size N, or an engine's launch line after --")
    try:
        launch = None if args.line is None else parse_launch(args.line, given)
        geometry = Geometry(**given) if launch is None else launch.geometry
    except LaunchError:
        raise
    except ValueError as error:
        return _illegal(str(error), args.json)
    rule = args.rule or (launch.rule if launch else None)
    advice = geometry.advice(rule)
    ok = not any(remark.severity == "breaks" for remark in [*advice, *(launch.notes if launch else ())])
    show = _json if args.json else _text
    print(show(geometry, rule, launch, advice, ok))
    return 0 if ok else 1


def _illegal(message: str, as_json: bool) -> int:
    if as_json:
        nothing: dict[str, object] = {
            "geometry": None,
            "grids": None,
            "advice": [],
            "engine": None,
            "rule": None,
        }
        print(
            json.dumps({**nothing, "minimum_reusable_prefix": None, "ok": False, "error": message}, indent=2)
        )
    else:
        print(f"depthchart: error: {message}", file=sys.stderr)
    return 1


def _json(geometry: Geometry, rule: str | None, launch: Launch | None, advice: list[Advice], ok: bool) -> str:
    engine = None
    if launch is not None:
        settings = [setting._asdict() for setting in launch.settings]
        engine = {
            "name": launch.engine,
            "settings": settings,
            "notes": [asdict(note) for note in launch.notes],
        }
    answer = {
        "geometry": {field.name: getattr(geometry, field.name) for field in fields(geometry)},
        "grids": {name: getattr(geometry, name) for name in _GRIDS},
        "advice": [asdict(remark) for remark in advice],
        "engine": engine,
        "rule": rule,
        "minimum_reusable_prefix": geometry.shortest_reusable(rule),
        "ok": ok,
        "error": None,
    }
    return json.dumps(answer, indent=2)


def _text(geometry: Geometry, rule: str | None, launch: Launch | None, advice: list[Advice], ok: bool) -> str:
    parts = [geometry_text(geometry)]
    remarks = list(advice)
    if launch is not None:
        rows = [("setting", "value", "from"), *launch.settings]
        parts.insert(0, f"engine: {launch.engine}\n\n{table_text(rows, numeric=(1,))}")
        remarks = [*launch.notes, *advice]
    order = ("breaks", "costs", "note")
    remarks.sort(key=lambda remark: order.index(remark.severity))
    parts.append("\n".join(f"{remark.severity + ':':<8}{remark.text}" for remark in remarks))
    parts.append(
        f"rule: {rule or 'none given; judged for an absolute rule'}\n"
        f"minimum reusable prefix: {geometry.shortest_reusable(rule)} tokens\n"
        f"verdict: {'nothing breaks' if ok else 'BREAKS'}"
    )
    return "\n\n".join(parts)
