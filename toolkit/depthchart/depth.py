"""Depth rules: at which token depth does an extend leave a checkpoint, and may it be donated?

A rule is a pure function ``(geometry, prefix, end, branch=None) -> Decision`` kept in ``RULES`` by
name. An extend runs the tokens ``[prefix, end)``; ``branch`` is the deepest grid point inside the KV
match that has no state yet (sglang#31181), or None. All depths are counts of tokens.

The arithmetic of each built-in rule is written once and serves single decisions and whole arrays
(``decide_many``): it uses only operators that Python ints and numpy arrays share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from depthchart.errors import RuleError
from depthchart.geometry import Geometry

__all__ = ["RULES", "Decision", "Decisions", "Rule", "decide_many", "rule"]

# An int, or an int64 array of the same meaning.
Tokens: TypeAlias = Any
Truth: TypeAlias = Any


class Decision(NamedTuple):
    """What a rule wants of one extend.

    ``depth`` is the checkpoint's depth (None: the rule names none), ``donate`` whether it may be handed
    to the tree, ``reason`` says why in words, ``also`` lists further depths to snapshot in the same
    extend (engines take one; a kernel that writes any depth can take more).
    """

    depth: int | None
    donate: bool
    reason: str
    also: tuple[int, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """All depths to snapshot, ascending; empty where nothing is donated."""
        return tuple(sorted({*self.also, self.depth})) if self.donate and self.depth is not None else ()

    def _repr_html_(self) -> str:
        from depthchart.display import table_html

        depth = "none" if self.depth is None else str(self.depth)
        also = ", ".join(map(str, self.also)) or "none"
        row = (depth, "yes" if self.donate else "no", also, self.reason)
        return table_html([("depth [tokens]", "donate", "also", "reason"), row], numeric=(0,))


class Decisions(NamedTuple):
    """The answers of ``decide_many``: ``depth`` int64 ``[n]`` (-1: none), ``donate`` bool ``[n]``."""

    depth: npt.NDArray[np.int64]
    donate: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named depth rule, together with how prefill is cut for it and what its kernel can snapshot.

    ``plan(geometry, prefix, end) -> (depth, donate)`` is the arithmetic of a built-in rule; ``decide``
    a user's own function, which answers a Decision. ``branching`` says how a branch depth is taken:
    ``"replaces"`` the planned depth (sglang), is taken ``"also"``, or is ``"ignored"``.
    ``snapshots`` says where the kernel can store a state: at ``"chunk"`` ends counted from the prefix
    and at the end of the extend, or at ``"any"`` token; ``"start"``: before the end there is only the state that the
    step began with (the fault of vllm#51113). Steps are cut on ``cut_grid``, the last one too where
    ``cuts_final``, and first of all at the branch depth where ``cuts_branch`` (vllm#37898); decode
    steps take a checkpoint at every multiple of ``decode_grid``.
    """

    name: str
    summary: str
    plan: Callable[[Geometry, Tokens, Tokens], tuple[Tokens, Truth]] | None = None
    decide: Callable[[Geometry, int, int, int | None], Decision] | None = None
    branching: str = "ignored"
    snapshots: str = "chunk"
    cut_grid: Callable[[Geometry], int] = lambda g: g.page_size
    cuts_final: bool = False
    cuts_branch: bool = False
    decode_grid: Callable[[Geometry], int] = lambda g: g.track_grid

    def __call__(self, geometry: Geometry, prefix: int, end: int, branch: int | None = None) -> Decision:
        """Decide for the extend ``[prefix, end)``. Raises ValueError for an impossible extend and
        RuleError, naming the rule and its answer, where a user's rule misbehaves."""
        prefix, end, branch = _check_extend(prefix, end, branch)
        if self.decide is not None:
            return _ask_user(self, geometry, prefix, end, branch)
        assert self.plan is not None
        planned, planned_donate = self.plan(geometry, prefix, end)
        if branch is None or self.branching == "ignored":
            return Decision(
                planned, bool(planned_donate), _why(self, geometry, prefix, end, planned, planned_donate)
            )
        return _with_branch(self, geometry, prefix, end, branch, planned, bool(planned_donate))

    def cut(
        self, geometry: Geometry, prefix: int, end: int, prompt_end: int, branch: int | None = None
    ) -> int:
        """Where a prefill step that could run to ``end`` stops: ``end`` itself where it completes the
        prompt, else the rule's cut grid below it; ``prefix`` where that leaves nothing."""
        if self.cuts_branch and branch is not None and prefix < branch < end:
            return branch
        grid = self.cut_grid(geometry)
        if end < prompt_end:
            return max(prefix, end // grid * grid)
        last = end // grid * grid
        return last if self.cuts_final and last > prefix else end

    def stored_depth(self, geometry: Geometry, prefix: int, end: int, depth: int) -> int:
        """The depth of the state that the kernel really stores when ``depth`` is asked of it: the chunk
        end at or before it, counted from the prefix (a state inside a chunk does not exist)."""
        if self.snapshots == "any" or depth == end:
            return depth
        if self.snapshots == "start":
            return prefix
        return prefix + (depth - prefix) // geometry.chunk_width * geometry.chunk_width


class _Registry(Mapping[str, Rule]):
    """Rules by name; an unknown name is answered with the known ones."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def __getitem__(self, name: str) -> Rule:
        if isinstance(name, str) and name in self._rules:
            return self._rules[name]
        raise UnknownRule(name, list(self._rules))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, name: object) -> bool:
        return name in self._rules

    def add(self, new: Rule) -> None:
        self._rules[new.name] = new


class UnknownRule(KeyError, ValueError):
    """No rule of that name; the message lists the rules and the nearest one."""

    def __init__(self, name: str, known: list[str]) -> None:
        from difflib import get_close_matches

        near = get_close_matches(str(name), known, n=1, cutoff=0.5)
        hint = f"; nearest: {near[0]!r}" if near else ""
        self.message = f"rule={name!r}: no such rule{hint}; there are {', '.join(known)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


RULES = _Registry()


def rule_of(rule: str | Rule) -> Rule:
    """A rule by its name, or the rule itself. Raises ValueError for anything else."""
    if isinstance(rule, str):
        return RULES[rule]
    if not isinstance(rule, Rule):
        raise ValueError(
            f"rule={rule!r}: must be a rule or its name; the decorator @rule makes one of a function"
        )
    return rule


def rule(
    name: str, *, snapshots: str = "chunk", summary: str = ""
) -> Callable[[Callable[[Geometry, int, int, int | None], Decision]], Rule]:
    """Register a user's own rule: a function ``(geometry, prefix, end, branch) -> Decision``.

    ``snapshots="any"`` claims a kernel that can store the state after any token; with ``"chunk"`` a
    depth off the chunk grid gets the state of the chunk end before it, as on a real engine.
    Registering a name again replaces a user's rule; a built-in one is refused.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name={name!r}: a rule's name must be an identifier, such as 'my_rule'")
    if name in RULES and RULES[name].decide is None:
        raise ValueError(f"name={name!r}: is a built-in rule; choose another, such as {'my_' + name!r}")
    if snapshots not in ("chunk", "any"):
        raise ValueError(f"snapshots={snapshots!r}: must be 'chunk' or 'any'")

    def register(function: Callable[[Geometry, int, int, int | None], Decision]) -> Rule:
        doc = (function.__doc__ or "").strip().splitlines()
        made = Rule(
            name, summary or (doc[0] if doc else "a user's rule"), decide=function, snapshots=snapshots
        )
        RULES.add(made)
        return made

    return register


def decide_many(
    rule: str | Rule,
    geometry: Geometry,
    prefix: npt.ArrayLike,
    end: npt.ArrayLike,
    branch: npt.ArrayLike | None = None,
) -> Decisions:
    """Decide for many extends at once: int arrays ``[n]`` of tokens; ``branch`` -1 where there is none.

    Equal to calling the rule on each element. Raises ValueError where shapes differ or an extend is
    impossible, naming the first such index.
    """
    chosen = rule_of(rule)
    starts, ends = _as_tokens("prefix", prefix), _as_tokens("end", end)
    branches = None if branch is None else _as_tokens("branch", branch)
    for name, array in (("end", ends), ("branch", branches)):
        if array is not None and array.shape != starts.shape:
            raise ValueError(f"{name}: shape {array.shape} must equal the shape of prefix {starts.shape}")
    wrong = np.flatnonzero((starts < 0) | (ends < starts))
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(f"end[{i}]={ends[i]}: must be at least prefix[{i}]={starts[i]}, and both at least 0")
    if branches is not None and (zeros := np.flatnonzero(branches == 0)).size:
        raise ValueError(f"branch[{zeros[0]}]=0: must be a positive depth, or -1 where there is none")
    out = Decisions(np.empty(starts.shape, np.int64), np.empty(starts.shape, np.bool_))
    for at in range(0, starts.size, _BLOCK):
        rows = slice(at, at + _BLOCK)
        part = None if branches is None else branches[rows]
        out.depth[rows], out.donate[rows] = _decide_block(chosen, geometry, starts[rows], ends[rows], part)
    return out


_BLOCK = 1 << 15  # rows that stay in a core's cache


def _decide_block(
    chosen: Rule, geometry: Geometry, prefix: Tokens, end: Tokens, branch: Tokens | None
) -> tuple[Tokens, Truth]:
    if chosen.plan is None:
        answers = [
            chosen(geometry, int(p), int(e), None if branch is None or branch[i] < 0 else int(branch[i]))
            for i, (p, e) in enumerate(zip(prefix, end, strict=True))
        ]
        return [-1 if a.depth is None else a.depth for a in answers], [a.donate for a in answers]
    depth, donate = chosen.plan(geometry, prefix, end)
    if branch is None or chosen.branching == "ignored":
        return depth, donate
    if chosen.branching == "also":
        alone = ~donate & _producible(geometry, prefix, end, branch, chosen.snapshots)
        return np.where(alone, branch, depth), donate | alone
    take = donate & _branch_fits(geometry, prefix, end, branch, depth)
    return np.where(take, branch, depth), donate


def _with_branch(
    self: Rule, g: Geometry, prefix: int, end: int, branch: int, planned: int, donate: bool
) -> Decision:
    if self.branching == "replaces":
        if donate and _branch_fits(g, prefix, end, branch, planned):
            why = f"branch depth {branch} replaces {planned}: two texts part there, and it has no state"
            return Decision(branch, True, why)
        return Decision(planned, donate, _why(self, g, prefix, end, planned, donate))
    if not _producible(g, prefix, end, branch, self.snapshots) or branch == planned:
        return Decision(planned, donate, _why(self, g, prefix, end, planned, donate))
    if not donate:
        return Decision(branch, True, f"branch depth {branch}: two texts part there, and it has no state")
    why = _why(self, g, prefix, end, planned, donate)
    return Decision(planned, True, f"{why}; also branch depth {branch}", (branch,))


# --- the arithmetic, once for ints and arrays -------------------------------------------------------------


def _chunk_grid(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    extend = end - prefix
    return prefix + extend // g.cache_chunk * g.cache_chunk, extend >= g.cache_chunk


def _prefix_relative(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    extend = end - prefix
    return prefix + extend // g.checkpoint_grid * g.checkpoint_grid, extend >= g.checkpoint_grid


def _absolute(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    depth = end // g.checkpoint_grid * g.checkpoint_grid
    return depth, (depth > prefix) & ((depth - prefix) % g.cache_chunk == 0)


def _dcp_gated(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    return _absolute(g, prefix, end) if g.dcp_size > 1 else _prefix_relative(g, prefix, end)


def _page_exact(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    depth = end // g.tree_page * g.tree_page
    return depth, depth > prefix


def _vllm_align(g: Geometry, prefix: Tokens, end: Tokens) -> tuple[Tokens, Truth]:
    depth = end // g.tree_page * g.tree_page
    return depth, (depth == end) & (depth > prefix)


def _branch_fits(g: Geometry, prefix: Tokens, end: Tokens, branch: Tokens, planned: Tokens) -> Truth:
    """SGLang's condition for a branch depth to replace a planned one: on the kernel's chunk grid, and
    before the snapshot that the kernel is asked for (``end`` itself where the planned depth is the
    last model-chunk end of the extend, else the planned depth)."""
    last_chunk_end = prefix + (end - prefix) // g.chunk_width * g.chunk_width
    before = ((last_chunk_end == planned) & (branch < end)) | (branch <= planned)
    return (prefix < branch) & ((branch - prefix) % g.cache_chunk == 0) & before


def _producible(g: Geometry, prefix: Tokens, end: Tokens, depth: Tokens, snapshots: str) -> Truth:
    """Whether a kernel can store ``depth`` inside this extend and a tree node can end there."""
    inside = (prefix < depth) & (depth <= end) & (depth % g.tree_page == 0)
    return inside if snapshots == "any" else inside & ((depth - prefix) % g.cache_chunk == 0)


def _why(self: Rule, g: Geometry, prefix: int, end: int, depth: int, donate: bool) -> str:
    """The reason in words, for the built-in rules."""
    extend = end - prefix
    if (
        self.plan is _chunk_grid
        or self.plan is _prefix_relative
        or (self.plan is _dcp_gated and g.dcp_size == 1)
    ):
        grid, name = (
            (g.cache_chunk, "cache_chunk") if self.plan is _chunk_grid else (g.checkpoint_grid, "the grid")
        )
        if not donate:
            return f"extend {extend} is shorter than {name} {grid}"
        return f"{depth} = {prefix} + {extend // grid}·{grid}: the last multiple of {name} counted from the prefix"
    grid = g.tree_page if self.plan in (_page_exact, _vllm_align) else g.checkpoint_grid
    if donate:
        name = "tree_page" if grid == g.tree_page else "the grid"
        return f"{depth} = {depth // grid}·{grid}: the last multiple of {name} in the text"
    if depth <= prefix:
        return f"no multiple of {grid} lies in ({prefix}, {end}]"
    if self.plan is _vllm_align:
        return f"the step ends at {end}, off the block of {grid}"
    rest = (depth - prefix) % g.cache_chunk
    return f"{depth} is off the kernel's chunk grid: ({depth} - {prefix}) mod {g.cache_chunk} = {rest}"


def _cut_for_dcp(g: Geometry) -> int:
    return g.cache_chunk if g.dcp_size > 1 else g.page_size


for _built_in in (
    Rule(
        "chunk_grid",
        "prefix + ⌊extend/cache_chunk⌋·cache_chunk (sglang before #34808)",
        _chunk_grid,
        branching="replaces",
    ),
    Rule(
        "prefix_relative",
        "prefix + ⌊extend/grid⌋·grid (sglang#34808)",
        _prefix_relative,
        branching="replaces",
    ),
    Rule(
        "absolute",
        "⌊end/grid⌋·grid, where the kernel has a snapshot (sglang#39115)",
        _absolute,
        branching="replaces",
    ),
    Rule(
        "dcp_gated",
        "absolute under DCP, else prefix_relative; cuts on cache_chunk under DCP (sglang 0.5.23)",
        _dcp_gated,
        branching="replaces",
        cut_grid=_cut_for_dcp,
    ),
    Rule(
        "page_exact",
        "⌊end/tree_page⌋·tree_page; the kernel snapshots at any token; a branch depth as well",
        _page_exact,
        branching="also",
        snapshots="any",
    ),
    Rule(
        "vllm_align",
        "every step that ends on the block leaves its final state; steps are cut on the block (vllm#30877)",
        _vllm_align,
        cut_grid=lambda g: g.tree_page,
        cuts_final=True,
    ),
    Rule(
        "marconi",
        "the last grid point, and the branch depth once two texts have parted (Marconi, MLSys 2025)",
        _absolute,
        branching="also",
    ),
):
    RULES.add(_built_in)


# --- checks at the door -----------------------------------------------------------------------------------


def _check_extend(prefix: int, end: int, branch: int | None) -> tuple[int, int, int | None]:
    """The three as Python ints. Raises ValueError for what is no extend."""
    if type(prefix) is not int or type(end) is not int or (branch is not None and type(branch) is not int):
        prefix, end = _whole("prefix", prefix), _whole("end", end)
        branch = None if branch is None else _whole("branch", branch)
    if prefix < 0:
        raise ValueError(f"prefix={prefix}: must be at least 0; nearest legal: 0")
    if end < prefix:
        raise ValueError(f"end={end}: must be at least prefix={prefix}; nearest legal: {prefix}")
    if branch is not None and branch < 1:
        raise ValueError(f"branch={branch}: must be None or a positive depth")
    return prefix, end, branch


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _whole(name: str, value: Any) -> int:
    if _is_whole(value):
        return int(value)
    raise ValueError(f"{name}={value!r}: must be a whole number of tokens, not {type(value).__name__}")


def _as_tokens(name: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name}: must be a one-dimensional integer array, got {array.dtype} {array.shape}")
    if array.size and array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: {array.max()} does not fit in 64 bits; a depth is a number of tokens")
    return array.astype(np.int64, copy=False)


def _ask_user(self: Rule, g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
    assert self.decide is not None
    where = f"rule {self.name!r} on the extend [{prefix}, {end}) with branch {branch}"
    try:
        answer = self.decide(g, prefix, end, branch)
    except Exception as error:
        raise RuleError(f"{where} raised {type(error).__name__}: {error}") from error
    try:
        return _usable(answer, prefix, end)
    except ValueError as error:
        raise RuleError(f"{where} answered {answer!r}: {error}") from None


def _usable(answer: object, prefix: int, end: int) -> Decision:
    """The answer with plain Python values; ValueError where it is no usable decision."""
    if not isinstance(answer, Decision):
        raise ValueError("must be a Decision(depth, donate, reason)")
    depth, donate, reason, also = answer
    depths = list(also) if isinstance(also, (tuple, list)) else [None]
    if not all(map(_is_whole, depths)) or not (depth is None or _is_whole(depth)):
        raise ValueError("depths must be whole numbers of tokens")
    if not isinstance(donate, (bool, np.bool_)):
        raise ValueError("donate must be True or False")
    if not isinstance(reason, str):
        raise ValueError("reason must be text")
    if donate and (depth is None or not all(prefix < d <= end for d in [depth, *depths])):
        raise ValueError(f"a donated depth must lie in ({prefix}, {end}]")
    return Decision(
        None if depth is None else int(depth), bool(donate), reason, tuple(int(d) for d in depths)
    )
