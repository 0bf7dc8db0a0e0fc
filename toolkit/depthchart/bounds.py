"""The most that any cache could reuse, knowing the future: Belady's bounds for KV and for states.

The problem is that of ``serial.serve``: one request at a time, in order, whole tree pages, a match of at most one token
less than the prompt; whole pools, whatever depth rule and eviction. Three bounds, in tokens:

* ``unbounded``: pools without end. Exact.
* ``kv``: the KV pool alone is limited. Exact: the optimum of a cache that needs no states. A page kept from one text that
  holds it to the next saves one page there and takes one page of room while the texts between run; whatever is
  dropped is computed again where it next occurs, so these stretches do not depend on each other. Of unit stretches
  under a capacity, dropping the one that ends last whenever there are too many is optimal (Belady, 1966),
  and since a page occurs wherever its successors do, what is kept is always a set of whole prefixes.
* ``states``: the state pool alone is limited. A proven upper bound, not always reached: a request resumes from one state,
  kept since the last text that passed its depth, which takes one slot while the texts between run. Choosing one such
  state a request under the capacity is an integer programme; by weak duality every price of a slot per
  request gives an upper bound of it, and the lowest found in a number of price updates is returned.

Any cache is limited by all three, so the least of them is a bound as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from depthchart.geometry import Geometry
from depthchart.tokens import Ids, PrefixIndex, Text
from depthchart.traces.trace import TraceRequest, canonical

__all__ = ["RUNNING_SLOTS", "Bounds", "bounds", "kv_bound", "state_bound"]

RUNNING_SLOTS = 3
"""State slots of a running request (working state and two for checkpoints): the cache has what is left."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Reused tokens that no cache exceeds; see the module. ``least`` is the one to compare with."""

    prompt_tokens: int
    unbounded: int
    kv: int
    states: int

    @property
    def least(self) -> int:
        return min(self.unbounded, self.kv, self.states)

    @property
    def binding(self) -> str:
        """Which of the three it is, and of which kind."""
        if self.least == self.unbounded:
            return "unbounded cache (exact)"
        return (
            "KV pool (exact without states)" if self.least == self.kv else "state pool (proven upper bound)"
        )


class Visit(NamedTuple):
    """One request: ids of the whole pages of prompt and reply, how many of them a match can give, pages that it holds
    while it runs."""

    ids: Ids
    usable: int
    row: int


def bounds(
    trace: Iterable[TraceRequest],
    geometry: Geometry,
    kv_tokens: int,
    state_slots: int,
    *,
    index: PrefixIndex | None = None,
    rounds: int = 200,
) -> Bounds:
    """All bounds for a trace; ``rounds`` price updates for the states. Requests that never fit are left out, as in
    ``serve``."""
    page, requests = geometry.tree_page, list(trace)
    if kv_tokens < page:
        raise ValueError(f"kv_tokens={kv_tokens}: must hold at least one page; nearest legal: {page}")
    visits = _visits(requests, index or PrefixIndex(page), kv_tokens // page)
    choices = _choices(visits)
    best = np.zeros(len(visits), np.int64)
    np.maximum.at(best, choices.request, choices.pages)
    return Bounds(
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        unbounded=int(best.sum()) * page,
        kv=kv_bound(visits, kv_tokens // page) * page,
        states=state_bound(choices, len(visits), state_slots - RUNNING_SLOTS, rounds) * page,
    )


def kv_bound(visits: list[Visit], capacity: int) -> int:
    """Pages that the best cache of ``capacity`` pages reuses."""
    next_use = _next_uses(visits)
    kept: dict[int, int] = {}  # page -> when it is next of use
    order: list[
        tuple[int, int, int]
    ] = []  # (-next use, -depth, page): the farthest first, of equal ones the deepest
    hits = 0
    for at, visit in enumerate(visits):
        hits += sum(kept.pop(page, -1) == at for page in visit.ids[: visit.usable])
        for page in visit.ids[visit.usable :]:
            kept.pop(page, None)
        while len(kept) > capacity - visit.row:
            when, _, page = heapq.heappop(order)
            if kept.get(page) == -when:
                del kept[page]
        for depth, (page, when) in enumerate(zip(visit.ids, next_use[at], strict=True)):
            if when >= 0:
                kept[page] = when
                heapq.heappush(order, (-when, -depth, page))
    return hits


class Choices(NamedTuple):
    """Request ``request[i]`` could resume after ``pages[i]`` pages from a state kept since request ``since[i]``."""

    request: Ints
    since: Ints
    pages: Ints


def state_bound(choices: Choices, requests: int, slots: int, rounds: int = 200) -> int:
    """Pages that no cache of ``slots`` states exceeds: the lowest dual value found."""
    if not choices.request.size or slots < 0:
        return 0
    owner, since, pages = choices
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    group = np.repeat(np.arange(first.size), np.diff(np.r_[first, owner.size]))
    price, lowest = np.zeros(requests), float("inf")
    step = float(pages.mean()) / max(slots, 1)
    for turn in range(rounds):
        paid = np.r_[0.0, np.cumsum(price)]
        value = pages - (
            paid[owner] - paid[since + 1]
        )  # slots are taken while requests since+1 .. owner-1 run
        best = np.maximum(np.maximum.reduceat(value, first), 0.0)
        lowest = min(lowest, float(best.sum() + slots * price.sum()))
        chosen = np.flatnonzero((value >= best[group]) & (value > 0))
        chosen = chosen[np.r_[True, group[chosen][1:] != group[chosen][:-1]]] if chosen.size else chosen
        edges = np.zeros(requests + 1)
        np.add.at(edges, since[chosen] + 1, 1.0)
        np.add.at(edges, owner[chosen], -1.0)
        excess = np.cumsum(edges)[:requests] - slots
        if not (excess > 0).any() and not price.any():
            break  # the best choices fit as they are
        price = np.maximum(0.0, price + step / (1.0 + turn / 10.0) * excess)
    return int(np.floor(lowest + 1e-6))


def _visits(requests: list[TraceRequest], index: PrefixIndex, capacity: int) -> list[Visit]:
    page, visits = index.page, []
    for request in requests:
        prompt, output = request.prompt_tokens, request.output_tokens
        if prompt + output > capacity * page:
            continue
        text = Text(index, canonical((*request.prompt, *request.output)), request.extra_key or "")
        computed = prompt + max(output - 1, 0)  # the last token's KV is never computed
        visits.append(Visit(text.ids(computed), (prompt - 1) // page, -(-computed // page)))
    return visits


def _next_uses(visits: list[Visit]) -> list[list[int]]:
    """For each page of each visit: at which visit it is next of use, or -1 where it is computed anew before."""
    known: dict[int, int] = {}
    found: list[list[int]] = []
    for at in range(len(visits) - 1, -1, -1):
        visit = visits[at]
        found.append([known.get(page, -1) for page in visit.ids])
        for depth, page in enumerate(visit.ids):
            known[page] = at if depth < visit.usable else -1
    return found[::-1]


def _choices(visits: list[Visit]) -> Choices:
    """Per request, for each earlier one that last passed some of its depths, the deepest of these."""
    passed: dict[int, int] = {}
    rows: list[tuple[int, int, int]] = []
    for at, visit in enumerate(visits):
        before = at
        for depth in range(visit.usable, 0, -1):
            since = passed.get(visit.ids[depth - 1], -1)
            if since >= 0 and since != before:
                rows.append((at, since, depth))
                before = since
        passed.update(dict.fromkeys(visit.ids, at))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Choices(table[:, 0], table[:, 1], table[:, 2])
