"""``depthchart export``: notebooks as HTML that opens offline, with what their widgets last showed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from depthchart.commands.flags import add_verb

NAME = "export"
HELP = "write notebooks as offline HTML, their widgets as they last were"
_EXAMPLES = """examples:
  depthchart export notebooks/10_time_travel.ipynb --out out/notebooks
  depthchart export notebooks/*.ipynb --execute --out out/notebooks

Save the notebook with its widget state first (Settings > Save Widget State Automatically), or let --execute run it.
exit code: 0 written, 2 the call or a notebook is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="files to write")
    parser.add_argument(
        "--out", default="out/notebooks", metavar="DIR", help="where to (default: out/notebooks)"
    )
    parser.add_argument(
        "--execute", action="store_true", help="run each notebook first; its file stays as it is"
    )


def run(args: argparse.Namespace) -> int:
    """Write each notebook and print where it lies."""
    from depthchart.static_widgets import export_notebook

    for name in args.notebooks:
        path = Path(args.out) / f"{Path(name).stem}.html"
        print(export_notebook(name, path, execute=args.execute), flush=True)
    return 0
