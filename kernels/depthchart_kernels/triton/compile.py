"""Compile every kernel for sm_90 ahead of time, without a GPU, and tabulate what it uses.

    python -m depthchart_kernels.triton.compile data/kernels/sm90.csv [--only gated_delta] [--width 64]

With --only or --width the other rows of an existing table stay as they are. Must not run under TRITON_INTERPRET=1.
Columns: shared memory in bytes (Hopper allows 232,448), registers a thread, stack and spill bytes, wgmma instructions,
asynchronous copies.
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
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depthchart_kernels.triton.targets import Case, cases, target

__all__ = ["SHARED_LIMIT", "Case", "Usage", "cases", "compile_case", "main"]

SHARED_LIMIT = 232_448  # bytes of shared memory that a block may use on Hopper
KEYS = tuple(f.name for f in fields(Case))


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


def compile_case(case: Case) -> Usage:
    """Compile one case for sm_90 and read off its use of the machine."""
    given = target(case)
    names = given.function.arg_names
    signature = {name: "constexpr" if name in given.constants else given.types[name] for name in names}
    source = ASTSource(
        given.function,
        signature,
        {(names.index(name),): value for name, value in given.constants.items()},
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
    """What a launch with 16 query/key heads, 64 value heads, one group and sizes of 64 and more finds divisible by 16."""
    return kind.startswith("*") or (
        kind != "constexpr" and name not in ("G", "R", "PARTS", "rank", "size", "scale")
    )


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


def compile_all(chosen: list[Case]) -> Iterator[dict[str, str]]:
    """One row a case, with the compiler's version."""
    for case in chosen:
        row = asdict(case) | asdict(compile_case(case)) | {"triton": triton.__version__, "target": "sm_90"}
        yield {name: str(value) for name, value in row.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; rows are printed as they come."""
    parser = argparse.ArgumentParser(prog="python -m depthchart_kernels.triton.compile", description=__doc__)
    parser.add_argument("out", type=Path, help="CSV file to write")
    parser.add_argument("--only", help="only this operator")
    parser.add_argument("--width", type=int, help="only this chunk width")
    args = parser.parse_args(argv)
    chosen = [c for c in cases() if args.only in (None, c.op) and args.width in (None, c.width)]
    rows = {} if len(chosen) == len(cases()) else _read_table(args.out)
    for row in compile_all(chosen):
        rows[tuple(row[name] for name in KEYS)] = row
        print(" ".join(row.values()), flush=True)
    _write_table(args.out, [rows[key] for case in cases() if (key := _key(case)) in rows])
    return 0


def _key(case: Case) -> tuple[str, ...]:
    return tuple(str(value) for value in asdict(case).values())


def _read_table(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    return {tuple(row[name] for name in KEYS): row for row in found if set(KEYS) <= set(row)}


def _write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    names = [*KEYS, *(f.name for f in fields(Usage)), "triton", "target"]
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
