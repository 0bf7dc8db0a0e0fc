"""Every kernel with the values it is launched with, for compiling ahead of time: what the table of sm_90 lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from depthchart_kernels.triton import (
    attention,
    conv,
    delta_kernels,
    delta_prepare,
    paging,
    ssd_kernels,
    steps,
)
from depthchart_kernels.triton.common import BLOCK, MANY, power_of_two
from depthchart_kernels.triton.tuning import (
    COMBINE_COLUMNS,
    COMBINE_WARPS,
    SQUARE_STAGES,
    TABLE,
    channel_warps,
    square_warps,
)

__all__ = ["Case", "Target", "cases", "target"]

KINDS = {2: ("bf16", tl.bfloat16), 4: ("fp32", tl.float32)}


@dataclass(frozen=True)
class Case:
    """One kernel with its compile-time values.

    ``size``: key or state size K, N (V as large, P = 64), head size of attention, channels or elements of a program.
    ``width``: tokens of a chunk; ``value_block``: columns of the state, or of the values, that a program holds; 0 where
    there is none. ``snapshots``: most in one chunk, −1 is any number. ``block``: tokens that a product takes at once.
    """

    kernel: str
    op: str
    width: int
    element_bytes: int
    size: int
    value_block: int
    warps: int
    stages: int
    snapshots: int
    block: int


@dataclass(frozen=True)
class Target:
    """What the compiler is given: the function, types of its arguments, compile-time values."""

    function: Any
    types: dict[str, str]
    constants: dict[str, Any]


def cases() -> list[Case]:
    """The scans of the tuning table with all that prepares and splits them, then the kernels without a table."""
    return [*_scans(), *_others()]


def _scans() -> Iterator[Case]:
    for (op, width, size), config in TABLE.items():
        loop = (width, 2, size, config.value_block, config.warps, config.stages)
        block = min(width, config.block)
        for snapshots in (0, 1, MANY):
            yield Case("scan", op, *loop, snapshots, min(width, config.many) if snapshots == MANY else block)
        yield Case("scan_pieces", op, *loop, 1, block)
        columns = min(config.transition_block, 64) if op == "ssd" else config.transition_block
        yield Case("transition", op, width, 2, size, columns, config.warps, config.stages, 0, block)
        square = (width, 2, size, 0, square_warps(width), SQUARE_STAGES, 0, min(width, BLOCK))
        if op == "kda":
            yield Case("channel_scores", op, width, 2, size, 0, channel_warps(size), 3, 0, 16)
        else:
            yield Case("head_scores" if op == "gated_delta" else "ssd_scores", op, *square)
        if op == "gated_delta" and size == 128:  # kda has the same, whatever its size
            yield Case("invert", op, *square)
            half = BLOCK
            while half < width:
                yield Case(f"merge_{half}", op, width, 2, size, 0, square_warps(width), 1, 0, BLOCK)
                half *= 2
    for op in ("gated_delta", "ssd"):
        for size in (128, 256):
            yield Case("combine", op, 0, 2, size, COMBINE_COLUMNS, COMBINE_WARPS, 1, 0, 0)


def _others() -> Iterator[Case]:
    for taps in (2, 4):
        yield Case("conv", "causal_conv1d", conv.TOKENS, 2, taps, conv.CHANNELS, 4, 3, 0, 0)
        yield Case("window", "causal_conv1d", 0, 2, taps, conv.CHANNELS, 4, 3, 0, 0)
        yield Case("step", "causal_conv1d_step", 1, 2, taps, steps.CHANNELS, 4, 3, 0, 0)
    for op in ("gated_delta", "kda", "ssd"):
        for size in (128, 256):
            yield Case("step", f"{op}_step", 1, 2, size, steps.STATES, 4, 3, 0, 0)
    for size, values in ((64, 64), (128, 128), (256, 256), (576, 512)):
        yield Case(
            "attend", "paged_attention", attention.KEYS, 2, size, values, *attention.launch(size), 0, 0
        )
    yield Case("merge", "merge_attention", 0, 2, 128, 128, 4, 3, 0, 0)
    yield Case("merge", "merge_attention", 0, 2, 512, 512, 4, 3, 0, 0)
    for op, size in (("gather_kv", 2), ("copy_states", 4)):
        yield Case("move", op, 0, size, paging.ELEMENTS, 0, 4, 3, 0, 0)


def target(case: Case) -> Target:
    """The function of a case, types of all arguments that any kernel has by name, and the compile-time values."""
    function, constants = _FUNCTIONS[case.kernel](case)
    name = KINDS[case.element_bytes][0]
    types = dict.fromkeys(_INTEGERS, "i32") | dict.fromkeys(_LONGS, "i64") | {"scale": "fp32"}
    types |= (
        dict.fromkeys(_TABLES, "*i64")
        | dict.fromkeys(_SINGLES, "*fp32")
        | dict.fromkeys(_OPERANDS, f"*{name}")
    )
    if case.kernel == "merge" or case.op == "paged_attention":
        types |= {"rows": "i32", "lse": "*fp32", "pages": "*i32"}
    if case.op == "copy_states":
        types |= {"source": "*fp32", "target": "*fp32"}
    return Target(function, types, constants)


_INTEGERS = (
    "H", "HV", "K", "V", "G", "P", "N", "D", "R", "DV", "page_size", "columns", "rank", "size", "PARTS",
)  # fmt: skip
_LONGS = (
    "slot_stride",
    "source_stride",
    "target_stride",
    "k_page",
    "k_row",
    "k_head",
    "v_page",
    "v_row",
    "v_head",
)
_TABLES = ("sequences", "chunks", "snapshots", "runs", "followed", "owners", "writes", "slots", "blocks", "sources",
           "targets")  # fmt: skip
_SINGLES = (
    "g",
    "beta",
    "dt",
    "a",
    "d",
    "pool",
    "lower",
    "decay",
    "starts",
    "matrices",
    "additions",
    "total",
    "decays",
)
_OPERANDS = ("q", "k", "v", "tri", "scores", "output", "outputs", "x", "b", "c", "read_k", "read_q", "write_k", "plain_k",
             "weight", "bias", "source", "target")  # fmt: skip


def _kind(case: Case) -> Any:
    return KINDS[case.element_bytes][1]


def _scan(case: Case) -> tuple[Any, dict[str, Any]]:
    split = case.kernel == "scan_pieces"
    values = {"C": case.width, "B": case.block, "KIND": _kind(case), "MOST": case.snapshots, "SPLIT": split}
    if case.op == "ssd":
        sizes = {"P": 64, "N": case.size, "BN": case.size, "BP": case.value_block, "SKIP": True}
        return ssd_kernels.ssd_kernel, values | sizes
    sizes = {
        "K": case.size,
        "V": case.size,
        "BK": case.size,
        "BV": case.value_block,
        "CHANNEL": case.op == "kda",
    }
    return delta_kernels.scan_kernel, values | sizes


def _transition(case: Case) -> tuple[Any, dict[str, Any]]:
    function, values = _scan(case)
    absent: tuple[str, ...]
    if case.op == "ssd":
        function, absent = ssd_kernels.addition_kernel, ("MOST", "SPLIT", "SKIP")
    else:
        function, absent = delta_kernels.transition_kernel, ("MOST", "SPLIT")
    return function, {name: value for name, value in values.items() if name not in absent}


def _combine(case: Case) -> tuple[Any, dict[str, Any]]:
    if case.op == "ssd":
        return ssd_kernels.combine_kernel, {"E": ssd_kernels.ELEMENTS, "SIZE": 64 * case.size}
    sizes = {"K": case.size, "V": case.size, "T": BLOCK, "BV": case.value_block}
    return delta_kernels.combine_kernel, sizes


def _rows(function: Any) -> Callable[[Case], tuple[Any, dict[str, Any]]]:
    """Kernels that score blocks of rows."""

    def values(case: Case) -> tuple[Any, dict[str, Any]]:
        given = {"C": case.width, "KIND": _kind(case)}
        given |= {"BN" if case.op == "ssd" else "BK": case.size}
        return function, given if case.op == "kda" else given | {"B": case.block}

    return values


def _merge_half(half: int) -> Callable[[Case], tuple[Any, dict[str, Any]]]:
    return lambda case: (
        delta_prepare.merge_kernel, {"C": case.width, "HALF": half, "LAST": 2 * half == case.width},
    )  # fmt: skip


def _step(case: Case) -> tuple[Any, dict[str, Any]]:
    if case.op == "causal_conv1d_step":
        return steps.conv_step_kernel, {"W": case.size, "BD": case.value_block, "BIAS": True, "SILU": True}
    if case.op == "ssd_step":
        return steps.ssd_step_kernel, {"BP": case.value_block, "BN": case.size, "SKIP": True}
    channel = case.op == "kda_step"
    return steps.delta_step_kernel, {"BK": case.size, "BV": case.value_block, "CHANNEL": channel}


def _attend(case: Case) -> tuple[Any, dict[str, Any]]:
    sizes = {"BD": power_of_two(case.size), "BDV": case.value_block}
    return attention.attend_kernel, {"M": attention.ROWS, "BN": case.width, "KIND": _kind(case)} | sizes


_FUNCTIONS: dict[str, Callable[[Case], tuple[Any, dict[str, Any]]]] = {
    "scan": _scan,
    "scan_pieces": _scan,
    "transition": _transition,
    "combine": _combine,
    "head_scores": _rows(delta_prepare.head_scores_kernel),
    "channel_scores": _rows(delta_prepare.channel_scores_kernel),
    "ssd_scores": _rows(ssd_kernels.scores_kernel),
    "invert": lambda case: (delta_prepare.invert_kernel, {"C": case.width, "B": case.block}),
    "merge_64": _merge_half(64),
    "merge_128": _merge_half(128),
    "conv": lambda case: (
        conv.conv_kernel,
        {"W": case.size, "C": case.width, "BD": case.value_block, "BIAS": True, "SILU": True},
    ),
    "window": lambda case: (conv.window_kernel, {"W": case.size, "BD": case.value_block}),
    "step": _step,
    "attend": _attend,
    "merge": lambda case: (attention.merge_kernel, {"BDV": case.value_block}),
    "move": lambda case: (paging.move_kernel, {"BLOCK": case.size}),
}
