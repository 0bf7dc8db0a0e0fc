"""The flags of a simulated run, and the run that they ask for: shared by the verbs that simulate."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from depthchart.cache.eviction import ORDERS
from depthchart.cache.states import STATE_POLICIES
from depthchart.commands.flags import add_geometry, geometry_of
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.scheduler.queue import QUEUE_POLICIES

if TYPE_CHECKING:
    from depthchart.run import Run

__all__ = ["add_simulation", "simulation_of"]


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a simulated run, all with defaults."""
    add = parser.add_argument
    add("--limit", type=int, metavar="N", help="read only so many requests")
    add_geometry(parser, page_size=64)
    add("--rule", metavar="NAME", help="depth rule (default: absolute, or the preset's)")
    add("--preset", metavar="NAME", help=f"an engine's whole bundle: {', '.join(PRESETS)}, sglang@DATE")
    add("--kv-tokens", type=int, default=262_144, metavar="N", help="KV pool [tokens] (default: 262144)")
    add("--state-slots", type=int, default=128, metavar="N", help="state pool [slots] (default: 128)")
    add(
        "--divided",
        action="store_true",
        help="with a preset of one joint pool: the pools are its two halves, as a run tells them, not the whole",
    )
    add("--policy", default="fcfs", help=f"queue policy: {', '.join(QUEUE_POLICIES)} (default: fcfs)")
    add("--eviction", help=f"order of KV eviction: {', '.join(ORDERS)} (default: lru)")
    add("--state-eviction", help=f"order of state eviction: {', '.join(STATE_POLICIES)} (default: lru)")
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
    names = ("policy", "mixed", "arrivals", "seed", "strict")
    given = {name: getattr(args, name) for name in names}
    return simulate(loaded, geometry, **_bundle(args, geometry), **given, progress=progress)


def _bundle(args: argparse.Namespace, geometry: Geometry) -> dict[str, Any]:
    """Rule, pools and policies: the preset's, with what was given beside it on top."""
    settings: dict[str, Any] = {"kv_tokens": args.kv_tokens, "state_slots": args.state_slots}
    if args.divided and (args.preset is None or not preset(args.preset).joint_pool):
        joint = ", ".join(name for name, bundle in PRESETS.items() if bundle.joint_pool)
        raise ValueError(f"divided: belongs to a preset of one joint pool; nearest legal: --preset {joint}")
    if args.preset is not None:
        pools = args.kv_tokens, args.state_slots
        settings = preset(args.preset).apply(geometry, *pools, divided=args.divided).settings
    given = {name: getattr(args, name) for name in ("rule", "eviction", "state_eviction")}
    return {**settings, **{name: value for name, value in given.items() if value is not None}}
