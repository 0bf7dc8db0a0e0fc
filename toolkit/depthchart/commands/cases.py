"""``depthchart cases``: the catalogue of public bugs, and a matrix of cases and rules."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from depthchart.cases.catalogue import Case, catalogue, find_case
from depthchart.cases.outcome import Outcome, matrix
from depthchart.commands.flags import add_verb
from depthchart.depth import RULES
from depthchart.display import table_text
from depthchart.presets import preset

NAME = "cases"
HELP = "list public cache bugs, or replay them under depth rules and engine bundles"
_EXAMPLES = """examples:
  depthchart cases
  depthchart cases run
  depthchart cases run sglang-39115 --rule prefix_relative --rule absolute
  depthchart cases run --preset vllm-align --preset sglang@2026-08-20
  depthchart cases run --json

outcomes: ok; wrong state (a state on a node of another depth); crash; leak; no reuse (sound, but less on offer than
the right answer); not run (no matter of a depth rule: the list says what it needs, or which test shows it)
exit code: 0 everything came out as the catalogue says, 1 something did not, 2 the call is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("what", nargs="?", choices=("list", "run"), default="list")
    parser.add_argument("id", nargs="*", help="these cases alone")
    parser.add_argument(
        "--rule", action="append", metavar="NAME", help="under this rule (may be repeated; default: all)"
    )
    parser.add_argument(
        "--preset",
        action="append",
        metavar="NAME",
        help="under this engine bundle (may be repeated; default: those that a case names)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """List or replay; see the exit codes above."""
    cases = [find_case(name) for name in args.id] or list(catalogue())
    if args.what == "list":
        _list(cases, args.json)
        return 0
    rules = [RULES[name].name for name in args.rule or ()]
    presets = [preset(name).name for name in args.preset or ()]
    found = matrix(cases, [*rules, *presets] or None)
    wrong = [text for case in cases for text in unexpected(case, found[case.id])]
    if args.json:
        rows = {case: {rule: one._asdict() for rule, one in row.items()} for case, row in found.items()}
        print(json.dumps({"outcomes": rows, "unexpected": wrong}, indent=1))
    else:
        _matrix(cases, found)
        print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return int(bool(wrong))


def unexpected(case: Case, row: dict[str, Outcome]) -> list[str]:
    """Where outcomes differ from what the catalogue expects, in words."""
    found = []
    for rule, expect in case.expect.items():
        if rule not in row:
            continue
        got = row[rule]
        if got.outcome != expect["outcome"]:
            found.append(
                f"{case.id} under {rule}: {got.outcome} ({got.why or got.values}), expected {expect['outcome']}"
            )
        elif "values" in expect and _plain(got.values) != expect["values"]:
            found.append(f"{case.id} under {rule}: {_plain(got.values)}, expected {expect['values']}")
    return found


def _plain(values: tuple[Any, ...]) -> list[Any]:
    return [list(value) if isinstance(value, tuple) else value for value in values]


def _list(cases: list[Case], as_json: bool) -> None:
    if as_json:
        keys = (
            "id",
            "title",
            "thread",
            "kind",
            "shows",
            "faulty",
            "right",
            "explanation",
            "needs",
            "presets",
            "covered_by",
        )
        print(json.dumps([{key: getattr(case, key) for key in keys} for case in cases], indent=1))
        return
    rows = [
        ("id", "kind", "shows the fault", "what happens"),
        *((c.id, c.kind, c.shows, c.title) for c in cases),
    ]
    print(table_text(rows))
    shown = [case for case in cases if case.covered_by]
    if shown:
        print("\nshown by the tests of the kernels:")
        print("\n".join(f"  {case.id}: {case.covered_by}" for case in shown))
    lacking = [case for case in cases if case.needs]
    if lacking:
        print("\nnot shown in full by this library:")
        print("\n".join(f"  {case.id}: {case.needs}" for case in lacking))
    if len(cases) == 1:
        case = cases[0]
        print(f"\n{case.thread}\n{case.explanation}\nfaulty: {case.faulty}\nright:  {case.right}")


def _matrix(cases: list[Case], found: dict[str, dict[str, Outcome]]) -> None:
    """Names that all cases ran under are columns; the presets of single cases share the last one."""
    names = [name for name in found[cases[0].id] if all(name in row for row in found.values())]
    rows = [["case", *names]]
    for case in cases:
        own = [f"{name}: {one.outcome}" for name, one in found[case.id].items() if name not in names]
        rows.append([case.id, *(found[case.id][name].outcome for name in names), "; ".join(own)])
    if any(row[-1] for row in rows[1:]):
        rows[0].append("its presets")
    else:
        rows[1:] = [row[:-1] for row in rows[1:]]
    print(table_text(rows))
    if len(cases) > 3:
        return
    for case in cases:
        print(f"\n{case.id}: {case.title} ({case.thread})\n  {case.explanation}\n  right: {case.right}")
        for name, one in found[case.id].items():
            values = f" {list(one.values)}" if one.values else ""
            print(f"  {name}: {one.outcome}{values}{': ' + one.why if one.why else ''}")
