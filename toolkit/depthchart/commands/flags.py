"""Flags that several verbs share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from depthchart.geometry import Geometry

if TYPE_CHECKING:
    from depthchart.run import Run

__all__ = [
    "GEOMETRY_FLAGS",
    "add_geometry",
    "add_simulation",
    "add_verb",
    "geometry_of",
    "given_geometry",
    "simulation_of",
]

GEOMETRY_FLAGS = {
    "page_size": "scheduler page [tokens]",
    "dcp_size": "decode-context-parallel ranks",
    "chunk_width": "chunk of the scan kernel [tokens]",
    "index_pool": "further factor on the tree page",
    "chunked_prefill_size": "token budget of one prefill step",
    "track_interval": "decode checkpoints are asked for every so many tokens",
}


def add_verb(
    subparsers: Any, name: str, text: str, examples: str = "", **options: Any
) -> argparse.ArgumentParser:
    """Add a verb's own parser; ``examples`` are shown below its help as they are written."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text,
        description=text,
        epilog=examples or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    return parser


def add_geometry(parser: argparse.ArgumentParser, *, page_size: int | None = None) -> None:
    """Add one flag per field of Geometry; ``page_size`` is its default where it need not be given."""
    for name, text in GEOMETRY_FLAGS.items():
        default = page_size if name == "page_size" else None
        note = f" (default: {default})" if default is not None else ""
        parser.add_argument(
            "--" + name.replace("_", "-"), type=int, metavar="N", default=default, help=text + note
        )


def given_geometry(args: argparse.Namespace) -> dict[str, int]:
    """The fields that were given. Raises ValueError for a missing page size through Geometry itself."""
    return {name: getattr(args, name) for name in GEOMETRY_FLAGS if getattr(args, name) is not None}


def geometry_of(args: argparse.Namespace) -> Geometry:
    """The Geometry of the flags; raises ValueError where it is illegal or the page size is missing."""
    given = given_geometry(args)
    if "page_size" not in given:
        raise ValueError("page_size: is missing; give --page-size N")
    return Geometry(**given)


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a simulated run, all with defaults."""
    from depthchart.cache.eviction import POLICIES
    from depthchart.scheduler.queue import QUEUE_POLICIES

    add = parser.add_argument
    add("--limit", type=int, metavar="N", help="read only so many requests")
    add_geometry(parser, page_size=64)
    add("--rule", default="absolute", metavar="NAME", help="depth rule (default: absolute)")
    add("--kv-tokens", type=int, default=262_144, metavar="N", help="KV pool [tokens] (default: 262144)")
    add("--state-slots", type=int, default=128, metavar="N", help="state pool [slots] (default: 128)")
    add("--policy", default="fcfs", help=f"queue policy: {', '.join(QUEUE_POLICIES)} (default: fcfs)")
    add("--eviction", default="lru", help=f"order of eviction: {', '.join(POLICIES)} (default: lru)")
    add("--mixed", action="store_true", help="decode rows share steps with prefill rows")
    add("--arrivals", default="causal", help="causal, trace or closed (default: causal)")
    add("--seed", type=int, default=0, help="of the random queue policy (default: 0)")
    strict = argparse.BooleanOptionalAction
    add("--strict", action=strict, default=True, help="stop at the first broken invariant")


def simulation_of(args: argparse.Namespace, trace: str, *, progress: bool = False) -> Run:
    """Run a trace (a file, or a bundled one by name) as the flags of ``add_simulation`` say.

    Raises ValueError for settings that cannot work and for a trace that cannot be read.
    """
    from depthchart.simulate import simulate
    from depthchart.traces import load_trace

    geometry = geometry_of(args)
    try:
        loaded = load_trace(trace, limit=args.limit)
    except OSError as fault:
        raise ValueError(str(fault)) from fault
    names = ("kv_tokens", "state_slots", "policy", "eviction", "mixed", "arrivals", "seed", "strict")
    given = {name: getattr(args, name) for name in names}
    return simulate(loaded, geometry, args.rule, **given, progress=progress)
