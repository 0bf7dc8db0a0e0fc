"""``depthchart simulate``: a trace through scheduler and cache."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthchart.commands.flags import add_verb
from depthchart.commands.simulation import add_simulation, simulation_of
from depthchart.display import table_text
from depthchart.run import Run

NAME = "simulate"
HELP = "run a trace through scheduler and cache and report reuse and faults"
_EXAMPLES = """examples:
  depthchart simulate agentic --page-size 64 --dcp-size 8 --kv-tokens 65536 --state-slots 48
  depthchart simulate agentic --preset vllm-align --page-size 528 --chunk-width 16 --state-slots 256
  depthchart simulate my-trace.jsonl.gz --rule prefix_relative --no-strict --out run/
  depthchart report run/ --out report.html

exit code: 0 sound, 1 an invariant broke, 2 the call or the trace is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "trace", nargs="?", default="agentic", help="a trace file, or a bundled trace (default: agentic)"
    )
    add_simulation(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", metavar="DIR", help="also write the run (for report), and its frames as CSV")


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 1 where an invariant broke."""
    if args.out and Path(args.out).exists() and not Path(args.out).is_dir():
        raise ValueError(f"out={args.out!r}: is a file; must be a folder, or a new name")
    result = simulation_of(args, args.trace, progress=sys.stderr.isatty())
    summary = result.summary()
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.out:
        _write(result, Path(args.out))
    if args.json:
        print(json.dumps(_facts(result), indent=2))
    else:
        rows = [("what", "value"), *((name, _shown(value)) for name, value in summary.items())]
        counts = table_text(
            [("count", "number"), *((k, f"{v:,}") for k, v in result.counters().items())], numeric=(1,)
        )
        parts = (repr(result), _resolved(result), table_text(rows), _hits(result), counts, result.assumptions)
        print("\n\n".join(parts))
    return int(bool(summary["violations"] or result.violations))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str("none" if value is None else value)


def _resolved(result: Run) -> str:
    """Geometry and policies as they were used, defaults and all."""
    grids = ("tree_page", "cache_chunk", "checkpoint_grid", "track_grid")
    given = {**asdict(result.geometry), **{name: getattr(result.geometry, name) for name in grids}}
    settings = {k: v for k, v in result.settings.items() if k not in ("trace", "requests", "rule")}
    return "\n".join(", ".join(f"{k}={v}" for k, v in facts.items()) for facts in (given, settings))


def _hits(result: Run) -> str:
    """The histogram of H, C and the gap between them, as text."""
    head = ("requests with so many tokens", "KV hit H", "reused C", "gap H - C")
    rows = [
        ("none" if not start else f"{start:,} to {stop - 1:,}", *counts)
        for start, stop, *counts in result.hits.itertuples(index=False)
    ]
    return table_text([head, *rows], numeric=(1, 2, 3))


def _facts(result: Run) -> dict[str, Any]:
    """All that is needed to believe and to repeat the run."""
    return {
        "geometry": asdict(result.geometry),
        "settings": dict(result.settings),
        "source": result.source,
        "notes": list(result.notes),
        "assumptions": result.assumptions,
        "provenance": dict(result.provenance),
        "summary": result.summary(),
        "counters": result.counters(),
        "hits": result.hits.to_dict("records"),
    }


def _write(result: Any, folder: Path) -> None:
    from depthchart.files import whole_file, write_text

    frames = {name: getattr(result, name) for name in ("requests", "hits", "steps", "events", "checkpoints")}
    for name, frame in {**frames, "nodes": result.nodes()}.items():
        with whole_file(folder / f"{name}.csv") as draft:
            frame.to_csv(draft, index=False)
    write_text(folder / "run.json", json.dumps(_facts(result), indent=2) + "\n")
    result.save(folder)
    print(f"wrote {folder}", file=sys.stderr)
