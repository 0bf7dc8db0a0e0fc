"""How far a scan is from the float64 reference: at every depth, and after a resume from a state of another depth.

Errors are the largest difference over the largest magnitude, of the worst head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import depthchart_kernels as dk
from depthchart_kernels.samples import random_inputs

__all__ = ["relative_error", "resume_errors", "snapshot_errors"]


def snapshot_errors(
    op: str,
    tokens: int,
    widths: Sequence[int],
    *,
    impl: str = "chunked",
    heads: int = 2,
    dim: int = 64,
    decay: float = 0.2,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """The state after every depth 1 … ``tokens`` of one call per chunk width: one row for each width and depth.

    K = V = ``dim``; ``decay`` as in `random_inputs`. Columns: op, chunk_width, depth_tokens, error, on_grid (whether
    a chunk ends there).
    """
    inputs = random_inputs(op, tokens, heads, key_dim=dim, value_dim=dim, decay=decay, seed=seed)
    right = _states(op, inputs, "reference", 64)
    rows = []
    for width in widths:
        for depth, (got, want) in enumerate(zip(_states(op, inputs, impl, width), right, strict=True), 1):
            on_grid = depth % width == 0
            found = {"depth_tokens": depth, "error": relative_error(got, want), "on_grid": on_grid}
            rows.append({"op": op, "chunk_width": width, **found})
    return rows


def resume_errors(
    op: str,
    depth: int,
    shifts: Sequence[int],
    tokens: int,
    *,
    chunk_width: int = 64,
    heads: int = 2,
    dim: int = 64,
    decay: float = 0.2,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Resume ``tokens`` tokens at ``depth`` from the state of depth + shift: one row for each shift and token.

    Shift 0 is right; with 64, the first 64 tokens go through the recurrence twice. Columns: op, shift_tokens,
    token (0 is the first after the resume), error of the output there (against the largest output of its head).
    """
    total = depth + max(tokens, max(shifts))
    if depth + min(shifts) < 0:
        raise ValueError(f"shifts={list(shifts)!r}: reach before the first token; the nearest is {-depth}")
    inputs = random_inputs(op, total, heads, key_dim=dim, value_dim=dim, decay=decay, seed=seed)
    want = _scan(op, inputs, "reference", chunk_width)[depth : depth + tokens]
    marks = sorted({depth + shift for shift in shifts})
    pool = _pool(op, inputs, len(marks))
    plan = {"cu_seqlens": [0, total], "snapshots": [(0, mark, slot) for slot, mark in enumerate(marks)]}
    _scan(op, inputs, "chunked", chunk_width, pool=pool, **plan)
    later = {name: x[depth : depth + tokens] if x.shape[0] == total else x for name, x in inputs.items()}
    size = want.abs().amax((0, 2))
    rows = []
    for shift in shifts:
        got = _scan(op, later, "chunked", chunk_width, pool=pool, initial_slots=[marks.index(depth + shift)])
        off = ((got.double() - want).abs().amax(2) / size).amax(1)
        rows += [
            {"op": op, "shift_tokens": shift, "token": token, "error": error}
            for token, error in enumerate(off.tolist())
        ]
    return rows


def relative_error(got: Tensor, want: Tensor) -> float:
    """Of two states [heads, ...]."""
    got, want = got.double().flatten(1), want.double().flatten(1)
    return float(((got - want).abs().amax(1) / want.abs().amax(1).clamp(min=1e-30)).max())


def _scan(op: str, inputs: dict[str, Tensor], impl: str, width: int, **options: Any) -> Tensor:
    return getattr(dk, op)(*inputs.values(), impl=impl, chunk_width=width, **options)


def _states(op: str, inputs: dict[str, Tensor], impl: str, width: int) -> Tensor:
    tokens = next(iter(inputs.values())).shape[0]
    pool = _pool(op, inputs, tokens, torch.float64 if impl == "reference" else torch.float32)
    marks = [(0, depth, depth - 1) for depth in range(1, tokens + 1)]
    _scan(op, inputs, impl, width, pool=pool, cu_seqlens=[0, tokens], snapshots=marks)
    return pool


def _pool(op: str, inputs: dict[str, Tensor], slots: int, dtype: torch.dtype = torch.float32) -> Tensor:
    if op == "ssd":
        return torch.zeros(slots, *inputs["x"].shape[1:], inputs["b"].shape[-1], dtype=dtype)
    return torch.zeros(slots, *inputs["k"].shape[1:], inputs["v"].shape[-1], dtype=dtype)
