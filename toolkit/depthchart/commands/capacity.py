"""``depthchart capacity``: what a device's memory caches of a model, and where its two pools balance."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from depthchart.capacity import (
    RUNNING_SLOTS,
    STATE_SHARE,
    Capacity,
    HostTier,
    capacity,
    host_tier,
    pool_bytes,
    splits,
)
from depthchart.commands.flags import add_geometry, add_verb, given_geometry
from depthchart.display import table_text
from depthchart.geometry import Geometry
from depthchart.hardware import HARDWARE
from depthchart.models import MODELS

NAME = "capacity"
HELP = (
    "KV tokens, state slots and minimum reusable prefix of a model on a device, and the balance of its pools"
)
_EXAMPLES = """examples:
  depthchart capacity --model qwen3.5-27b --hardware h200 --tp 2
  depthchart capacity --model kimi-linear-48b-a3b --gpu-bytes 141GB --tp 2 --dcp-size 2 --mean-context 65536 --out cap/
  depthchart capacity --model qwen3.5-9b --pool-bytes 20GiB --resume 200 --json

sizes: plain bytes, or with kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024)
exit code: 0 every checkpoint finds a slot, 1 they outnumber the slots, 2 the call is wrong"""

_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", 1)
    for unit, base in ((letter, 1000), (letter + "b", 1000), (letter + "ib", 1024), (letter + "i", 1024))
}


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("--model", required=True, metavar="NAME", help="see depthchart models")
    parser.add_argument("--hardware", metavar="NAME", help="device whose memory is meant, such as h200")
    parser.add_argument("--gpu-bytes", type=_size, metavar="SIZE", help="memory of one device")
    parser.add_argument(
        "--pool-bytes", type=_size, metavar="SIZE", help="memory of both pools on one rank, as it is"
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (default: 1)")
    parser.add_argument("--weight-dtype", default="bfloat16", help="of the weights (default: bfloat16)")
    parser.add_argument(
        "--memory-share",
        type=float,
        default=0.9,
        metavar="X",
        help="of the device, for weights and pools (default: 0.9)",
    )
    parser.add_argument(
        "--state-share",
        type=float,
        default=STATE_SHARE,
        metavar="X",
        help="of the pools (default: 0.474, ratio 0.9 : 1)",
    )
    parser.add_argument(
        "--mean-context",
        type=int,
        default=32_768,
        metavar="N",
        help="tokens of a running request (default: 32768)",
    )
    parser.add_argument(
        "--slots-per-request",
        type=int,
        default=RUNNING_SLOTS,
        metavar="N",
        help=f"states of a running request (default: {RUNNING_SLOTS}; SGLang: 4, with overlap 5)",
    )
    parser.add_argument("--rule", metavar="NAME", help="depth rule, for the minimum reusable prefix")
    parser.add_argument(
        "--resume", type=int, metavar="N", help="size a host tier to resume so many sequences"
    )
    add_geometry(parser, page_size=64)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", metavar="DIR", help="also write capacity.png and capacity.json")


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 where checkpoints outnumber the slots."""
    geometry = _geometry(args)
    if args.rule is not None:
        from depthchart.depth import RULES

        RULES[args.rule]
    made = capacity(
        args.model,
        geometry,
        _pool(args),
        tp=args.tp,
        state_share=args.state_share,
        mean_context=args.mean_context,
        slots_per_request=args.slots_per_request,
        rule=args.rule,
    )
    host = None if args.resume is None else host_tier(made, args.resume)
    facts = made.facts() | {"host": None if host is None else host._asdict()}
    print(json.dumps(facts, indent=2) if args.json else _text(made, host, geometry))
    if args.out:
        _write(made, geometry, facts, Path(args.out))
    return int(made.outnumbered)


def _geometry(args: argparse.Namespace) -> Geometry:
    """As given; the chunk is the model's own where none is named."""
    given = given_geometry(args)
    own = MODELS[args.model].chunk_width
    if "chunk_width" not in given and own:
        given["chunk_width"] = own
    return Geometry(**given)


def _pool(args: argparse.Namespace) -> float:
    if args.pool_bytes is not None:
        return float(args.pool_bytes)
    size = args.gpu_bytes
    if size is None and args.hardware is not None:
        size = HARDWARE[args.hardware].memory_bytes
    if size is None:
        raise ValueError("gpu_bytes: is missing; give --gpu-bytes SIZE, --hardware NAME or --pool-bytes SIZE")
    return pool_bytes(
        args.model, size, tp=args.tp, weight_dtype=args.weight_dtype, memory_share=args.memory_share
    )


def _size(word: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)", word.strip().lower())
    try:
        if match is None:
            raise ValueError
        size = float(match[1]) * int(_UNITS[match[2]])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"{word!r}: must be a size in bytes, such as 80GB or 74.5GiB"
        ) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{word!r}: must be above 0")
    return size


def _text(made: Capacity, host: HostTier | None, geometry: Geometry) -> str:
    split = f"{made.tp} ranks, {made.dcp} share a sequence's KV" if made.tp > 1 else "one rank"
    words = [f"{made.model} on {split}", str(geometry), table_text(made.rows(), numeric=(1,))]
    if made.outnumbered:
        words.append(
            "checkpoints outnumber the slots: states of early branch points are evicted while their KV is there, and a "
            "prompt that parts there starts anew (sglang#36935)"
        )
    if host is not None:
        words.append(table_text(_host_rows(host), numeric=(1, 2, 3)))
        words.append(
            f"as many bytes split in the device's ratio resume {host.split_sequences:,} of {host.sequences:,} sequences "
            "with all their checkpoints"
        )
    words += [f"{remark}" for remark in geometry.advice() if remark.code != "short-prompts"]
    return "\n\n".join(words)


def _host_rows(host: HostTier) -> list[tuple[Any, ...]]:
    return [
        (f"host tier for {host.sequences:,} sequences", "KV tokens", "state slots", "GB a rank"),
        (
            "the state at each end",
            f"{host.kv_tokens:,}",
            f"{host.leaf_slots:,}",
            f"{host.leaf_bytes / 1e9:,.1f}",
        ),
        (
            "a state a prefill step",
            f"{host.kv_tokens:,}",
            f"{host.all_slots:,}",
            f"{host.all_bytes / 1e9:,.1f}",
        ),
    ]


def _write(made: Capacity, geometry: Geometry, facts: dict[str, Any], folder: Path) -> None:
    import pandas as pd

    from depthchart.charts.capacity import capacity_chart
    from depthchart.charts.style import to_png
    from depthchart.files import write_text, write_whole
    from depthchart.provenance import provenance

    chart = capacity_chart(
        pd.DataFrame(splits(made, geometry)),
        share=made.state_share,
        balance=made.balance_share,
        title=f"{made.model}: {made.pool_bytes / 2**30:,.1f} GiB of caches on a rank, "
        f"{made.mean_context_tokens:,} tokens a request",
    )
    write_whole(folder / "capacity.png", to_png(chart, dpi=150))
    write_text(folder / "capacity.json", json.dumps({**facts, "provenance": provenance()}, indent=2) + "\n")
    print(f"wrote {folder}", file=sys.stderr)
