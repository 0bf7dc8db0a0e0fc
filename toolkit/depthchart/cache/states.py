"""Which state goes next when the state pool is full, and which state a match keeps fresh.

States wait in ``RadixTree.state_order``, the least recently used one first. A policy chooses one of those that are
not locked; it sees them in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from depthchart.cache.eviction import marconi_scores
from depthchart.cache.node import Node
from depthchart.cache.outlook import Outlook
from depthchart.cache.worth import covered_from

__all__ = ["MATCHINGS", "REFRESHES", "STATE_POLICIES", "StatePolicy"]

StatePolicy: TypeAlias = Callable[[Iterable[Node], Outlook], Node | None]
"""(states in LRU order, what is known of their future) -> the node whose state goes, or None."""

REFRESHES = ("used", "path")
"""used: a match refreshes the state that it uses (sglang#31648); path: all states above it as well (before)."""

MATCHINGS = ("nearest", "tip")
"""nearest: a match resumes from the deepest state on its path; tip: only from a state at the end of a stored text,
as where checkpoints are kept and never restored (llama.cpp#24035, #24055, #25592)."""


def _lru(order: Iterable[Node], outlook: Outlook) -> Node | None:
    return next((node for node in order if not node.state_locks), None)


def _coverage(order: Iterable[Node], outlook: Outlook) -> Node | None:
    """The state whose loss costs the fewest tokens to run again (after sglang#38000); tips and forks last, since that
    is where texts go on."""
    free = [node for node in order if not node.state_locks]
    return min(free, key=lambda node: (len(node.children) != 1, node.end - covered_from(node)), default=None)


def _flops(order: Iterable[Node], outlook: Outlook) -> Node | None:
    """Marconi: the lowest sum of recency and work per memory, among states with at most one child."""
    free = [node for node in order if not node.state_locks]
    candidates = [node for node in free if len(node.children) <= 1] or free
    if not candidates:
        return None
    scores = marconi_scores(candidates, outlook.worth)
    return candidates[min(range(len(scores)), key=scores.__getitem__)]


def _gain(order: Iterable[Node], outlook: Outlook) -> Node | None:
    """The state that is expected to save the fewest tokens until the next look (``Outlook``)."""
    return min((node for node in order if not node.state_locks), key=outlook.gain, default=None)


STATE_POLICIES: dict[str, StatePolicy] = {"lru": _lru, "coverage": _coverage, "flops": _flops, "gain": _gain}
