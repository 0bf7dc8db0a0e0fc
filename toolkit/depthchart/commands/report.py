"""``depthchart report``: one or several runs as a file that opens anywhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart.commands.flags import add_verb
from depthchart.commands.simulation import add_simulation, simulation_of

if TYPE_CHECKING:
    from depthchart.run import Run

NAME = "report"
HELP = "write runs as one offline HTML file, or as a PDF"
_EXAMPLES = """examples:
  depthchart simulate agentic --dcp-size 8 --out runs/a
  depthchart report runs/a --out report.html
  depthchart report runs/a runs/b --out both.pdf --data figures/
  depthchart report my-trace.jsonl.gz --dcp-size 8 --rule page_exact --out report.html

A folder is a run that simulate --out wrote, or a sweep that sweep --out wrote. Anything else is a trace, which is
simulated first as the flags say (they are those of simulate, and say nothing to a folder).
exit code: 0 written, 2 the call, the trace or the folder is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR_OR_TRACE", help="folders of runs, or traces")
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write it")
    parser.add_argument("--format", choices=("html", "pdf"), help="default: as FILE ends, else html")
    parser.add_argument("--data", metavar="DIR", help="also write the data of every figure")
    parser.add_argument(
        "--data-format", choices=("csv", "parquet"), default="csv", help="of --data (default: csv)"
    )
    parser.add_argument("--title", help="above the report")
    add_simulation(parser)


def run(args: argparse.Namespace) -> int:
    """Load or simulate the runs, write the report and print where it lies."""
    from depthchart.report import report_runs

    advance = _progress if sys.stderr.isatty() else None
    if any((Path(name) / "sweep.json").is_file() for name in args.runs):
        from depthchart.report.sweeps import load_sweep_page

        if len(args.runs) > 1:
            raise ValueError(
                f"runs: {len(args.runs)} given, with a sweep among them; a sweep has a report of its own"
            )
        page = load_sweep_page(args.runs[0])
        path = page.write(
            args.out, format=args.format, data=args.data, data_format=args.data_format, advance=advance
        )
        print(f"report: {path.resolve()}")
        return 0
    runs = _labelled([(name, _load(name, args)) for name in args.runs])
    path = report_runs(
        runs,
        args.out,
        title=args.title,
        format=args.format,
        data=args.data,
        data_format=args.data_format,
        advance=advance,
    )
    print(f"report: {path.resolve()}")
    return 0


def _load(name: str, args: argparse.Namespace) -> Run:
    from depthchart.run import Run

    if Path(name).is_dir():
        return Run.load(name)
    return simulation_of(args, name, progress=sys.stderr.isatty())


def _labelled(loaded: list[tuple[str, Run]]) -> dict[str, Run]:
    """By rule where that tells them apart, else by rule and the name that was given, else numbered too."""
    labels = [str(run.settings["rule"]) for _, run in loaded]
    if len(set(labels)) < len(labels):
        labels = [
            f"{label}, {Path(name).name or name}" for label, (name, _) in zip(labels, loaded, strict=True)
        ]
    if len(set(labels)) < len(labels):
        labels = [f"{at}: {label}" for at, label in enumerate(labels, 1)]
    return {label: run for label, (_, run) in zip(labels, loaded, strict=True)}


def _progress(done: int, total: int) -> None:
    print(f"\rpicture {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
