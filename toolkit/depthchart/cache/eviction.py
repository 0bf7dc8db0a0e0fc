"""Eviction orders for KV leaves: a policy is a key; the leaf with the smallest key goes first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

from depthchart.cache.node import Node

__all__ = ["POLICIES", "LeafQueue"]

Key: TypeAlias = Callable[[Node], Any]

POLICIES: dict[str, Key] = {
    "lru": lambda node: node.last_use,
    "lfu": lambda node: (node.hits, node.last_use),
    "fifo": lambda node: node.created,
    "filo": lambda node: -node.created,
    "slru": lambda node: (node.hits >= 2, node.last_use),
    "priority": lambda node: (node.priority, node.last_use),
}
"""lru: least recently used; lfu: least often inserted again; fifo / filo: oldest / newest first; slru:
nodes inserted twice again are protected; priority: the lowest request priority first."""


class LeafQueue:
    """Leaves in eviction order, kept lazily: a stale entry is put right when it comes to the front.

    A key may only grow while its node waits here (it does for every policy: clocks and counts grow).
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"eviction={policy!r}: must be one of {', '.join(POLICIES)}")
        self._key = POLICIES[policy]
        self._heap: list[tuple[Any, int, Node]] = []

    def offer(self, node: Node) -> None:
        """Tell the queue that the node may be evictable now."""
        if not node.in_heap:
            node.in_heap = True
            heapq.heappush(self._heap, (self._key(node), node.node_id, node))

    def pop(self) -> Node | None:
        """The next evictable leaf, or None. It leaves the queue; a locked or inner node is dropped from
        it and must be offered again when it becomes an unlocked leaf."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.in_heap = False
            if node.parent is None or node.children or node.kv_locks:
                continue
            if key != self._key(node):
                self.offer(node)
                continue
            return node
        return None
