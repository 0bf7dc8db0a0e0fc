"""Measure the goals that only a GPU can show: `python -m depthchart_kernels.goals --out CSV`, or `make gpu`.

First the tests marked ``gpu`` (every recorded case on every configuration of the tuning table), then the goals'
shapes, bfloat16 operands, one snapshot at an arbitrary token: every chunk width is checked against the float64
reference, then timed; a goal is met or missed by its fastest width. Peers (fla-core, where it is installed) run on the
same inputs in turn with ours and are checked, too. ``--list`` shows what would be run, without a GPU.

Times are seconds of GPU time for one call: CUDA events round a captured graph's replay where the call can be captured
(column ``method``), else round the call. Memory is the peak above what was allocated before the call.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import depthchart_kernels as dk
from depthchart_kernels import bench
from depthchart_kernels.checks import WIDTHS
from depthchart_kernels.peers import installed
from depthchart_kernels.samples import random_inputs

__all__ = ["GOALS", "Goal", "Shape", "judge", "listed", "main"]

LIMIT = 1e-2  # of bfloat16 operands: largest difference over largest magnitude, worst head
PEER = "fla-core"
PEER_CALLS = {
    "gated_delta": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "kda": ("fla.ops.kda", "chunk_kda"),
}
TESTS = Path("tests/kernels/test_triton.py")
TEST_PARTS = tuple(
    f"{part} and ({op})" for part in ("on_a_gpu", "goldens") for op in ("gated_delta or gdn", "kda", "ssd")
)


@dataclass(frozen=True, slots=True)
class Shape:
    """``batch`` sequences of ``length`` tokens; delta rules with K = V = 128, ssd with P = 64, N = 128, one group.

    ``heads``: query/key heads, of ssd groups; ``value_heads``: heads of the state.
    """

    op: str
    batch: int
    length: int
    heads: int
    value_heads: int

    @property
    def name(self) -> str:
        """As tables print it."""
        return f"{self.op} {self.batch}×{self.length}, {self.heads}/{self.value_heads} heads"


@dataclass(frozen=True, slots=True)
class Goal:
    """``kind``: "seconds" at most; "times_peer" faster at least; "snapshot_share" of the call at most that one
    snapshot may cost; "memory_share" of the peer's peak at most.
    """

    kind: str
    shape: Shape
    limit: float


LONG, MANY, FEW = (
    Shape("gated_delta", 1, 8192, 16, 64),
    Shape("gated_delta", 8, 1024, 16, 64),
    Shape("gated_delta", 1, 8192, 2, 8),
)
KIMI, MAMBA = Shape("kda", 1, 8192, 64, 64), Shape("ssd", 1, 8192, 1, 128)
SHORT = (
    Shape("gated_delta", 1, 2048, 16, 64),
    Shape("kda", 1, 2048, 64, 64),
    Shape("ssd", 1, 2048, 1, 128),
)
GOALS = (
    Goal("seconds", LONG, 0.55e-3),
    Goal("seconds", MANY, 0.40e-3),
    Goal("seconds", FEW, 0.20e-3),
    Goal("times_peer", KIMI, 1.4),
    Goal("seconds", MAMBA, 0.45e-3),
    *(Goal("snapshot_share", shape, 0.03) for shape in SHORT),
    Goal("memory_share", LONG, 1.0),
    Goal("memory_share", KIMI, 1.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One call: ``impl`` is triton or a peer, ``error`` that of the output against the float64 reference."""

    shape: Shape
    impl: str
    chunk_width: int
    snapshots: int
    pieces: int
    best_s: float
    median_s: float
    method: str
    peak_bytes: int
    error: float


def judge(goal: Goal, rows: Sequence[Measured]) -> tuple[float | None, bool | None, int | None]:
    """Value, whether the goal is met, and the chunk width that shows it; all None where a part was not measured."""
    ours = [row for row in rows if row.shape == goal.shape and row.impl == "triton" and row.snapshots == 1]
    peers = [row for row in rows if row.shape == goal.shape and row.impl != "triton"]
    if not ours or (goal.kind in ("times_peer", "memory_share") and not peers):
        return None, None, None
    best = min(ours, key=lambda row: row.best_s)
    if goal.kind == "seconds":
        value, met = best.best_s, best.best_s <= goal.limit
    elif goal.kind == "times_peer":
        value = min(row.best_s for row in peers) / best.best_s
        met = value >= goal.limit
    elif goal.kind == "memory_share":
        value = best.peak_bytes / min(row.peak_bytes for row in peers)
        met = value < goal.limit
    else:
        bare = [r for r in rows if (r.shape, r.chunk_width, r.snapshots) == (goal.shape, best.chunk_width, 0)]
        if not bare:
            return None, None, None
        value = best.best_s / bare[0].best_s - 1
        met = value <= goal.limit
    return value, met, best.chunk_width


def listed(widths: Sequence[int]) -> list[str]:
    """What would be measured, one line a goal."""
    units = {
        "seconds": "s at most",
        "times_peer": f"times faster than {PEER}, at least",
        "snapshot_share": "of the call for one snapshot, at most",
        "memory_share": f"of {PEER}'s peak, less than",
    }
    shown = ", ".join(map(str, widths))
    return [f"{goal.shape.name}: {goal.limit:g} {units[goal.kind]} (chunk widths {shown})" for goal in GOALS]


def inputs(shape: Shape, device: str) -> dict[str, Tensor]:
    """Seeded operands in the operator's order of arguments, bfloat16 where a model holds them so."""
    tensors = random_inputs(
        shape.op, shape.batch * shape.length, shape.value_heads, value_dim=64 if shape.op == "ssd" else 128
    )
    if shape.op != "ssd":
        tensors |= {name: tensors[name][:, : shape.heads].contiguous() for name in "qk"}
    cast = {name: x.bfloat16() if name in "qkvxbc" else x for name, x in tensors.items()}
    return {name: x.to(device) for name, x in cast.items()}


def call_ours(
    shape: Shape, tensors: dict[str, Tensor], impl: str, width: int, snapshots: int
) -> Callable[[], Tensor]:
    """A call with final states and, of every sequence, ``snapshots`` (0 or 1) at a token off every chunk grid."""
    bounds = [s * shape.length for s in range(shape.batch + 1)]
    marks = [(s, shape.length // 2 + 7, shape.batch + s) for s in range(shape.batch)] if snapshots else []
    plan = dk.make_batch(bounds, final_slots=range(shape.batch), snapshots=marks)
    size = (64, 128) if shape.op == "ssd" else (128, 128)
    pool = next(iter(tensors.values())).new_zeros(
        [2 * shape.batch, shape.value_heads, *size], dtype=torch.float32
    )
    operator = getattr(dk, shape.op)
    return lambda: operator(*tensors.values(), pool=pool, batch=plan, chunk_width=width, impl=impl)


def call_peer(shape: Shape, tensors: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The peer's GPU kernels on the same inputs, without snapshots, which it does not have."""
    module, name = PEER_CALLS[shape.op]
    function = getattr(importlib.import_module(module), name)
    rows = {key: x.unflatten(0, (shape.batch, shape.length)) for key, x in tensors.items()}
    return lambda: function(**rows, output_final_state=True)[0].flatten(0, 1)


def measure(shapes: Sequence[Shape], widths: Sequence[int], rounds: int) -> Iterator[Measured]:
    """Check and time every shape at every width, the peer among them, in turn."""
    for shape in shapes:
        tensors = inputs(shape, "cuda")
        right = call_ours(shape, tensors, "reference", WIDTHS[0], 0)().double()
        calls: dict[tuple[str, int, int], Callable[[], Tensor]] = {
            ("triton", width, marks): call_ours(shape, tensors, "triton", width, marks)
            for width in widths
            for marks in (0, 1)
        }
        if shape.op in PEER_CALLS and installed(PEER):
            calls[PEER, 64, 0] = call_peer(shape, tensors)
        errors = {key: _error(key, shape, call(), right) for key, call in calls.items()}
        peaks = {key: _peak(call) for key, call in calls.items()}
        timers = {key: _timer(call) for key, call in calls.items()}
        times: dict[tuple[str, int, int], list[float]] = {key: [] for key in calls}
        for _ in range(rounds):
            for key, (_, once) in timers.items():
                times[key].append(once())
        for key, found in times.items():
            impl, width, marks = key
            pieces = _pieces(shape, width) if impl == "triton" else 1
            best, method = min(found), timers[key][0]
            yield Measured(
                shape, impl, width, marks, pieces, best, median(found), method, peaks[key], errors[key]
            )


def _error(key: tuple[str, int, int], shape: Shape, got: Tensor, right: Tensor) -> float:
    size = right.abs().amax((0, 2)).clamp(min=1e-30)
    off = float(((got.double() - right).abs().amax((0, 2)) / size).max())
    if not off <= LIMIT:
        raise RuntimeError(
            f"{shape.name}: {key[0]} at chunk width {key[1]} differs from the reference by {off:.1e}, "
            f"more than {LIMIT}"
        )
    return off


def _peak(call: Callable[[], Tensor]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _timer(call: Callable[[], Tensor]) -> tuple[str, Callable[[], float]]:
    """How the call is timed, and a function that times it once."""
    run: Callable[[], object] = call
    method = "call"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        run, method = graph.replay, "graph"
    except RuntimeError:  # it asks for the device's answer, or allocates in a way that a graph cannot
        torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return method, once


def _pieces(shape: Shape, width: int) -> int:
    import numpy as np

    from depthchart_kernels.triton.plan import choose_pieces, processors
    from depthchart_kernels.triton.tuning import TABLE

    size = 64 if shape.op == "ssd" else 128
    blocks = -(-size // TABLE[shape.op, width, 128].value_block)
    lengths = np.full(shape.batch, shape.length)
    return choose_pieces(lengths, shape.value_heads * blocks, width, processors(torch.device("cuda")))


def run_tests(root: Path) -> bool:
    """The tests marked gpu; compiling takes longest, so in several processes. Their output goes to the screen."""
    if importlib.util.find_spec("pytest") is None or not (root / TESTS).exists():
        print(f"the gpu tests are not run: they need pytest and {TESTS} under {root}", file=sys.stderr)
        return False
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", str(TESTS)]
    if importlib.util.find_spec("xdist"):
        return (
            subprocess.run([*argv, "-n", str(min(12, os.cpu_count() or 1))], cwd=root, env=env).returncode
            == 0
        )
    started = [subprocess.Popen([*argv, "-k", name], cwd=root, env=env) for name in TEST_PARTS]
    return max([process.wait() for process in started]) == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked; see the module. 0: all goals met and tests passed; 1: not so; 2: cannot run."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    if args.list:
        print("\n".join(listed(args.width)))
        return 0
    if not torch.cuda.is_available():
        print(
            "depthchart_kernels.goals: error: no CUDA device is there, and these goals are times and memory of one; "
            "--list shows what would be measured",
            file=sys.stderr,
        )
        return 2
    passed = args.skip_tests or run_tests(args.root)
    shapes = list(dict.fromkeys(goal.shape for goal in GOALS if goal.shape.op in args.op))
    rows: list[Measured] = []
    try:
        for row in measure(shapes, args.width, args.rounds):
            rows.append(row)
            print(f"{row.shape.name}: {row.impl} C {row.chunk_width}, {row.snapshots} snapshots, {row.pieces} pieces: "
                  f"{1e3 * row.best_s:.3f} ms ({row.method}), off by {row.error:.1e}", flush=True)  # fmt: skip
    except RuntimeError as error:
        print(f"depthchart_kernels.goals: error: {error}", file=sys.stderr)
        passed = False
    origin = bench.provenance("cuda", bench.ceilings("cuda"), ()) | {
        "peers": f"{PEER} {installed(PEER)}" if installed(PEER) else "none",
        "command": " ".join(["python", "-m", "depthchart_kernels.goals", *words]),
    }
    if args.out:
        write(args.out, rows, origin)
    verdicts = [_verdict(goal, rows) for goal in GOALS if goal.shape.op in args.op]
    return 0 if all(verdicts) and passed else 1


def _verdict(goal: Goal, rows: Sequence[Measured]) -> bool:
    value, met, width = judge(goal, rows)
    if value is None:
        why = (
            f"not measured ({PEER} is not installed)"
            if goal.kind.endswith(("peer", "memory_share"))
            else "not measured"
        )
        print(f"{goal.shape.name}, {goal.kind}: {why}")
        return True
    print(
        f"{goal.shape.name}, {goal.kind}: {value:.4g} at C {width}, goal {goal.limit:g}: {'met' if met else 'MISSED'}"
    )
    return bool(met)


def write(path: Path, rows: Sequence[Measured], origin: dict[str, object]) -> None:
    """One line a call, then its goals' verdicts in the lines of the width that shows them; renamed when complete."""
    verdicts = {}
    for goal in GOALS:
        value, met, width = judge(goal, rows)
        if value is not None:
            verdicts[goal.shape, width, goal.kind] = (value, goal.limit, met)
    names = [f.name for f in fields(Shape)] + [f.name for f in fields(Measured)][1:] + ["goals"]
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, *origin], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            kinds = {goal.kind for goal in GOALS}
            shown = [
                f"{kind} {value:.4g} of {limit:g} {'met' if met else 'missed'}"
                for kind in sorted(kinds)
                if row.impl == "triton" and row.snapshots == 1
                for value, limit, met in [verdicts.get((row.shape, row.chunk_width, kind), (None, 0, False))]
                if value is not None
            ]
            line = asdict(row.shape) | asdict(row) | {"goals": "; ".join(shown)}
            writer.writerow({name: line[name] for name in names} | origin)
    temporary.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m depthchart_kernels.goals", description=__doc__)
    parser.add_argument("--op", nargs="+", choices=bench.OPS, default=list(bench.OPS))
    parser.add_argument("--width", nargs="+", type=int, choices=WIDTHS, default=[32, 64, 128, 256])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--list", action="store_true", help="print the goals and leave")
    parser.add_argument("--skip-tests", action="store_true", help="do not run the tests marked gpu first")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository, for the tests")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
