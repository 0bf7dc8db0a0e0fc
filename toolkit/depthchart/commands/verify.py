"""``depthchart verify``: search small histories exhaustively for what a depth rule or engine bundle breaks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from depthchart.cases.script import DECODE_GRIDS
from depthchart.commands.flags import add_verb
from depthchart.depth import RULES, Rule
from depthchart.errors import DepthchartError
from depthchart.files import whole_file
from depthchart.geometry import Geometry
from depthchart.presets import Preset, preset
from depthchart.verify import FAULTS, Bounds, Report, verify
from depthchart.verify.bounds import CUTS, POOLS, geometries
from depthchart.verify.fuzz import FuzzReport, fuzz

NAME = "verify"
HELP = "search small histories exhaustively for what a depth rule or an engine bundle breaks"
_EXAMPLES = """examples:
  depthchart verify --rule prefix_relative
  depthchart verify --rule prefix_relative --kind "shared page" --save bug.json --chart bug.svg
  depthchart verify --rule absolute --decode-grid interval
  depthchart verify --rule dcp_gated --dcp-size 1 --index-pool 2 --json
  depthchart verify --preset vllm-align --tokens 4
  depthchart replay bug.json
  depthchart verify --rule absolute --fuzz 1000000 --seed 1
  depthchart verify --preset vllm-all --fuzz 100000
  depthchart verify --preset sglang --fuzz 20000 --dcp-size 1 --index-pool 2

exit code: 0 nothing broke within the bounds; 1 something did, or the time ran out; 2 the call is wrong"""

_LISTS = {
    "page_size": "scheduler pages to try",
    "dcp_size": "DCP sizes to try",
    "chunk_width": "chunk widths to try",
    "index_pool": "index pools to try",
    "track_interval": "decode intervals to try",
    "chunked_prefill_size": "prefill budgets to try (default: one that covers all smaller ones)",
}
_COUNTS = {
    "tokens": "most tokens that a history computes",
    "steps": "most steps of a history",
    "requests": "most requests of a history",
    "together": "most requests that run at the same time",
    "tokens_together": "most tokens of a history in which several run at the same time",
    "evictions": "most evictions by name",
}

_FUZZ_GEOMETRY = {
    "page_size": (4,),
    "dcp_size": (1,),
    "chunk_width": (4,),
    "index_pool": (1,),
    "track_interval": (8,),
    "chunked_prefill_size": (32,),
}
"""What a random life takes for the lists that were not given, where some were."""
_SEARCH_ONLY = (*_COUNTS, "cuts", "pools", "kind", "every_kind", "max_seconds", "save", "chart")


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--rule", metavar="NAME", help="the depth rule to judge")
    subject.add_argument(
        "--preset",
        metavar="NAME",
        help="the engine bundle to judge: its rule, cuts, decode grid, eviction, refresh, matching and caps",
    )
    for name, text in _LISTS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=_numbers, metavar="N,N,…", help=text)
    for name, text in _COUNTS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=text)
    parser.add_argument("--cuts", choices=CUTS, help="what others leave a step: any budget, or whole pages")
    parser.add_argument("--pools", type=lambda text: tuple(text.split(",")), metavar=",".join(POOLS))
    parser.add_argument("--decode-grid", choices=DECODE_GRIDS, help="interval: as before sglang#35412")
    parser.add_argument(
        "--kind", action="append", metavar="FAULT", help=f"only this fault: {', '.join(FAULTS)}"
    )
    parser.add_argument("--every-kind", action="store_true", help="the smallest case of each kind of fault")
    parser.add_argument(
        "--scale", type=int, default=1, metavar="N", help="show counterexamples N times as long"
    )
    parser.add_argument("--max-seconds", type=float, metavar="S", help="give up after S seconds")
    parser.add_argument("--save", metavar="FILE.json", help="write the smallest counterexample as a script")
    parser.add_argument("--chart", metavar="FILE.svg", help="draw it")
    parser.add_argument(
        "--fuzz",
        type=int,
        metavar="STEPS",
        help="instead: random lives of so many steps, with faults; on geometries of their own, or the given ones in turn",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --fuzz (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Search and print; see the exit codes above."""
    if args.fuzz is not None:
        return _fuzz(args)
    names = (*_LISTS, *_COUNTS, "cuts", "pools", "decode_grid")
    bounds = Bounds(**{name: getattr(args, name) for name in names if getattr(args, name) is not None})
    report = verify(
        _subject(args),
        bounds,
        kinds=tuple(args.kind or FAULTS),
        every_kind=args.every_kind,
        max_seconds=args.max_seconds,
    )
    report = report.scaled(args.scale)
    _files(report, args.save, args.chart)
    print(json.dumps(report.as_dict(), indent=1) if args.json else str(report))
    return 0 if report.sound else 1


def _subject(args: argparse.Namespace) -> Rule | Preset:
    return preset(args.preset) if args.preset is not None else RULES[args.rule]


def _files(report: Report, save: str | None, chart: str | None) -> None:
    smallest = report.smallest
    if smallest is None:
        return
    if save is not None:
        smallest.save(save)
    if chart is not None:
        from depthchart.charts.checkpoint import checkpoint_chart

        figure = checkpoint_chart(*smallest.frames(), title=smallest.title)
        with whole_file(chart) as draft:
            figure.savefig(draft)


def _fuzz(args: argparse.Namespace) -> int:
    """Live and print; 1 with the message, the seed, the step and the geometry where an invariant broke."""
    wrong = next((name for name in _SEARCH_ONLY if getattr(args, name)), None)
    if wrong:
        flag = wrong.replace("_", "-")
        raise ValueError(
            f"--{flag}: belongs to the search; --fuzz takes geometries, --decode-grid, --seed and --json"
        )
    try:
        life = fuzz(_subject(args), args.fuzz, args.seed, _fuzz_geometries(args))
    except (DepthchartError, AssertionError) as error:
        _broke(args, error)
        return 1
    if args.json:
        print(json.dumps({"total": life.total, **vars(life)}, indent=1))
    else:
        print(_told(life))
    return 0


def _fuzz_geometries(args: argparse.Namespace) -> Sequence[Geometry] | None:
    """All combinations of the lists; None where no list was given."""
    given = {name: getattr(args, name) for name in _LISTS if getattr(args, name) is not None}
    if not given and args.decode_grid is None:
        return None
    found = list(geometries(Bounds(**{**_FUZZ_GEOMETRY, **given}, decode_grid=args.decode_grid or "lcm")))
    if not found:
        asked = {name: given.get(name, _FUZZ_GEOMETRY[name]) for name in ("page_size", "chunk_width")}
        words = ", ".join(f"{name}={','.join(map(str, values))}" for name, values in asked.items())
        raise ValueError(f"{words}: no legal geometry among these: one of the two must divide the other")
    return found


def _broke(args: argparse.Namespace, error: Exception) -> None:
    kind, where = type(error).__name__, "; ".join(getattr(error, "__notes__", ()))
    if args.json:
        broken = {"type": kind, "message": str(error), "where": where}
        print(
            json.dumps(
                {"rule": args.rule, "preset": args.preset, "seed": args.seed, "broken": broken}, indent=1
            )
        )
    else:
        print(f"broken: {kind}: {error}\n{where}\nthe same call meets it again")


def _told(life: FuzzReport) -> str:
    who = f"preset {life.preset} (rule {life.rule})" if life.preset else f"rule {life.rule}"
    counts = {"steps": life.steps, "refused": life.refused, "injected": life.injected}
    return "\n".join(
        (
            f"{who}, seed {life.seed}: {life.total:,} steps in {life.seconds:.0f} s",
            f"all books checked {life.checks:,} times",
            *(
                f"{name}: " + ", ".join(f"{key} {number:,}" for key, number in counter.most_common())
                for name, counter in counts.items()
            ),
            f"{life.lives} memories; {life.reused_tokens:,} tokens reused; lost at the end: {life.lost_pages} pages, "
            f"{life.lost_slots} state slots",
        )
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers, such as 1,2,4") from None
