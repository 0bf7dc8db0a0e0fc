"""Launch parameters of the scan kernels by operator and width; every row is compiled in the tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = [
    "COMBINE_COLUMNS",
    "COMBINE_WARPS",
    "FLOAT32",
    "SQUARE_STAGES",
    "TABLE",
    "Config",
    "channel_warps",
    "scan_config",
    "square_warps",
]

COMBINE_WARPS, COMBINE_COLUMNS = (
    4,
    32,
)  # of the kernel that passes a split sequence's state from piece to piece
SQUARE_STAGES = 2  # of the kernels that work on blocks of a chunk's square matrices


@dataclass(frozen=True, slots=True)
class Config:
    """``value_block``: columns of the state a program holds; ``warps`` and ``stages`` as Triton means them.

    ``block``: tokens of a chunk that a product takes at once; a wider chunk is walked in blocks. ``many``: the same
    where a chunk may hold any number of snapshots.
    """

    value_block: int
    warps: int
    stages: int
    block: int = 64
    many: int = 64

    @property
    def transition_block(self) -> int:
        """Columns of a program that finds how a piece of a split sequence maps states: it has no outputs to hold."""
        return self.value_block if self.block < 64 else 2 * self.value_block


# (operator, chunk width, key or state size up to) -> parameters for operands of two bytes; chosen by registers and
# shared memory, not by time
TABLE: dict[tuple[str, int, int], Config] = {
    ("gated_delta", 16, 128): Config(32, 4, 2),
    ("gated_delta", 32, 128): Config(32, 4, 2),
    ("gated_delta", 64, 128): Config(32, 8, 2),
    ("gated_delta", 128, 128): Config(16, 8, 2),
    ("gated_delta", 256, 128): Config(32, 8, 2, 32, 32),
    ("gated_delta", 16, 256): Config(16, 8, 2),
    ("gated_delta", 32, 256): Config(16, 8, 2),
    ("gated_delta", 64, 256): Config(16, 8, 2),
    ("gated_delta", 128, 256): Config(32, 8, 2, 32, 32),
    ("gated_delta", 256, 256): Config(32, 8, 2, 32, 32),
    ("kda", 16, 128): Config(32, 4, 2),
    ("kda", 32, 128): Config(32, 4, 2),
    ("kda", 64, 128): Config(32, 8, 2, many=32),
    ("kda", 128, 128): Config(32, 8, 2, 32, 32),
    ("kda", 256, 128): Config(32, 8, 2, 32, 32),
    ("kda", 16, 256): Config(16, 8, 2),
    ("kda", 32, 256): Config(16, 8, 2),
    ("kda", 64, 256): Config(16, 8, 2, 32, 32),
    ("kda", 128, 256): Config(16, 8, 2, 32, 32),
    ("kda", 256, 256): Config(16, 8, 2, 32, 32),
    ("ssd", 16, 128): Config(64, 8, 2),
    ("ssd", 32, 128): Config(64, 8, 2),
    ("ssd", 64, 128): Config(32, 8, 2),
    ("ssd", 128, 128): Config(32, 8, 1),
    ("ssd", 256, 128): Config(32, 8, 1),
    ("ssd", 16, 256): Config(32, 8, 2),
    ("ssd", 32, 256): Config(32, 8, 2),
    ("ssd", 64, 256): Config(32, 8, 1),
    ("ssd", 128, 256): Config(32, 8, 1),
    ("ssd", 256, 256): Config(32, 8, 1),
}
# Three TF32 products hold more than a program's registers: float32 runs, and spills. It is for checks, not for speed.
FLOAT32 = Config(16, 8, 1, 32, 32)


def scan_config(op: str, width: int, kind: torch.dtype, size: int) -> Config:
    """Parameters of a scan's loop kernel for a key or state of ``size``."""
    return FLOAT32 if kind == torch.float32 else TABLE[op, width, 128 if size <= 128 else 256]


def square_warps(width: int) -> int:
    """Warps of the kernels that work on blocks of a chunk's square matrices."""
    return 4 if width <= 64 else 8


def channel_warps(key_dim: int) -> int:
    """Warps of the kernel that scores 16 rows with a decay a channel."""
    return 4 if key_dim <= 128 else 8
