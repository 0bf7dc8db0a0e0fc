"""The grids on which a hybrid prefix cache works, and what a choice of flags costs.

A page size, a DCP size and a chunk width fix four grids of token depths (DESIGN section 2). All
lengths are in tokens.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from math import lcm

__all__ = ["Advice", "Geometry"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One plain-words remark on a legal geometry.

    ``severity`` is ``"breaks"`` (wrong answers or a crash are possible), ``"costs"`` (reuse is
    lost) or ``"note"`` (worth knowing); ``code`` is a stable short name; ``text`` is the sentence.
    """

    severity: str
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Page, DCP and chunk sizes of an engine, in tokens (``dcp_size`` and ``index_pool`` are counts).

    Parameters
    ----------
    page_size: scheduler page P: tokens per kernel page; prefill cuts land on it.
    dcp_size: decode-context-parallel ranks D that share each sequence's KV.
    chunk_width: tokens per chunk of the chunked-scan kernel; snapshots exist at chunk ends.
    index_pool: a further factor on the tree page, where a model pools its index rows (sglang#38212).
    chunked_prefill_size: token budget of one prefill step.
    track_interval: decode checkpoints are asked for every so many tokens.

    Raises ``ValueError`` naming the argument, its value, the rule and the nearest legal value:
    everything is a positive whole number, and one of page_size and chunk_width divides the other.

    >>> Geometry(page_size=64, dcp_size=8).checkpoint_grid
    512
    """

    page_size: int
    dcp_size: int = 1
    chunk_width: int = 64
    index_pool: int = 1
    chunked_prefill_size: int = 8192
    track_interval: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _positive_int(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        _check_divides(self.page_size, self.chunk_width)

    @property
    def tree_page(self) -> int:
        """Page of the allocator and of the radix tree: page_size · dcp_size · index_pool."""
        return self.page_size * self.dcp_size * self.index_pool

    @property
    def cache_chunk(self) -> int:
        """max(chunk_width, page_size): the shortest extend that yields a checkpoint."""
        return max(self.chunk_width, self.page_size)

    @property
    def checkpoint_grid(self) -> int:
        """lcm(cache_chunk, tree_page): depths that a kernel can snapshot and a node can name."""
        return lcm(self.cache_chunk, self.tree_page)

    @property
    def track_grid(self) -> int:
        """lcm(checkpoint_grid, track_interval): where decode takes checkpoints (sglang#35412)."""
        return lcm(self.checkpoint_grid, self.track_interval)

    def advice(self, rule: str | None = None) -> list[Advice]:
        """What is legal here but costs reuse, or breaks under ``rule`` (a depth rule's name).

        Without a rule the remarks hold for every rule, and a prefix-relative rule is warned of
        where it would break.
        """
        remarks = [check(self) for check in (_no_checkpoint, _track_grid, _cuts_off_grid, _budget_off_grid)]
        remarks += [_short_prompts(self), _unsound_rule(self, rule)]
        return [remark for remark in remarks if remark is not None]

    def _repr_html_(self) -> str:
        from depthchart.display import geometry_html

        return geometry_html(self)


def _positive_int(name: str, value: object) -> int:
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be a positive whole number of tokens; got a truth value, nearest legal: 1")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        hint = ""
        if isinstance(value, float) and value == value and abs(value) < 2**53:
            hint = f"; nearest legal: {max(1, round(value))}"
        raise ValueError(
            f"{name}={value!r}: must be a positive whole number, not {type(value).__name__}{hint}"
        ) from None
    if number < 1:
        raise ValueError(f"{name}={number}: must be positive; nearest legal: 1")
    return number


def _check_divides(page_size: int, chunk_width: int) -> None:
    small, large = sorted((page_size, chunk_width))
    if large % small == 0:
        return
    raise ValueError(
        f"page_size={page_size}: must divide chunk_width={chunk_width} or be a multiple of it; "
        f"nearest legal page_size: {_join(_nearest_related(page_size, chunk_width))} "
        f"(or chunk_width: {_join(_nearest_related(chunk_width, page_size))})"
    )


def _nearest_related(value: int, other: int) -> list[int]:
    """The divisors and multiples of ``other`` that lie nearest to ``value``: one, or two at a tie."""
    below = max((d for d in range(1, min(value, other) + 1) if other % d == 0), default=1)
    candidates = {below}
    if value < other:
        candidates.add(min(d for d in range(value, other + 1) if other % d == 0))
    else:
        candidates |= {value // other * other, -(-value // other) * other}
    best = min(abs(c - value) for c in candidates)
    return sorted(c for c in candidates if abs(c - value) == best)


def _join(values: list[int]) -> str:
    return " or ".join(map(str, values))


def _no_checkpoint(g: Geometry) -> Advice | None:
    if g.chunked_prefill_size >= g.cache_chunk:
        return None
    return Advice(
        "costs",
        "no-checkpoint",
        f"chunked_prefill_size {g.chunked_prefill_size} is below cache_chunk {g.cache_chunk}: no extend is long "
        f"enough, so no checkpoint is ever taken and nothing is reused (sglang#30938). Use at least {g.cache_chunk}.",
    )


def _track_grid(g: Geometry) -> Advice | None:
    if g.track_grid == g.track_interval:
        return None
    return Advice(
        "costs",
        "track-grid",
        f"track_interval {g.track_interval} is finer than, or off, the checkpoint grid {g.checkpoint_grid}: decode "
        f"checkpoints are taken every {g.track_grid} tokens instead (sglang#35412).",
    )


def _cuts_off_grid(g: Geometry) -> Advice | None:
    if g.page_size % g.chunk_width == 0:
        return None
    return Advice(
        "costs",
        "cuts-off-grid",
        f"cuts land on page_size {g.page_size}, which is not a multiple of chunk_width {g.chunk_width}: a cut can fall "
        "off the chunk grid, after which an absolute rule takes no checkpoint for the rest of that prefill. Floor cuts "
        f"to {g.cache_chunk} (rule dcp_gated does under DCP) or snapshot at any token (rule page_exact).",
    )


def _budget_off_grid(g: Geometry) -> Advice | None:
    if g.chunked_prefill_size < g.cache_chunk or g.chunked_prefill_size % g.checkpoint_grid == 0:
        return None
    lower = g.chunked_prefill_size // g.checkpoint_grid * g.checkpoint_grid
    better = lower or g.checkpoint_grid
    return Advice(
        "costs",
        "budget-off-grid",
        f"chunked_prefill_size {g.chunked_prefill_size} is not a multiple of the checkpoint grid {g.checkpoint_grid}: "
        f"a full step ends between two checkpoints. {better} would end on one.",
    )


def _short_prompts(g: Geometry) -> Advice:
    return Advice(
        "note",
        "short-prompts",
        f"prompts below one tree page ({g.tree_page} tokens) are never reused: the shortest reusable prefix is "
        f"{g.checkpoint_grid} tokens, and a prompt must be at least one token longer, since a match stops at "
        "length - 1.",
    )


def _unsound_rule(g: Geometry, rule: str | None) -> Advice | None:
    if rule in (None, "prefix_relative") and g.tree_page > g.page_size:
        return Advice(
            "costs" if rule is None else "breaks",
            "prefix-relative",
            f"the tree page {g.tree_page} is wider than the scheduler's page {g.page_size}: a prefix-relative rule can "
            f"pick a depth where no tree node ends (for example {g.page_size} + {g.checkpoint_grid} = "
            f"{g.page_size + g.checkpoint_grid}, sglang#39115). Use rule absolute.",
        )
    if rule == "chunk_grid" and g.cache_chunk % g.tree_page:
        return Advice(
            "breaks",
            "chunk-grid",
            f"rule chunk_grid stops on cache_chunk {g.cache_chunk}, but tree nodes end on {g.tree_page} only: a state is "
            "filed under a shorter text than it has read (sglang#34808). Use rule absolute.",
        )
    return None
