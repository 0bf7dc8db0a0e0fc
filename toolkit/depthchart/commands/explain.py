"""``depthchart explain``: why nothing, or little, was reused, and which change recovers most."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart.commands.flags import add_geometry, add_verb, given_geometry
from depthchart.display import table_text
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset

if TYPE_CHECKING:
    from depthchart.explain import Explanation, Trial
    from depthchart.traces import Trace

NAME = "explain"
HELP = "account for every prompt token that was computed again, and try what would recover most"
_EXAMPLES = """examples:
  depthchart explain agentic --engine vllm-align --block-size 528 --chunk-width 16
  depthchart explain mooncake.jsonl.gz --limit 2000 --engine sglang --page-size 64 --dcp-size 8 --state-slots 48
  depthchart explain agentic --request s0003-012 --json
  depthchart explain agentic --request s0003-012 --against s0003-011

Requests are served one at a time in the order of the trace; --concurrent runs them through the step loop.
exit code: 0 fine, 2 the call or the trace is wrong"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "trace", nargs="?", default="agentic", help="a trace file, or a bundled trace (default: agentic)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read only so many requests")
    parser.add_argument("--request", metavar="ID", help="tell the story of this one request")
    parser.add_argument(
        "--engine",
        "--preset",
        dest="engine",
        default="sglang",
        metavar="NAME",
        help=f"bundle (default: sglang): {', '.join(PRESETS)}, sglang@DATE",
    )
    parser.add_argument(
        "--against",
        metavar="ID",
        help="with --request: where the two part, and which of this one's checkpoints serves",
    )
    add_geometry(parser, page_size=64)
    parser.add_argument("--block-size", type=int, metavar="N", help="vLLM's word for the page size")
    parser.add_argument(
        "--kv-tokens", type=int, default=262_144, metavar="N", help="KV pool [tokens] (default: 262144)"
    )
    parser.add_argument(
        "--state-slots", type=int, default=128, metavar="N", help="state pool [slots] (default: 128)"
    )
    parser.add_argument(
        "--concurrent", action="store_true", help="with overlapping requests, through the step loop"
    )
    parser.add_argument(
        "--worst", type=int, default=5, metavar="N", help="show so many of the worst (default: 5)"
    )
    parser.add_argument(
        "--changes",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="try changes of flags, bundle and memory (default: yes, but not with --request)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--out", metavar="DIR", help="also write explain.png, and requests.csv with one row each"
    )


def run(args: argparse.Namespace) -> int:
    """Account, try, print."""
    from depthchart.explain import explain, try_changes
    from depthchart.traces import load_trace

    geometry = _geometry(args)
    setup = preset(args.engine).apply(geometry, args.kv_tokens, args.state_slots)
    try:
        trace = load_trace(args.trace, limit=args.limit)
    except OSError as fault:
        raise ValueError(str(fault)) from fault
    if args.against is not None:
        return _meet(trace, geometry, setup.settings, args)
    made = explain(trace, geometry, **setup.settings, concurrent=args.concurrent)
    if args.request is not None:
        made.account(args.request)  # the error comes before the work
    trials: list[Trial] = []
    if args.changes if args.changes is not None else args.request is None:
        pools = {"kv_tokens": args.kv_tokens, "state_slots": args.state_slots}
        with _bar() as bar:
            trials = try_changes(trace, geometry, args.engine, **pools, advance=bar.update)
    print(
        json.dumps(_facts(made, trials, args), indent=2)
        if args.json
        else _text(made, trials, args, str(trace))
    )
    if args.out:
        _write(made, Path(args.out), f"{trace.name} ({trace.source}), {args.engine}")
    return 0


def _meet(trace: Trace, geometry: Geometry, settings: dict[str, Any], args: argparse.Namespace) -> int:
    """Two requests alone."""
    from depthchart.explain import meeting

    if args.request is None:
        raise ValueError("request: is missing; --against compares it with --request ID")
    met = meeting(trace, args.against, args.request, geometry, **settings)
    if args.json:
        print(json.dumps({**met._asdict(), "account": asdict(met.account)}, indent=2))
        return 0
    depths = ", ".join(f"{depth:,}" for depth in met.depths) or "nowhere"
    first, *rest = met.account.story(geometry)
    words = (
        f"{args.against} and {args.request} part after {met.shared_tokens:,} tokens",
        f"{args.engine} on {geometry} leaves states of {args.against} at: {depths}",
        "\n  ".join([first, *rest]),
    )
    print("\n\n".join(words))
    return 0


def _geometry(args: argparse.Namespace) -> Geometry:
    given = given_geometry(args)
    if args.block_size is not None:
        given["page_size"] = args.block_size
    return Geometry(**given)


def _facts(made: Explanation, trials: list[Trial], args: argparse.Namespace) -> dict[str, Any]:
    from depthchart.provenance import provenance

    chosen = [made.account(args.request)] if args.request is not None else made.worst(args.worst)
    return {
        "engine": args.engine,
        "geometry": asdict(made.geometry),
        "settings": {**made.settings, "rule": str(made.settings["rule"])},
        **made.facts(),
        "shown": [{**asdict(one), "story": one.story(made.geometry)} for one in chosen],
        "changes": [trial._asdict() for trial in trials],
        "provenance": provenance(),
    }


def _text(made: Explanation, trials: list[Trial], args: argparse.Namespace, trace: str) -> str:
    if args.request is not None:
        first, *rest = made.account(args.request).story(made.geometry)
        words = ["\n  ".join([first, *rest])]
    else:
        facts = made.facts()
        words = [
            f"{trace}\n{args.engine} on {made.geometry}; {args.kv_tokens:,} KV tokens, {args.state_slots:,} states",
            table_text(made.rows(), numeric=(1, 2)),
            f"KV matched {facts['kv_tokens']:,} (H), reused {facts['reused_tokens']:,} (C), found and thrown away "
            f"{facts['kv_tokens'] - facts['reused_tokens']:,}; possible on this tree page {facts['possible_tokens']:,}, "
            f"at any depth {facts['seen_tokens']:,}",
        ]
        worst = made.worst(args.worst)
        if worst:
            words.append("worst:")
        words += ["\n  ".join(one.story(made.geometry)) for one in worst]
    if trials:
        words.append(_trial_words(trials))
    return "\n\n".join(words)


def _trial_words(trials: list[Trial]) -> str:
    head = ("change, tried one at a time", "kind", "recovers", "reused tokens")
    rows = [(t.change, t.kind, f"{t.recovered_tokens:+,}", f"{t.reused_tokens:,}") for t in trials[:12]]
    flags = [t for t in trials if t.kind == "flag" and t.recovered_tokens > 0]
    if flags:
        said = f"cheapest change of flags that recovers most: {flags[0].change} (+{flags[0].recovered_tokens:,} tokens)"
    else:
        said = "no change of flags that was tried recovers anything"
    return f"{table_text([head, *rows], numeric=(2, 3))}\n\n{said}"


def _write(made: Explanation, folder: Path, title: str) -> None:
    import pandas as pd

    from depthchart.charts.reasons import reasons_chart
    from depthchart.charts.style import to_png
    from depthchart.explain import REASONS
    from depthchart.files import whole_file, write_whole

    rows = [
        {
            **{name: value for name, value in asdict(one).items() if name != "reasons"},
            **{name: one.reasons.get(name, 0) for name in REASONS},
        }
        for one in made.requests
    ]
    frame = pd.DataFrame(rows)
    with whole_file(folder / "requests.csv") as draft:
        frame.to_csv(draft, index=False)
    write_whole(folder / "explain.png", to_png(reasons_chart(frame, REASONS, title=title), dpi=150))
    print(f"wrote {folder}", file=sys.stderr)


def _bar() -> Any:
    from tqdm import tqdm

    return tqdm(unit="request", disable=not sys.stderr.isatty(), leave=False)
