"""Compile every scan kernel for sm_90 ahead of time, without a GPU, and tabulate what it uses.

    python -m depthchart_kernels.triton.compile OUT.csv [--only gated_delta] [--width 64]

Must not run under TRITON_INTERPRET=1. Columns: shared memory in bytes (Hopper allows 232,448), registers a thread,
stack and spill bytes, wgmma instructions, asynchronous copies.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depthchart_kernels.triton import delta_kernels, ssd_kernels
from depthchart_kernels.triton.tuning import CHANNEL_WARPS, TABLE, square_warps

__all__ = ["SHARED_LIMIT", "Case", "Usage", "cases", "compile_case", "main"]

SHARED_LIMIT = 232_448  # bytes of shared memory that a block may use on Hopper
TYPES = {2: "bf16", 4: "fp32"}
OPERANDS = ("q", "k", "v", "tri", "scores", "output", "x", "b", "c", "read_k", "read_q", "write_k", "plain_k")
KINDS = {2: tl.bfloat16, 4: tl.float32}


@dataclass(frozen=True)
class Case:
    """One kernel with its compile-time values; sizes are K = V = 128, for ssd P = 64 and N = 128."""

    kernel: str
    op: str
    width: int
    element_bytes: int
    value_block: int
    warps: int
    stages: int
    snapshots: int


@dataclass(frozen=True)
class Usage:
    """What the compiler made of a case; see the module."""

    shared_bytes: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    wgmma: int
    mma: int
    async_copies: int


def cases() -> list[Case]:
    """Every loop kernel of the tuning table with one snapshot a chunk, and the kernels that prepare it."""
    listed = []
    size = 2
    for (op, width), config in TABLE.items():
        listed.append(Case("scan", op, width, size, config.value_block, config.warps, config.stages, 1))
        if op == "gated_delta":
            listed.append(Case("head_scores", op, width, size, 0, square_warps(width), 3, 0))
            listed.append(Case("invert", op, width, size, 0, square_warps(width), 3, 0))
        if op == "kda":
            listed.append(Case("channel_scores", op, width, size, 0, CHANNEL_WARPS, 3, 0))
    return listed


def compile_case(case: Case) -> Usage:
    """Compile one case for sm_90 and read off its use of the machine."""
    function, types, constants = _signature(case)
    names = function.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        function,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if _divisible(name, signature[name])
        },
    )
    options = {"num_warps": case.warps, "num_stages": case.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return _read(compiled)


def _divisible(name: str, kind: str) -> bool:
    """What a launch with 16 query/key heads, 64 value heads and sizes of 64 and 128 would find divisible by 16."""
    return kind.startswith("*") or (
        kind != "constexpr" and name in ("H", "HV", "K", "V", "P", "N", "slot_stride")
    )


def _signature(case: Case) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """Kernel, argument types and compile-time values."""
    operand, kind = f"*{TYPES[case.element_bytes]}", KINDS[case.element_bytes]
    sizes = dict.fromkeys(("H", "HV", "K", "V", "G", "P", "N"), "i32") | {
        "slot_stride": "i64",
        "scale": "fp32",
    }
    tables = dict.fromkeys(("sequences", "chunks", "snapshots"), "*i64")
    wide = dict.fromkeys(("g", "beta", "dt", "a", "d", "pool", "lower", "decay"), "*fp32")
    types = sizes | tables | wide | dict.fromkeys(OPERANDS, operand)
    values: dict[str, Any] = {"C": case.width}
    if case.kernel == "invert":
        return delta_kernels.invert_kernel, types, values
    if case.op == "ssd":
        values |= {
            "BN": 128,
            "BP": case.value_block,
            "KIND": kind,
            "SKIP": True,
            "MOST": case.snapshots,
            "P": 64,
            "N": 128,
        }
        return ssd_kernels.ssd_kernel, types, values
    values |= {"BK": 128, "KIND": kind}
    if case.kernel == "head_scores":
        return delta_kernels.head_scores_kernel, types, values
    if case.kernel == "channel_scores":
        return delta_kernels.channel_scores_kernel, types, values
    values |= {
        "BV": case.value_block,
        "CHANNEL": case.op == "kda",
        "MOST": case.snapshots,
        "K": 128,
        "V": 128,
    }
    return delta_kernels.scan_kernel, types, values


def _read(compiled: Any) -> Usage:
    """Registers and stack from the binary, spills from the assembler's own report, instructions from the PTX."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    ptx = compiled.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        cubin, text = Path(folder, "k.cubin"), Path(folder, "k.ptx")
        cubin.write_bytes(compiled.asm["cubin"])
        text.write_text(ptx)
        usage = _run([tools / "cuobjdump", "--dump-resource-usage", cubin])
        report = _run([tools / "ptxas", "-v", "-arch=sm_90a", text, "-o", os.devnull])
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", report)]
    return Usage(
        shared_bytes=compiled.metadata.shared,
        registers=int(re.findall(r"REG:(\d+)", usage)[-1]),
        stack_bytes=int(re.findall(r"STACK:(\d+)", usage)[-1]),
        spill_bytes=sum(spills),
        wgmma=ptx.count("wgmma.mma_async"),
        mma=len(re.findall(r"^\s*mma\.sync", ptx, re.MULTILINE)),
        async_copies=ptx.count("cp.async.cg") + ptx.count("cp.async.ca") + ptx.count("cp.async.bulk"),
    )


def _run(argv: Sequence[object]) -> str:
    shown = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True)
    return shown.stdout + shown.stderr


def compile_all(chosen: list[Case]) -> Iterator[dict[str, object]]:
    """One row a case, with the compiler's version."""
    for case in chosen:
        yield asdict(case) | asdict(compile_case(case)) | {"triton": triton.__version__, "target": "sm_90"}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; rows are printed as they come."""
    parser = argparse.ArgumentParser(prog="python -m depthchart_kernels.triton.compile", description=__doc__)
    parser.add_argument("out", type=Path, help="CSV file to write")
    parser.add_argument("--only", help="only this operator")
    parser.add_argument("--width", type=int, help="only this chunk width")
    args = parser.parse_args(argv)
    chosen = [c for c in cases() if args.only in (None, c.op) and args.width in (None, c.width)]
    names = [*(f.name for f in fields(Case)), *(f.name for f in fields(Usage)), "triton", "target"]
    temporary = args.out.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in compile_all(chosen):
            writer.writerow(row)
            print(" ".join(str(value) for value in row.values()), flush=True)
    temporary.replace(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
