"""``depthchart simulate``: a trace through scheduler and cache."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthchart.cache.eviction import ORDERS
from depthchart.cache.states import STATE_POLICIES
from depthchart.commands.flags import add_geometry, add_verb, geometry_of
from depthchart.display import table_text
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.scheduler.queue import QUEUE_POLICIES

NAME = "simulate"
HELP = "run a trace through scheduler and cache and report reuse and faults"
_EXAMPLES = """examples:
  depthchart simulate agentic --page-size 64 --dcp-size 8 --kv-tokens 65536 --state-slots 48
  depthchart simulate agentic --preset vllm-align --page-size 528 --chunk-width 16 --state-slots 256
  depthchart simulate my-trace.jsonl.gz --rule prefix_relative --no-strict --out run/

exit code: 0 sound, 1 an invariant broke, 2 the call or the trace is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "trace", nargs="?", default="agentic", help="a trace file, or a bundled trace (default: agentic)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read only so many requests")
    add_geometry(parser, page_size=64)
    parser.add_argument("--rule", metavar="NAME", help="depth rule (default: absolute, or the preset's)")
    parser.add_argument(
        "--preset", metavar="NAME", help=f"an engine's whole bundle: {', '.join(PRESETS)}, sglang@DATE"
    )
    parser.add_argument(
        "--kv-tokens", type=int, default=262_144, metavar="N", help="KV pool [tokens] (default: 262144)"
    )
    parser.add_argument(
        "--state-slots", type=int, default=128, metavar="N", help="state pool [slots] (default: 128)"
    )
    parser.add_argument(
        "--policy", default="fcfs", help=f"queue policy: {', '.join(QUEUE_POLICIES)} (default: fcfs)"
    )
    parser.add_argument("--eviction", help=f"order of KV eviction: {', '.join(ORDERS)} (default: lru)")
    parser.add_argument(
        "--state-eviction", help=f"order of state eviction: {', '.join(STATE_POLICIES)} (default: lru)"
    )
    parser.add_argument("--mixed", action="store_true", help="decode rows share steps with prefill rows")
    parser.add_argument("--arrivals", default="causal", help="causal, trace or closed (default: causal)")
    parser.add_argument("--seed", type=int, default=0, help="of the random queue policy (default: 0)")
    parser.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stop at the first broken invariant",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--out", metavar="DIR", help="also write requests, steps, events, nodes and checkpoints as CSV"
    )


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 1 where an invariant broke."""
    from depthchart.simulate import simulate
    from depthchart.traces import load_trace

    geometry = geometry_of(args)
    try:
        trace = load_trace(args.trace, limit=args.limit)
    except OSError as fault:
        raise ValueError(str(fault)) from fault
    names = ("policy", "mixed", "arrivals", "seed", "strict")
    result = simulate(
        trace,
        geometry,
        **_bundle(args, geometry),
        **{name: getattr(args, name) for name in names},
        progress=sys.stderr.isatty(),
    )
    summary = result.summary()
    if args.out:
        _write(result, Path(args.out))
    if args.json:
        facts = {
            "geometry": asdict(geometry),
            "settings": dict(result.settings),
            "assumptions": result.assumptions,
        }
        print(json.dumps({**facts, "provenance": dict(result.provenance), "summary": summary}, indent=2))
    else:
        rows = [("what", "value"), *((name, _shown(value)) for name, value in summary.items())]
        print(f"{result!r}\n\n{table_text(rows)}\n\n{result.assumptions}")
    return int(bool(summary["violations"] or result.violations))


def _bundle(args: argparse.Namespace, geometry: Geometry) -> dict[str, Any]:
    """Rule, pools and policies: the preset's, with what was given beside it on top."""
    settings: dict[str, Any] = {"kv_tokens": args.kv_tokens, "state_slots": args.state_slots}
    if args.preset is not None:
        settings = preset(args.preset).apply(geometry, args.kv_tokens, args.state_slots).settings
    given = {name: getattr(args, name) for name in ("rule", "eviction", "state_eviction")}
    return {**settings, **{name: value for name, value in given.items() if value is not None}}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str("none" if value is None else value)


def _write(result: Any, folder: Path) -> None:
    from depthchart.files import whole_file, write_text

    frames = {name: getattr(result, name) for name in ("requests", "steps", "events", "checkpoints")}
    for name, frame in {**frames, "nodes": result.nodes()}.items():
        with whole_file(folder / f"{name}.csv") as draft:
            frame.to_csv(draft, index=False)
    facts = {
        "geometry": asdict(result.geometry),
        "settings": dict(result.settings),
        "provenance": dict(result.provenance),
    }
    write_text(folder / "run.json", json.dumps(facts, indent=2) + "\n")
    print(f"wrote {folder}", file=sys.stderr)
