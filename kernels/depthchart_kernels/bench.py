"""Measure the scans on this machine: `python -m depthchart_kernels.bench`.

First the machine's own ceilings (matmul rate, copy bandwidth), then every asked operator × width × length × batch ×
dtype × snapshots; all cases of one shape are interleaved, round by round. Prints a table and writes it as CSV.
Times are seconds of wall clock for one call; FLOPs and bytes are counted by formula (see `work`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor
from tqdm import tqdm

import depthchart_kernels as dk
from depthchart_kernels.checks import BACKENDS, WIDTHS
from depthchart_kernels.peers import PEERS, STEPS, installed, paths, peer_call
from depthchart_kernels.samples import random_inputs

__all__ = ["Case", "Ceilings", "Row", "bench", "ceilings", "main", "measure", "work"]

OPS = ("gated_delta", "kda", "ssd")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
AGREE = {"fp32": 1e-5, "bf16": 1e-2}  # largest difference over largest magnitude that a rival may show


@dataclass(frozen=True, slots=True)
class Case:
    """One measured call; delta rules have ``heads`` of K = V = 128, ssd twice as many of P = 64 with N = 128.

    ``decay``: a token's log decay goes down to about −``decay``, see `random_inputs`.
    """

    op: str
    impl: str
    chunk_width: int
    length: int
    batch: int
    dtype: str
    snapshots: int
    heads: int
    decay: float = 0.2


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine reaches: ``flops`` a second in a large matmul, ``bytes`` a second in a copy (read and write)."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Row:
    """A case's result; ``roofline_share`` is the least time that the ceilings allow over the best time measured.

    ``times_reference`` and ``times_peer``: how many times faster than the reference, and than the best peer path at
    its best width, measured in the same run.
    """

    median_s: float
    best_s: float
    spread_s: float
    tokens_per_s: float
    flops: float
    bytes: float
    roofline_share: float
    times_reference: float | None
    times_peer: float | None


def work(case: Case) -> tuple[float, float]:
    """FLOPs and bytes of a call with everything fused, 2 FLOPs a multiply-add; a step has no C × C part."""
    tokens, size = case.length * case.batch, DTYPES[case.dtype].itemsize
    width = 0 if case.impl == "reference" or case.impl.endswith(STEPS) else case.chunk_width
    k = v = 128
    flops: float
    if case.op == "ssd":
        heads, p, n = 2 * case.heads, 64, 128
        flops = heads * (4 * n * p + 2 * width * p) + 2 * width * n
        moved = heads * (2 * p * size + 4) + 2 * n * size
        state = heads * p * n
    else:
        flops = case.heads * (6 * k * v + width * (4 * k + 4 * v) + 2 / 3 * width**2)
        gate = 4 * k if case.op == "kda" else 4
        moved = case.heads * ((2 * k + 2 * v) * size + gate + 4)
        state = case.heads * k * v
    written = 4 * state * case.batch * (case.snapshots + 1)
    return float(flops * tokens), float(moved * tokens + written)


def ceilings(device: str) -> Ceilings:
    """Best of several matmuls (float32 on CPU, bfloat16 on CUDA) and of several copies."""
    kind, size = (torch.bfloat16, 8192) if device == "cuda" else (torch.float32, 2048)
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    source = torch.randn(1 << 26, device=device)
    target = torch.empty_like(source)
    multiply = min(_times(lambda: a @ b, 7, device))
    copy = min(_times(lambda: target.copy_(source), 7, device))
    return Ceilings(2 * size**3 / multiply, 2 * source.numel() * 4 / copy)


def _times(call: Callable[[], object], rounds: int, device: str) -> list[float]:
    call()
    return [_once(call, device) for _ in range(rounds)]


def _once(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def prepare(case: Case, device: str) -> Callable[[], Tensor]:
    """A call of the case on seeded inputs; the snapshots lie evenly, off every chunk grid."""
    tokens, kind = case.length * case.batch, DTYPES[case.dtype]
    every = case.length // max(case.snapshots, 1)
    listed = [
        (s, max(i * every - 5, 1), case.batch + s * case.snapshots + i - 1)
        for s in range(case.batch)
        for i in range(1, case.snapshots + 1)
    ]
    plan = dk.make_batch(
        [s * case.length for s in range(case.batch + 1)], final_slots=range(case.batch), snapshots=listed
    )
    slots = case.batch * (case.snapshots + 1)
    tensors = (
        random_inputs("ssd", tokens, 2 * case.heads, value_dim=64, decay=case.decay)
        if case.op == "ssd"
        else random_inputs(case.op, tokens, case.heads, decay=case.decay)
    )
    cast = {name: x.to(kind) if name in "qkvxbc" else x for name, x in tensors.items()}
    moved = [x.to(device) for x in cast.values()]
    shape = [2 * case.heads, 64, 128] if case.op == "ssd" else [case.heads, 128, 128]
    pool = torch.zeros(slots, *shape, device=device)
    if case.impl not in BACKENDS:
        return peer_call(
            case.impl, case.op, dict(zip(tensors, moved, strict=True)), case.batch, case.chunk_width
        )
    operator = getattr(dk, case.op)
    return lambda: operator(*moved, pool=pool, batch=plan, chunk_width=case.chunk_width, impl=case.impl)


def bench(
    cases: Sequence[Case],
    rounds: int,
    device: str,
    top: Ceilings,
    progress: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Case, Row]]:
    """Measure cases of equal shape together, interleaved.

    All outputs must equal those of the reference, or of the first case where the reference is not asked for.
    ``progress`` is called after each case's share of a round: ``len(cases) * (rounds + 1)`` times, the first is warm-up.
    """
    shapes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        same = (case.op, case.length, case.batch, case.dtype, case.heads, case.decay)
        shapes.setdefault(same, []).append(case)
    for group in shapes.values():
        calls = {case: prepare(case, device) for case in group}
        base = next((case for case in group if case.impl == "reference"), group[0])
        right = calls[base]()
        times: dict[Case, list[float]] = {case: [] for case in group}
        for case, call in calls.items():
            _check(case, call(), right)  # warms up, too
            progress()
        for n in range(rounds):
            for case, call in calls.items():
                if case.impl != "reference" or n < 2:
                    times[case].append(_once(call, device))
                progress()
        best = {case: min(measured) for case, measured in times.items()}
        reference = min((t for case, t in best.items() if case.impl == "reference"), default=None)
        peer = min((t for case, t in best.items() if case.impl not in BACKENDS), default=None)
        for case, measured in times.items():
            yield case, _row(case, measured, top, reference, peer)


def _check(case: Case, got: Tensor, want: Tensor) -> None:
    off = float((got - want).abs().max() / want.abs().max())
    if off > AGREE[case.dtype]:
        raise RuntimeError(
            f"{case} differs from the reference, or the first case, by {off:.1e}, more than {AGREE[case.dtype]}"
        )


def _row(
    case: Case, measured: list[float], top: Ceilings, reference: float | None, peer: float | None
) -> Row:
    best = min(measured)
    low, *_, high = quantiles(measured, n=5) if len(measured) > 1 else (best, best)
    flops, moved = work(case)
    return Row(
        median_s=median(measured),
        best_s=best,
        spread_s=high - low,
        tokens_per_s=case.length * case.batch / best,
        flops=flops,
        bytes=moved,
        roofline_share=max(flops / top.flops, moved / top.bytes) / best,
        times_reference=None if reference is None else reference / best,
        times_peer=None if peer is None else peer / best,
    )


def provenance(device: str, top: Ceilings, argv: Sequence[str]) -> dict[str, object]:
    """Where and how a table was made."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "matmul_flops_per_s": _short(top.flops),
        "copy_bytes_per_s": _short(top.bytes),
        "torch": torch.__version__,
        "peers": ", ".join(f"{name} {found}" for name in PEERS if (found := installed(name))),
        "python": platform.python_version(),
        "command": shlex.join(["python", "-m", "depthchart_kernels.bench", *argv]),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep; see the module."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("depthchart_kernels.bench: error: --device cuda, but no CUDA device is there", file=sys.stderr)
        return 2
    try:
        rows, origin = _run(args, words, quiet=args.json)
        if args.out:
            write(args.out, rows, origin)
    except (
        RuntimeError,
        ValueError,
        OSError,
    ) as error:  # a wrong result, an unsupported case, no such folder
        print(f"depthchart_kernels.bench: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps({"provenance": origin, "rows": rows}, indent=2))
    return 0


def measure(*flags: str) -> list[dict[str, object]]:
    """Run the sweep of these command-line flags in this process: the rows of the table, each with its origin."""
    rows, origin = _run(_parser().parse_args(flags), flags, quiet=True)
    return [row | origin for row in rows]


def _run(
    args: argparse.Namespace, words: Sequence[str], *, quiet: bool
) -> tuple[list[dict[str, object]], dict[str, object]]:
    top, cases, rows = ceilings(args.device), _cases(args), []
    if not quiet:
        print(
            f"ceilings: {top.flops / 1e9:.0f} GFLOP/s matmul, {top.bytes / 1e9:.1f} GB/s copy ({args.device})"
        )
    calls = len(cases) * (args.rounds + 1)
    with tqdm(total=calls, unit="call", disable=not sys.stderr.isatty(), leave=False) as bar:
        for case, row in bench(cases, args.rounds, args.device, top, bar.update):
            rows.append(asdict(case) | {name: _short(value) for name, value in asdict(row).items()})
            if not quiet:
                bar.write(_line(case, row))
                sys.stdout.flush()
    return rows, provenance(args.device, top, words)


def _cases(args: argparse.Namespace) -> list[Case]:
    impl = "triton" if args.device == "cuda" else "chunked"
    cases = []
    for op, length, n, kind, decay in product(args.op, args.length, args.batch, args.dtype, args.decay):
        rest = {"length": length, "batch": n, "dtype": kind, "heads": args.heads, "decay": decay}
        sweep = product(args.width, args.snapshots)
        cases += [Case(op, impl, width, snapshots=marks, **rest) for width, marks in sweep]
        if "reference" in args.against:
            cases.append(Case(op, "reference", args.width[0], snapshots=min(args.snapshots), **rest))
        for peer in (path for name in PEERS if name in args.against for path in paths(name, op)):
            widths = args.width if not peer.endswith(STEPS) else args.width[:1]
            # without snapshots: no peer has them
            cases += [Case(op, peer, width, snapshots=0, **rest) for width in widths]
    return cases


def write(path: Path, rows: Sequence[dict[str, object]], origin: dict[str, object]) -> None:
    """Write the table with its origin in every row, under a temporary name first."""
    names = [*(f.name for f in fields(Case)), *(f.name for f in fields(Row)), *origin]
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | origin for row in rows)
    temporary.replace(path)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _line(case: Case, row: Row) -> str:
    ratio = "" if row.times_reference is None else f"  {row.times_reference:6.1f} × reference"
    ratio += "" if row.times_peer is None else f"  {row.times_peer:5.2f} × best peer"
    return (
        f"{case.op:12} {case.impl:18} C {case.chunk_width:3}  {case.batch}×{case.length} {case.dtype} "
        f"{case.snapshots} snapshots  {1e3 * row.best_s:8.1f} ms best, {1e3 * row.median_s:8.1f} median ± "
        f"{1e3 * row.spread_s:5.1f}  {row.tokens_per_s / 1e3:8.1f} k tok/s  {100 * row.roofline_share:5.1f} % of roofline"
        f"{ratio}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m depthchart_kernels.bench", description=__doc__)
    parser.add_argument("--op", nargs="+", choices=OPS, default=list(OPS))
    parser.add_argument("--width", nargs="+", type=int, choices=WIDTHS, default=[16, 32, 64])
    parser.add_argument("--length", nargs="+", type=_count, default=[4096], help="tokens of each sequence")
    parser.add_argument("--batch", nargs="+", type=_count, default=[1], help="sequences a call")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["fp32"])
    parser.add_argument(
        "--snapshots", nargs="+", type=_count_or_none, default=[0, 4], help="snapshots a sequence"
    )
    parser.add_argument(
        "--heads", type=_count, default=8, help="heads of K = V = 128; ssd takes twice as many of 64"
    )
    parser.add_argument(
        "--decay", nargs="+", type=_decay, default=[0.2], help="a token's log decay goes down to about −DECAY"
    )
    parser.add_argument("--rounds", type=_count, default=7)
    parser.add_argument("--threads", type=_count, help="torch threads; the machine's default if absent")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--against",
        nargs="+",
        choices=["reference", *PEERS],
        default=[],
        help="measure these in the same run, too: the float64 reference, other packages where installed",
    )
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1; nearest: 1")
    return int(text)


def _decay(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 0; nearest: 0")
    return value


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


if __name__ == "__main__":
    raise SystemExit(main())
