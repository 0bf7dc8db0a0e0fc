"""Errors by depth and after a resume, on calls whose answer is known beforehand."""

import pytest
import torch
from kernel_support import FP32

from depthchart_kernels.accuracy import relative_error, resume_errors, snapshot_errors
from depthchart_kernels.samples import random_inputs


def test_relative_error_is_of_the_worst_head():
    want = torch.tensor([[1.0, -2.0], [10.0, 5.0]])
    got = torch.tensor([[1.0, -2.5], [9.0, 5.0]])
    assert relative_error(got, want) == pytest.approx(
        0.25
    )  # 0.5 of 2 in the first head, 1 of 10 in the second


@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_every_depth_is_within_the_promise(op):
    rows = snapshot_errors(op, 70, [16, 32], heads=1, dim=16)
    assert [(row["chunk_width"], row["depth_tokens"]) for row in rows] == [
        (width, depth) for width in (16, 32) for depth in range(1, 71)
    ]
    assert [row["depth_tokens"] for row in rows if row["on_grid"]] == [16, 32, 48, 64, 32, 64]
    assert 0 < max(row["error"] for row in rows) < FP32


@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_a_state_of_another_depth_gives_other_outputs(op):
    rows = resume_errors(op, 40, [0, 24], 90, heads=1, dim=16, decay=1.0)
    right, wrong = ([row["error"] for row in rows if row["shift_tokens"] == shift] for shift in (0, 24))
    assert len(right) == len(wrong) == 90
    assert max(right) < FP32
    assert wrong[0] > 1e-3
    assert max(wrong[-5:]) < 0.1 * max(
        wrong[:5]
    )  # forgotten by and by: half a nat a token, a quarter for ssd


def test_shift_before_the_first_token():
    with pytest.raises(ValueError, match="the nearest is -10"):
        resume_errors("ssd", 10, [-11], 5)


def test_inputs_of_no_operator():
    with pytest.raises(ValueError, match="legal are gated_delta, kda, ssd"):
        random_inputs("gla", 3, 1)
