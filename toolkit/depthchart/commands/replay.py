"""``depthchart replay``: a lifecycle script on the real cache, told step by step."""

from __future__ import annotations

import argparse
import json
from typing import Any

from depthchart.cases.expect import mismatches
from depthchart.cases.script import find_script, script_names
from depthchart.cases.story import tell, verdict
from depthchart.commands.flags import add_verb

NAME = "replay"
HELP = "run a lifecycle script on the real cache and tell what happened"
_EXAMPLES = """examples:
  depthchart replay --list
  depthchart replay sglang-39115 --rule prefix_relative
  depthchart replay sglang-39115 --rule prefix_relative --no-strict
  depthchart replay my-script.json --json

The format is described in docs/replay.md.
exit code: 0 sound, or all that the script expects came out; 1 an invariant broke, or an expectation did not
hold; 2 the call or the script is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "script", nargs="?", help="a JSON file, or a bundled script by its name or the beginning of it"
    )
    parser.add_argument("--rule", metavar="NAME", help="under this depth rule instead of the script's")
    parser.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="stop at a broken invariant, or only note it",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--list", action="store_true", help="list the bundled scripts")


def run(args: argparse.Namespace) -> int:
    """Replay and print; see the exit codes above."""
    if args.list:
        print("\n".join(script_names()))
        return 0
    if args.script is None:
        raise ValueError(f"script: is missing; give a JSON file or one of {', '.join(script_names())}")
    script = find_script(args.script).under(rule=args.rule, strict=args.strict)
    lines, result = tell(script)
    missed = mismatches(result, script.expect)
    faulty = bool(result["error"] or result["violations"])
    if args.json:
        print(json.dumps({**result, "mismatches": missed}, indent=2))
    else:
        print("\n".join([*lines, f"verdict: {verdict(result, bool(script.expect), missed)}"]))
    return int(bool(missed) if script.expect else faulty)
