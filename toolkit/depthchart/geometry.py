"""The grids on which a hybrid prefix cache works, and what a choice of flags costs.

A page size, a DCP size and a chunk width fix four grids of token depths (DESIGN section 2). All
lengths are in tokens.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from math import isqrt, lcm

__all__ = ["Advice", "Geometry", "positive_int"]


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
            value = positive_int(field.name, getattr(self, field.name))
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

    def shortest_reusable(self, rule: str | None = None) -> int:
        """The smallest depth, in tokens, at which a later prompt can be served (the minimum reusable prefix).

        It is the smallest depth that a prefill step can leave a state at *and* a tree node can name; a
        prompt needs one token more, since a match stops at length - 1. Without a rule, and for rules
        that this module does not know, it is the checkpoint grid.
        """
        if rule in _NAMES_TREE_PAGES:
            return self.tree_page
        if rule == "chunk_grid":  # any multiple of tree_page that lies one cache_chunk past some cut
            return -(-self.cache_chunk // self.tree_page) * self.tree_page
        return self.checkpoint_grid

    def advice(self, rule: str | None = None) -> list[Advice]:
        """What is legal here but costs reuse, or breaks under ``rule`` (a depth rule's name).

        Without a rule, and for a user's own, the remarks hold for an absolute rule, and a
        prefix-relative rule is warned of where it would break.
        """
        checks = (_unsound_rule, _no_checkpoint, _track_grid, _cuts_off_grid, _wide_grid, _budget_off_grid)
        remarks = [check(self, rule) for check in checks]
        return [remark for remark in remarks if remark is not None] + [_short_prompts(self, rule)]

    def grids(self) -> list[tuple[str, int, str]]:
        """Name, tokens and meaning of each grid, and of the prefill budget."""
        pool = f" · index_pool {self.index_pool}" if self.index_pool > 1 else ""
        return [
            ("page_size", self.page_size, "scheduler page; prefill cuts land on it"),
            ("chunk_width", self.chunk_width, "chunk of the scan kernel; snapshots exist at chunk ends"),
            (
                "cache_chunk",
                self.cache_chunk,
                "max(chunk_width, page_size): the shortest extend that leaves a checkpoint",
            ),
            (
                "tree_page",
                self.tree_page,
                f"page_size {self.page_size} · dcp_size {self.dcp_size}{pool}: tree nodes end here",
            ),
            (
                "checkpoint_grid",
                self.checkpoint_grid,
                "lcm(cache_chunk, tree_page): a snapshot exists and a node can end",
            ),
            (
                "track_grid",
                self.track_grid,
                f"lcm(checkpoint_grid, track_interval {self.track_interval}): decode checkpoints",
            ),
            ("chunked_prefill_size", self.chunked_prefill_size, "token budget of one prefill step"),
        ]

    def _repr_html_(self) -> str:
        from depthchart.display import geometry_html

        return geometry_html(self)


def positive_int(name: str, value: object) -> int:
    """The value as an int. Raises ValueError, naming the argument and what is legal, for anything else."""
    if isinstance(value, bool):
        raise ValueError(
            f"{name}={value!r}: must be a positive whole number, not a truth value; nearest legal: 1"
        )
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
    """The divisors and multiples of ``other`` that lie nearest to ``value``: one, or two at a tie.

    Divisors are searched up to a million, which is exact for any length below 10^12 tokens.
    """
    small = [d for d in range(1, min(isqrt(other), 10**6) + 1) if other % d == 0]
    candidates = {
        *small,
        *(other // d for d in small),
        -(-value // other) * other,
        max(1, value // other) * other,
    }
    best = min(abs(c - value) for c in candidates)
    return sorted(c for c in candidates if abs(c - value) == best)


def _join(values: list[int]) -> str:
    return " or ".join(map(str, values))


# --- advice -----------------------------------------------------------------------------------------------
# Rules are known by name here, since depth rules are built on this module and not the other way round.

_NAMES_TREE_PAGES = (
    "page_exact",
    "vllm_align",
)  # their checkpoints lie on tree_page, whatever the chunk width


def _counts_from_prefix(g: Geometry, rule: str | None) -> bool:
    """Whether the rule measures depths on the checkpoint grid from the prefix (dcp_gated does so without "
    "DCP)."""
    return rule == "prefix_relative" or (rule == "dcp_gated" and g.dcp_size == 1)


def _unsound_rule(g: Geometry, rule: str | None) -> Advice | None:
    """A depth counted from the prefix is off the tree page exactly where a cut can be, and cuts lie on "
    "page_size."""
    if g.tree_page == g.page_size:
        return None
    wide = f"the tree page {g.tree_page} is wider than the scheduler's page {g.page_size}"
    if rule == "chunk_grid" and g.chunked_prefill_size >= g.cache_chunk:
        start = 0 if g.cache_chunk % g.tree_page else g.page_size
        depth = start + g.cache_chunk
        return Advice(
            "breaks",
            "chunk-grid",
            f"{wide}: rule chunk_grid stops on cache_chunk {g.cache_chunk} and can pick a depth where no "
            f"tree node "
            f"ends (for example {start} + {g.cache_chunk} = {depth}), so a state is filed under a shorter "
            f"text than "
            "it has read (sglang#34808). Use rule absolute.",
        )
    if not (rule is None or _counts_from_prefix(g, rule)) or g.chunked_prefill_size < g.checkpoint_grid:
        return None
    who = (
        "rule dcp_gated, which counts from the prefix without DCP,"
        if rule == "dcp_gated"
        else "a prefix-relative rule"
    )
    why = "sglang#39115" if g.dcp_size > 1 else "sglang#38212"
    return Advice(
        "costs" if rule is None else "breaks",
        "prefix-relative",
        f"{wide}: {who} can pick a depth where no tree node ends (for example a cut at {g.page_size}, then "
        f"{g.page_size} + {g.checkpoint_grid} = {g.page_size + g.checkpoint_grid}, {why}). Use rule "
        f"absolute.",
    )


def _no_checkpoint(g: Geometry, rule: str | None) -> Advice | None:
    if rule == "page_exact":
        return None
    need, name = g.cache_chunk, "cache_chunk"
    if _counts_from_prefix(g, rule):
        need, name = g.checkpoint_grid, "the checkpoint grid"
    elif rule == "vllm_align":
        need, name = g.tree_page, "the block"
    if g.chunked_prefill_size >= need:
        return None
    short = f"chunked_prefill_size {g.chunked_prefill_size} is below {name} {need}"
    if rule == "vllm_align":
        text = f"{short}: no step can be cut on the block (vllm#34445 refuses to start). Use at least {need}."
    else:
        text = (
            f"{short}: no prefill step is long enough, so prefill never takes a checkpoint and prompts are "
            f"not "
            f"reused (sglang#30938); only decode leaves some. Use at least {need}."
        )
    return Advice("costs", "no-checkpoint", text)


def _track_grid(g: Geometry, rule: str | None) -> Advice | None:
    if g.track_grid == g.track_interval:
        return None
    finer = g.track_interval < g.checkpoint_grid
    return Advice(
        "costs",
        "track-grid",
        f"track_interval {g.track_interval} is {'finer than' if finer else 'not a multiple of'} the "
        f"checkpoint grid "
        f"{g.checkpoint_grid}: decode checkpoints are taken every {g.track_grid} tokens instead "
        f"(sglang#35412).",
    )


def _cuts_off_grid(g: Geometry, rule: str | None) -> Advice | None:
    if g.page_size % g.chunk_width == 0 or rule in (*_NAMES_TREE_PAGES, "prefix_relative", "chunk_grid"):
        return None
    if rule == "dcp_gated":
        if g.dcp_size == 1:
            return None
        return Advice(
            "note",
            "cuts-off-grid",
            f"cuts are floored to cache_chunk {g.cache_chunk}, but a step with fewer tokens left than that "
            f"is cut on "
            f"page_size {g.page_size}; the extend that starts there leaves no checkpoint.",
        )
    return Advice(
        "costs",
        "cuts-off-grid",
        f"cuts land on page_size {g.page_size}, which is not a multiple of chunk_width {g.chunk_width}: a "
        f"cut can fall "
        f"off the chunk grid (for example at {g.page_size}), and an absolute rule takes no checkpoint in an "
        f"extend "
        f"that starts there. Floor cuts to {g.cache_chunk} (rule dcp_gated does under DCP) or snapshot at "
        f"any token "
        "(rule page_exact).",
    )


def _wide_grid(g: Geometry, rule: str | None) -> Advice | None:
    if rule in (*_NAMES_TREE_PAGES, "chunk_grid") or g.checkpoint_grid == max(g.cache_chunk, g.tree_page):
        return None
    return Advice(
        "costs",
        "wide-grid",
        f"cache_chunk {g.cache_chunk} and tree_page {g.tree_page} do not divide one another, so the "
        f"checkpoint grid is "
        f"{g.checkpoint_grid}, wider than both. Rule page_exact would need {g.tree_page} only.",
    )


def _budget_off_grid(g: Geometry, rule: str | None) -> Advice | None:
    """A lone prompt's first full step: where it is cut, and the last grid point before that."""
    if rule in ("vllm_align", "chunk_grid") or _no_checkpoint(g, rule) is not None:
        return None
    cut_grid = g.cache_chunk if rule == "dcp_gated" and g.dcp_size > 1 else g.page_size
    grid = g.tree_page if rule == "page_exact" else g.checkpoint_grid
    cut = g.chunked_prefill_size // cut_grid * cut_grid
    if cut % grid == 0:
        return None
    below, above = cut // grid * grid, -(-cut // grid) * grid
    leaves = (
        f"leaves its checkpoint at {below}, {cut - below} tokens earlier" if below else "leaves no checkpoint"
    )
    better = f"{below} or {above}" if below else f"{above}"
    return Advice(
        "costs" if not below else "note",
        "budget-off-grid",
        f"chunked_prefill_size {g.chunked_prefill_size} ends a first full step at {cut}, off the checkpoint "
        f"grid "
        f"{grid}: it {leaves}. With {better} it would end on one.",
    )


def _short_prompts(g: Geometry, rule: str | None) -> Advice:
    shortest = g.shortest_reusable(rule)
    return Advice(
        "note",
        "short-prompts",
        f"prompts below one tree page ({g.tree_page} tokens) are never reused: the minimum reusable "
        f"prefix is {shortest} tokens, and a prompt must have at least {shortest + 1},"
        " since a match stops at length - 1.",
    )
