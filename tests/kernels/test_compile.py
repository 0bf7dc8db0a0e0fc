"""The kernels compiled for Hopper without a GPU: the committed table, and that the compiler still agrees with it."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "depthchart_kernels" / "triton"
TABLE = list(csv.DictReader((ROOT / "data" / "kernels" / "sm90.csv").open()))
KEYS = (
    "kernel", "op", "width", "element_bytes", "size", "value_block", "warps", "stages", "snapshots", "block",
)  # fmt: skip
SCANS = [row for row in TABLE if row["kernel"].startswith("scan")]


def name(row):
    return "-".join(row[key] for key in ("kernel", "op", "width", "size", "snapshots"))


def child(code):
    """Run in a process of its own: whether Triton interprets is decided when it is imported."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(ROOT / "kernels")
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr[-3000:]
    return json.loads(shown.stdout.splitlines()[-1])


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_fits_hopper_without_spills(row):
    assert int(row["shared_bytes"]) <= 232_448
    assert int(row["spill_bytes"]) == 0
    assert int(row["stack_bytes"]) == 0
    assert int(row["registers"]) * 32 * int(row["warps"]) <= 65_536


@pytest.mark.parametrize("row", SCANS, ids=name)
def test_loops_use_tensor_cores_and_pipelined_ones_copy_asynchronously(row):
    assert int(row["wgmma"]) + int(row["mma"]) > 0
    if int(row["block"]) == 64:
        assert int(row["wgmma"]) > 0
    if int(row["stages"]) > 1:  # also where the loop over any number of snapshots costs the outer loop's
        assert int(row["async_copies"]) > 0


def test_every_operator_has_every_width_and_size():
    listed = {(row["op"], int(row["width"]), int(row["size"]), int(row["snapshots"])) for row in SCANS}
    ops, widths, sizes = ("gated_delta", "kda", "ssd"), (16, 32, 64, 128, 256), (128, 256)
    assert listed == {(op, w, n, s) for op in ops for w in widths for n in sizes for s in (0, 1, -1)}


def test_every_kernel_of_the_package_is_listed():
    found = re.findall(
        r"@triton\.jit\s+def (\w+_kernel)\(", "".join(path.read_text() for path in KERNELS.glob("*.py"))
    )
    code = "import json; from depthchart_kernels.triton.targets import cases, target; "
    listed = child(code + "print(json.dumps(sorted({target(c).function.fn.__name__ for c in cases()})))")
    assert listed == sorted(set(found))


def test_table_holds_every_configuration_that_can_be_launched():
    code = (
        "import json; from dataclasses import astuple; from depthchart_kernels.triton.compile import cases; "
    )
    listed = child(code + "print(json.dumps([astuple(case) for case in cases()]))")
    assert [[str(value) for value in case] for case in listed] == [
        [row[key] for key in KEYS] for row in TABLE
    ]


RECOMPILE = """
import json, sys
from dataclasses import asdict
from depthchart_kernels.triton.compile import cases, compile_case
chosen = [c for c in cases() if (c.op, c.width, c.size) in {chosen}]
print(json.dumps([asdict(c) | asdict(compile_case(c)) for c in chosen]))
"""


def check(chosen):
    got = child(RECOMPILE.replace("{chosen}", repr(chosen)))
    assert got
    for row in got:
        assert row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= 232_448, row
        recorded = next(r for r in TABLE if all(r[key] == str(row[key]) for key in KEYS))
        import triton

        if triton.__version__ == recorded["triton"]:
            assert {key: str(row[key]) for key in row} == {key: recorded[key] for key in row}


def test_table_is_what_the_compiler_says():
    check({("gated_delta", 64, 128)})


@pytest.mark.slow
def test_whole_table_is_what_the_compiler_says():
    check({(row["op"], int(row["width"]), int(row["size"])) for row in TABLE})
