"""Launch parameters of the scan kernels by operator, width and operand size; every row is compiled in the tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Config", "TABLE", "scan_config"]


@dataclass(frozen=True, slots=True)
class Config:
    """``value_block``: columns of the state a program holds; ``warps`` and ``stages`` as Triton means them."""

    value_block: int
    warps: int
    stages: int


# (operator, chunk width, bytes an operand element) -> parameters; chosen by registers and shared memory, not by time
TABLE: dict[tuple[str, int, int], Config] = {
    ("gated_delta", 16, 2): Config(32, 4, 2),
    ("gated_delta", 32, 2): Config(32, 4, 2),
    ("gated_delta", 64, 2): Config(32, 4, 2),
    ("gated_delta", 128, 2): Config(32, 8, 1),
    ("gated_delta", 16, 4): Config(32, 4, 1),
    ("gated_delta", 32, 4): Config(32, 4, 1),
    ("gated_delta", 64, 4): Config(32, 8, 1),
    ("gated_delta", 128, 4): Config(16, 8, 1),
    ("kda", 16, 2): Config(32, 4, 2),
    ("kda", 32, 2): Config(32, 4, 2),
    ("kda", 64, 2): Config(32, 8, 1),
    ("kda", 128, 2): Config(32, 8, 1),
    ("kda", 16, 4): Config(32, 4, 1),
    ("kda", 32, 4): Config(32, 8, 1),
    ("kda", 64, 4): Config(32, 8, 1),
    ("kda", 128, 4): Config(16, 8, 1),
    ("ssd", 16, 2): Config(64, 4, 2),
    ("ssd", 32, 2): Config(64, 4, 2),
    ("ssd", 64, 2): Config(64, 8, 2),
    ("ssd", 128, 2): Config(32, 8, 1),
    ("ssd", 16, 4): Config(32, 4, 1),
    ("ssd", 32, 4): Config(32, 4, 1),
    ("ssd", 64, 4): Config(32, 8, 1),
    ("ssd", 128, 4): Config(16, 8, 1),
}


def scan_config(op: str, width: int, kind: torch.dtype) -> Config:
    """Parameters of a scan's loop kernel."""
    return TABLE[op, width, kind.itemsize]
