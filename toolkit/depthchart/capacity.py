"""How much a device's memory caches: KV tokens, state slots, where the two pools balance, and what a host tier needs.

Sizes are bytes of one rank, lengths tokens of whole sequences (all ranks that share their KV together).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, NamedTuple

from depthchart.geometry import Geometry, positive_int
from depthchart.models import DTYPE_BYTES, MODELS, Model

__all__ = [
    "RUNNING_SLOTS",
    "STATE_SHARE",
    "Capacity",
    "HostTier",
    "balance_ratio",
    "capacity",
    "host_tier",
    "pool_bytes",
    "splits",
]

STATE_SHARE = 0.9 / 1.9
"""Share of the pools that states take where nothing is said: SGLang's default ratio of 0.9 states to 1 KV."""

RUNNING_SLOTS = 3
"""State slots of a running request here: its working state and two for checkpoints. SGLang takes 4, with overlap 5
(sglang#32763), and one more at admission (sglang#37066)."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One split of one rank's cache memory, and what follows from it.

    ``kv_tokens`` and ``state_slots`` are the pools; ``running_by_kv`` and ``running_by_states`` the requests of
    ``mean_context_tokens`` that each of them holds at the same time; ``checkpoints`` the states that prefill leaves
    while it fills the KV pool once, one for each ``chunked_prefill_size`` tokens (sglang#36935);
    ``no_pressure_chunk`` the smallest budget on the checkpoint grid at which they all find a slot;
    ``balance_share`` the share of states at which neither pool binds first, at ``balance_ratio`` states to 1 KV.
    """

    model: str
    tp: int
    dcp: int
    pool_bytes: float
    state_share: float
    kv_bytes_per_token: float
    state_bytes: int
    kv_tokens: int
    state_slots: int
    mean_context_tokens: int
    slots_per_request: int
    minimum_reusable_tokens: int
    shortest_reused_prompt_tokens: int
    chunked_prefill_size: int
    checkpoints: int
    no_pressure_chunk: int | None
    balance_ratio: float

    @property
    def running_by_kv(self) -> int:
        return self.kv_tokens // self.mean_context_tokens

    @property
    def running_by_states(self) -> int:
        return self.state_slots // self.slots_per_request

    @property
    def binds(self) -> str:
        """Which pool ends admission first at the mean context."""
        if self.running_by_kv == self.running_by_states:
            return "both"
        return "KV" if self.running_by_kv < self.running_by_states else "states"

    @property
    def outnumbered(self) -> bool:
        """Checkpoints outnumber the slots: the states that branches need are evicted while their KV is there."""
        return self.checkpoints > self.state_slots

    @property
    def balance_share(self) -> float:
        return self.balance_ratio / (1 + self.balance_ratio)

    def facts(self) -> dict[str, Any]:
        """All fields and what is derived from them, as JSON takes it."""
        derived = ("running_by_kv", "running_by_states", "binds", "outnumbered", "balance_share")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def rows(self) -> list[tuple[Any, ...]]:
        """The table with its header, for ``display.table_text``."""
        c, fits = self, "they outnumber" if self.outnumbered else "at most"
        chunk = "none" if c.no_pressure_chunk is None else f"{c.no_pressure_chunk:,} tokens"
        running = min(c.running_by_kv, c.running_by_states)
        return [
            ("what", "value", "how"),
            ("cache memory", _gib(c.pool_bytes), f"of one rank; {c.state_share:.1%} of it for states"),
            ("KV pool", f"{c.kv_tokens:,} tokens", f"{c.kv_bytes_per_token:,.0f} B a token and rank"),
            ("state pool", f"{c.state_slots:,} slots", f"{c.state_bytes:,} B a state and rank"),
            (
                "minimum reusable prefix",
                f"{c.minimum_reusable_tokens:,} tokens",
                f"a prompt needs {c.shortest_reused_prompt_tokens:,}, since a match stops at length - 1",
            ),
            (
                "running requests",
                f"{running:,}",
                f"KV holds {c.running_by_kv:,}, states {c.running_by_states:,}, at {c.mean_context_tokens:,} tokens and "
                f"{c.slots_per_request} slots each; binds: {c.binds}",
            ),
            (
                "checkpoints of a full KV pool",
                f"{c.checkpoints:,}",
                f"one a prefill step of {c.chunked_prefill_size:,}; {fits} the {c.state_slots:,} slots",
            ),
            ("prefill step without that", chunk, "smallest step whose checkpoints all find a slot"),
            (
                "balance of the pools",
                f"{c.balance_ratio:.2f} : 1",
                f"state bytes to KV bytes where neither binds first: {c.balance_share:.1%} for states",
            ),
        ]

    def _repr_html_(self) -> str:
        from depthchart.display import table_html

        return table_html(self.rows(), numeric=(1,))


class HostTier(NamedTuple):
    """What it takes to resume ``sequences`` from host memory (bytes of one rank). ``leaf_*`` keeps one state a
    sequence, at its end; ``all_*`` one a prefill step. ``split_sequences`` is how many resume where as many bytes
    are split in the device's ratio instead."""

    sequences: int
    kv_tokens: int
    leaf_slots: int
    all_slots: int
    leaf_bytes: float
    all_bytes: float
    split_sequences: int


def capacity(
    model: str | Model,
    geometry: Geometry,
    pool_bytes: float,
    *,
    tp: int = 1,
    state_share: float = STATE_SHARE,
    mean_context: int = 32_768,
    slots_per_request: int = RUNNING_SLOTS,
    rule: str | None = None,
) -> Capacity:
    """Split ``pool_bytes`` of one rank into both pools.

    Args:
        model: an entry of ``MODELS`` or its name.
        geometry: its ``dcp_size`` ranks of ``tp`` share each sequence's KV.
        pool_bytes: memory for both pools on one rank.
        tp: tensor-parallel ranks.
        state_share: share of the bytes that states take, in (0, 1).
        mean_context: tokens of a mean running request.
        slots_per_request: state slots that a running request holds.
        rule: depth rule, for the minimum reusable prefix.

    Raises ValueError where a pool holds nothing.
    """
    made = MODELS[model] if isinstance(model, str) else model
    positive_int("mean_context", mean_context)
    positive_int("slots_per_request", slots_per_request)
    if not 0 < state_share < 1:
        near = 0.01 if state_share <= 0 else 0.99
        raise ValueError(f"state_share={state_share}: must lie in (0, 1); nearest legal: {near}")
    kv, state = made.rank_kv_bytes_per_token(tp, geometry.dcp_size), made.rank_state_bytes(tp)
    tokens = int(pool_bytes * (1 - state_share) / kv) // geometry.tree_page * geometry.tree_page
    slots = int(pool_bytes * state_share / state)
    if not tokens or not slots:
        need = max(geometry.tree_page * kv / (1 - state_share), state / state_share)
        raise ValueError(
            f"pool_bytes={pool_bytes:g}: holds no {'state' if tokens else 'page of KV'}; nearest legal: {ceil(need)}"
        )
    shortest = geometry.shortest_reusable(rule)
    return Capacity(
        model=made.name,
        tp=tp,
        dcp=geometry.dcp_size,
        pool_bytes=pool_bytes,
        state_share=state_share,
        kv_bytes_per_token=kv,
        state_bytes=state,
        kv_tokens=tokens,
        state_slots=slots,
        mean_context_tokens=mean_context,
        slots_per_request=slots_per_request,
        minimum_reusable_tokens=shortest,
        shortest_reused_prompt_tokens=shortest + 1,
        chunked_prefill_size=geometry.chunked_prefill_size,
        checkpoints=tokens // geometry.chunked_prefill_size,
        no_pressure_chunk=_no_pressure(tokens, slots, geometry),
        balance_ratio=balance_ratio(
            slots_per_request, state / (kv * geometry.dcp_size), geometry.dcp_size, mean_context
        ),
    )


def balance_ratio(
    slots_per_request: int, state_in_kv_tokens: float, dcp: int, mean_context: int, spare_slots: int = 0
) -> float:
    """State bytes to KV bytes of one rank at which neither pool binds first (sglang#32763): a request's slots against
    its tokens, of which a rank holds one ``dcp``-th. ``state_in_kv_tokens``: so many tokens of KV, without DCP, are as
    large as one state; ``spare_slots``: further slots of a request, such as drafts that live in the same pool."""
    return (slots_per_request + spare_slots) * state_in_kv_tokens * dcp / mean_context


def pool_bytes(
    model: str | Model,
    gpu_bytes: float,
    *,
    tp: int = 1,
    weight_dtype: str = "bfloat16",
    memory_share: float = 0.9,
) -> float:
    """What weights leave for both pools on one rank: ``memory_share`` of the device less its part of the weights.
    Raises ValueError where nothing is left, with what would be enough."""
    made = MODELS[model] if isinstance(model, str) else model
    if weight_dtype not in DTYPE_BYTES:
        raise ValueError(f"weight_dtype={weight_dtype!r}: must be one of {', '.join(DTYPE_BYTES)}")
    if not 0 < memory_share <= 1:
        raise ValueError(
            f"memory_share={memory_share}: must lie in (0, 1]; nearest legal: {1 if memory_share > 1 else 0.1}"
        )
    weights = made.params * DTYPE_BYTES[weight_dtype] / tp
    left = gpu_bytes * memory_share - weights
    if left <= 0:
        raise ValueError(
            f"gpu_bytes={gpu_bytes:g}: {memory_share:.0%} of it do not hold the {weights:,.0f} B of weights of {made.name} "
            f"({weight_dtype}, {tp} ranks); needs more than {ceil(weights / memory_share)}, or more ranks"
        )
    return left


def host_tier(made: Capacity, sequences: int) -> HostTier:
    """Size host memory by the sequences of mean context that are to be resumed from it (sglang#39851), not by the
    device's bytes: the device's state pool is sized for running requests, the host's should be for checkpoints."""
    positive_int("sequences", sequences)
    context = made.mean_context_tokens
    inner = ceil(context / made.chunked_prefill_size)
    tokens, leaf, every = sequences * context, sequences, sequences * inner
    kv = tokens * made.kv_bytes_per_token
    total = kv + every * made.state_bytes
    slots = int(total * made.state_share / made.state_bytes)
    held = int(total * (1 - made.state_share) / made.kv_bytes_per_token)
    return HostTier(
        sequences,
        tokens,
        leaf,
        every,
        kv + leaf * made.state_bytes,
        total,
        min(slots // inner, held // context, sequences),
    )


def splits(made: Capacity, geometry: Geometry, points: int = 49) -> list[dict[str, float]]:
    """The same memory under other splits, for a figure: one row for each state share from 2 to 98 %."""
    rows = []
    for at in range(points):
        share = 0.02 + 0.96 * at / (points - 1)
        tokens = made.pool_bytes * (1 - share) / made.kv_bytes_per_token
        slots = made.pool_bytes * share / made.state_bytes
        rows.append(
            {
                "state_share": share,
                "kv_tokens": tokens,
                "state_slots": slots,
                "running_by_kv": tokens / made.mean_context_tokens,
                "running_by_states": slots / made.slots_per_request,
                "checkpoints": tokens / geometry.chunked_prefill_size,
            }
        )
    return rows


def _no_pressure(tokens: int, slots: int, geometry: Geometry) -> int | None:
    """The smallest multiple of the checkpoint grid at which a full KV pool leaves at most ``slots`` checkpoints."""
    grid = geometry.checkpoint_grid
    chunk = max(1, ceil((tokens + 1) / (slots + 1) / grid)) * grid  # tokens // chunk <= slots
    return chunk if chunk <= tokens else None


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB"
