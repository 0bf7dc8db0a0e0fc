"""Launch parameters of the scan kernels by operator and width; every row is compiled in the tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["CHANNEL_WARPS", "FLOAT32", "TABLE", "Config", "scan_config", "square_warps"]

CHANNEL_WARPS = 4  # of the kernel that scores 16 rows with a decay a channel


@dataclass(frozen=True, slots=True)
class Config:
    """``value_block``: columns of the state a program holds; ``warps`` and ``stages`` as Triton means them."""

    value_block: int
    warps: int
    stages: int


# (operator, chunk width) -> parameters for operands of two bytes; chosen by registers and shared memory, not by time
TABLE: dict[tuple[str, int], Config] = {
    ("gated_delta", 16): Config(32, 4, 2),
    ("gated_delta", 32): Config(32, 4, 2),
    ("gated_delta", 64): Config(32, 8, 2),
    ("gated_delta", 128): Config(32, 8, 1),
    ("kda", 16): Config(32, 4, 2),
    ("kda", 32): Config(32, 4, 2),
    ("kda", 64): Config(32, 8, 2),
    ("ssd", 16): Config(64, 8, 2),
    ("ssd", 32): Config(64, 8, 2),
    ("ssd", 64): Config(32, 8, 2),
}
# Three TF32 products hold more than a program's registers: float32 runs, and spills. It is for checks, not for speed.
FLOAT32 = Config(16, 8, 1)


def scan_config(op: str, width: int, kind: torch.dtype) -> Config:
    """Parameters of a scan's loop kernel, or ``ValueError`` naming the widths that fit a program's registers."""
    if kind == torch.float32:
        return FLOAT32
    if (op, width) not in TABLE:
        widths = [w for name, w in TABLE if name == op]
        raise ValueError(
            f"impl='triton' supports chunk_width {', '.join(map(str, widths))} for {op} in {kind}, got {width}"
        )
    return TABLE[op, width]


def square_warps(width: int) -> int:
    """Warps of the kernels that hold a chunk's square matrices."""
    return 4 if width <= 64 else 8
