"""What is searched: geometries, histories, and which of them stand for others.

Lengths are in tokens. The geometries are all combinations of the listed values, less those that behave as one
that is listed already (``reduced``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields as fields_of
from itertools import product

from depthchart.cases.script import DECODE_GRIDS, UnwidenedTracking
from depthchart.depth import Rule
from depthchart.geometry import Geometry
from depthchart.presets import Preset

__all__ = ["CUTS", "POOLS", "Bounds", "Plan", "geometries", "plans"]

CUTS = ("any", "page")
POOLS = ("roomy", "tight")
_LISTS = ("page_size", "index_pool", "dcp_size", "chunk_width", "track_interval")


@dataclass(frozen=True)
class Bounds:
    """The edges of a search.

    Parameters
    ----------
    page_size, dcp_size, chunk_width, index_pool, track_interval: the values to combine.
    chunked_prefill_size: budgets of a prefill step; empty: one that is never in the way, which covers every
        smaller one (see ``plans``).
    tokens: most tokens that a history computes, prefill and decode together.
    steps: most steps of a history.
    requests: most requests that a history begins.
    together: most requests that run at the same time.
    tokens_together: most tokens of a history in which two or more run at the same time (there are many more).
    evictions: most evictions by name (tight pools evict more by themselves).
    cuts: ``"any"``: other rows may leave a step any budget; ``"page"``: whole pages only, as in an engine that
        continues one prefill at a time and decodes in steps of their own.
    pools: ``"roomy"``: nothing is evicted unless a step says so; ``"tight"``: pages for half of the
        tokens, and slots for one request, the state that it matched, and one more (longer texts are rejected).
    decode_grid: ``"lcm"``: decode checkpoints on lcm(grid, interval); ``"interval"``: as before sglang#35412.

    Raises ValueError naming the bound, its value and what is legal.
    """

    page_size: tuple[int, ...] = (1, 2)
    dcp_size: tuple[int, ...] = (1, 2, 3)
    chunk_width: tuple[int, ...] = (1, 2, 4)
    index_pool: tuple[int, ...] = (1, 2)
    track_interval: tuple[int, ...] = (1, 3)
    chunked_prefill_size: tuple[int, ...] = ()
    tokens: int = 6
    steps: int = 8
    requests: int = 2
    together: int = 2
    tokens_together: int = 3
    evictions: int = 1
    cuts: str = "any"
    pools: tuple[str, ...] = POOLS
    decode_grid: str = "lcm"

    def __post_init__(self) -> None:
        for name in (*_LISTS, "chunked_prefill_size"):
            values = getattr(self, name)
            if not values and name != "chunked_prefill_size":
                raise ValueError(f"{name}=(): give at least one value")
            if any(not isinstance(value, int) or isinstance(value, bool) or value < 1 for value in values):
                raise ValueError(f"{name}={values!r}: must be positive whole numbers; nearest legal: (1,)")
        for name in ("tokens", "steps", "requests", "together", "tokens_together"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1; nearest legal: 1")
        if self.evictions < 0:
            raise ValueError(f"evictions={self.evictions}: must be at least 0; nearest legal: 0")
        for name, value, known in (
            ("cuts", self.cuts, CUTS),
            ("decode_grid", self.decode_grid, DECODE_GRIDS),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}")
        if not self.pools or not set(self.pools) <= set(POOLS):
            raise ValueError(f"pools={self.pools!r}: must be some of {', '.join(POOLS)}")

    def as_dict(self) -> dict[str, object]:
        """The bounds, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields_of(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True)
class Plan:
    """One geometry with its pools: KV tokens and state slots."""

    geometry: Geometry
    pool: str
    kv_tokens: int
    state_slots: int


def plans(bounds: Bounds, subject: Rule | Preset) -> tuple[list[Plan], int, int]:
    """The geometries to search with their pools; how many more behave as one of them; how many are too wide
    (their tree page is longer than any history).

    A user's own rule may read any field of a geometry, so there all are kept. The built-in rules, those of the presets
    (``depthchart.rules``), the tree and the lifecycle read no more than the cache chunk, the chunk width, the tree
    page, whether there is DCP, the decode grid and where steps may end. So two geometries behave alike
    under a built-in rule where those agree, and

    - a chunk or a decode grid that is longer than every history is like any other that is;
    - where others may leave a step any budget, a step on page 1 may end anywhere, so also wherever a wider page lets
      it end (the page then matters through the cache chunk alone);
    - ``chunked_prefill_size`` is read by the step's budget alone, and every leftover from 1 up to it is tried: what a
      smaller one allows is among them, so one budget that is never in the way covers all smaller ones. (``spaced``
      reads it as well, to tell a cut: give small ones to have it search with them.)
    """
    kept: dict[object, Geometry] = {}
    alike = wide = 0
    for geometry in geometries(bounds):
        if geometry.tree_page > bounds.tokens:
            wide += 1
            continue
        own = isinstance(subject, Rule) and subject.plan is None
        key = geometry if own else _alike(geometry, bounds, subject)
        alike += key in kept
        kept.setdefault(key, geometry)
    found = [_plan(geometry, pool, bounds, subject) for geometry in kept.values() for pool in bounds.pools]
    return found, alike, wide


def _alike(geometry: Geometry, bounds: Bounds, subject: Rule | Preset) -> object:
    rule = subject if isinstance(subject, Rule) else subject.make_rule(geometry, bounds.tokens, 1)
    never = bounds.tokens + 1  # no text within the bounds is as long
    chunks = min(geometry.cache_chunk, never), min(geometry.chunk_width, never)
    page = 1 if bounds.cuts == "any" else geometry.page_size
    tree = geometry.tree_page, geometry.dcp_size > 1, min(rule.decode_grid(geometry), never)
    return (*chunks, page, *tree, geometry.chunked_prefill_size)


def geometries(bounds: Bounds) -> Iterator[Geometry]:
    """All legal combinations of the listed values."""
    kind = UnwidenedTracking if bounds.decode_grid == "interval" else Geometry
    budgets = bounds.chunked_prefill_size or (bounds.tokens + 1,)
    for values in product(*(getattr(bounds, name) for name in _LISTS), budgets):
        fields = dict(zip((*_LISTS, "chunked_prefill_size"), values, strict=True))
        small, large = sorted((fields["page_size"], fields["chunk_width"]))
        if large % small == 0:  # no engine starts with others: Geometry refuses them
            yield kind(**fields)


def _plan(geometry: Geometry, pool: str, bounds: Bounds, subject: Rule | Preset) -> Plan:
    page = geometry.tree_page
    longest = -(-(bounds.tokens + 1) // page) * page
    # every request's row, and a page more each; three slots each and one for every state ever donated
    kv, slots = bounds.requests * (2 * longest + page), bounds.requests * 4 + bounds.tokens
    if pool == "tight":
        kv, slots = -(-bounds.tokens // (2 * page)) * page, 5
    if (
        isinstance(subject, Preset) and subject.joint_pool
    ):  # as many blocks as slots, and none fewer of either
        slots = max(slots, kv // page)
        kv = slots * page
    return Plan(geometry, pool, kv, slots)
