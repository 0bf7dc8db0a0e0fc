"""The command that measures a GPU's goals, as far as a CPU shows it: its list, its refusal, its verdicts, its table."""

import csv

import pytest
import torch

from depthchart_kernels import goals
from depthchart_kernels.goals import FEW, GOALS, KIMI, LONG, MAMBA, MANY, SHORT, Goal, Measured


def measured(shape, impl="triton", width=64, snapshots=1, best=1e-3, peak=100):
    return Measured(shape, impl, width, snapshots, 1, best, 2 * best, "graph", peak, 1e-3)


def test_goals_are_those_of_the_project():
    """Milliseconds on an H200; the shapes and limits as they were set, none dropped."""
    times = {goal.shape: goal.limit for goal in GOALS if goal.kind == "seconds"}
    assert times == {LONG: 0.55e-3, MANY: 0.40e-3, FEW: 0.20e-3, MAMBA: 0.45e-3}
    assert [(s.batch, s.length, s.heads, s.value_heads) for s in (LONG, MANY, FEW, MAMBA)] == [
        (1, 8192, 16, 64), (8, 1024, 16, 64), (1, 8192, 2, 8), (1, 8192, 1, 128),
    ]  # fmt: skip
    assert Goal("times_peer", KIMI, 1.4) in GOALS
    assert [goal.shape for goal in GOALS if goal.kind == "snapshot_share" and goal.limit == 0.03] == list(
        SHORT
    )
    assert {s.length for s in SHORT} == {2048}
    assert sum(goal.kind == "memory_share" for goal in GOALS) == 2


def test_list_names_every_shape(capsys):
    assert goals.main(["--list", "--width", "64", "256"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(GOALS)
    assert shown[0] == "gated_delta 1×8192, 16/64 heads: 0.00055 s at most (chunk widths 64, 256)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_device_it_says_so(capsys):
    assert goals.main(["--out", "never.csv"]) == 2
    assert "no CUDA device is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goal", "rows", "value", "met"),
    [
        (Goal("seconds", LONG, 0.5), [measured(LONG, best=0.6), measured(LONG, width=128, best=0.4)], 0.4, True),
        (Goal("seconds", LONG, 0.5), [measured(LONG, best=0.3, snapshots=0), measured(LONG, best=0.6)], 0.6, False),
        (Goal("times_peer", KIMI, 1.4), [measured(KIMI, best=2.0), measured(KIMI, "fla-core", best=3.0)], 1.5, True),
        (Goal("snapshot_share", LONG, 0.03), [measured(LONG, best=1.25), measured(LONG, snapshots=0, best=1.0)], 0.25,
         False),
        (Goal("memory_share", LONG, 1.0), [measured(LONG, peak=50), measured(LONG, "fla-core", peak=200)], 0.25, True),
        (Goal("memory_share", LONG, 1.0), [measured(LONG)], None, None),
        (Goal("seconds", LONG, 1.0), [measured(FEW)], None, None),
    ],
)  # fmt: skip
def test_verdicts(goal, rows, value, met):
    found = goals.judge(goal, rows)
    assert found[:2] == (value, met)


def test_table_carries_verdict_and_origin(tmp_path):
    rows = [
        measured(FEW, width=32, best=3e-4),
        measured(FEW, width=64, best=1.5e-4),
        measured(FEW, snapshots=0),
    ]
    goals.write(tmp_path / "t.csv", rows, {"device": "none", "command": "a test"})
    found = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [row["goals"] for row in found] == ["", "seconds 0.00015 of 0.0002 met", ""]
    assert [row["op"] for row in found] == ["gated_delta"] * 3
    assert {row["device"] for row in found} == {"none"}


def test_parts_cover_all_gpu_tests():
    """Without xdist they run in one process a part: every test marked gpu is in exactly one."""
    import test_triton
    from kernel_support import CASES

    marked = [
        name
        for name in dir(test_triton)
        if "gpu" in [m.name for m in getattr(getattr(test_triton, name), "pytestmark", ())]
    ]
    assert sorted(marked) == ["test_goldens_on_cuda", "test_on_a_gpu"]
    names = [f"test_on_a_gpu[{op}" for op in ("gated_delta", "kda", "ssd")] + [
        f"test_goldens[{case}" for case in CASES
    ]
    for name in names:
        hits = 0
        for part in goals.TEST_PARTS:
            kind, ops = part.split(" and ")
            hits += kind in name and any(op in name for op in ops.strip("()").split(" or "))
        assert hits == 1, name


@pytest.mark.parametrize("shape", [FEW, MAMBA, KIMI], ids=lambda shape: shape.op)
def test_calls_are_sound_at_a_small_size(shape):
    """The same calls on a CPU: chunked against reference, a fiftieth of the length."""
    small = goals.Shape(shape.op, 2, 80, min(shape.heads, 2), 4)
    tensors = goals.inputs(small, "cpu")
    got = goals.call_ours(small, tensors, "chunked", 16, 1)()
    want = goals.call_ours(small, tensors, "reference", 16, 1)()
    assert got.dtype == torch.bfloat16
    assert goals._error(("chunked", 16, 1), small, got, want.double()) < 1e-2
    with pytest.raises(RuntimeError, match="differs from the reference by"):
        goals._error(("chunked", 16, 1), small, got + 1, want.double())
