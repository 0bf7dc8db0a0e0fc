"""Eviction orders for KV leaves: each answers which unlocked leaf goes next."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from depthchart.cache.node import Node
from depthchart.cache.outlook import Outlook
from depthchart.cache.worth import Worth
from depthchart.errors import one_of

__all__ = ["ORDERS", "POLICIES", "LeafOrder", "LeafQueue", "leaf_order"]

FEW_LEAVES = 1024  # below this nothing is worth clearing out
Key: TypeAlias = Callable[[Node], Any]


class LeafOrder(Protocol):
    """Leaves that may go. ``offer`` says that a node may be evictable now; ``pop`` takes out the next one."""

    def offer(self, node: Node) -> None: ...
    def pop(self) -> Node | None: ...
    def remembered(self) -> Iterable[int]:
        """Prefix ids of what went, as far as the order remembers any."""
        return ()


POLICIES: dict[str, Key] = {
    "lru": lambda node: node.last_use,
    "lfu": lambda node: (node.hits, node.last_use),
    "fifo": lambda node: node.created,
    "filo": lambda node: -node.created,
    "slru": lambda node: (node.hits >= 2, node.last_use),
    "priority": lambda node: (node.priority, node.last_use),
}
"""Orders that are a key, the smallest going first. lru: least recently used; lfu: least often inserted again;
fifo / filo: oldest / newest first; slru: nodes inserted twice again are protected; priority: the lowest request
priority first. A key may only grow while its node waits."""


class LeafQueue(LeafOrder):
    """Leaves by a key, kept lazily: a stale entry is put right when it comes to the front."""

    def __init__(self, policy: str) -> None:
        self._key = POLICIES[policy]
        self._heap: list[tuple[Any, int, Node]] = []
        self._limit = FEW_LEAVES

    def offer(self, node: Node) -> None:
        if not node.in_heap:
            node.in_heap = True
            heapq.heappush(self._heap, (self._key(node), node.node_id, node))
            if len(self._heap) > self._limit:
                self._drop_removed()

    def pop(self) -> Node | None:
        """The next evictable leaf, or None. It leaves the queue; a locked or inner node is dropped from
        it and must be offered again when it becomes an unlocked leaf."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.in_heap = False
            if not _evictable(node):
                continue
            if key != self._key(node):
                self.offer(node)
                continue
            return node
        return None

    def _drop_removed(self) -> None:
        """Nodes that went with their state never come to the front where KV is not short."""
        self._heap = [entry for entry in self._heap if entry[2].parent is not None]
        heapq.heapify(self._heap)
        self._limit = max(2 * len(self._heap), FEW_LEAVES)


class _Waiting(NamedTuple):
    """A leaf as it was when it entered a queue, and how many more rounds it gets there."""

    last_use: int
    tokens: int
    rounds: int


class S3Fifo(LeafOrder):
    """S3-FIFO (Yang et al., SOSP 2023) over leaves, sizes in tokens.

    New leaves wait in a small queue; one that was used in the meantime moves to the main queue, another goes
    and is remembered, without its KV, for as long as the main queue has room; what comes back while it
    is remembered starts in the main queue. The main queue gives each leaf as many more rounds as it had uses, at
    most three. "-like", since edges split and leaves become inner nodes, which the paper's objects do not.
    """

    SMALL_SHARE, ROUNDS = 0.1, 3

    def __init__(self) -> None:
        self._small: OrderedDict[Node, _Waiting] = OrderedDict()
        self._main: OrderedDict[Node, _Waiting] = OrderedDict()
        self._small_tokens = self._main_tokens = self._ghost_tokens = 0
        self._ghosts: OrderedDict[int, int] = OrderedDict()  # prefix id of the edge's first page -> tokens
        self._limit = FEW_LEAVES

    def offer(self, node: Node) -> None:
        if node in self._small or node in self._main:
            return
        tokens = self._ghosts.pop(node.ids[0], None)
        if tokens is not None:
            self._ghost_tokens -= tokens
            self._to_main(node, 0)
        else:
            self._small[node] = _Waiting(node.last_use, node.tokens, 0)
            self._small_tokens += node.tokens
        if len(self._small) + len(self._main) > self._limit:
            self._drop_removed()

    def pop(self) -> Node | None:
        while self._small or self._main:
            share = self.SMALL_SHARE * (self._small_tokens + self._main_tokens)
            from_small = self._small and (not self._main or self._small_tokens > share)
            node = self._pop_small() if from_small else self._pop_main()
            if node is not None:
                return node
        return None

    def remembered(self) -> Iterable[int]:
        return self._ghosts

    def _drop_removed(self) -> None:
        """Nodes that went with their state never come to a front where KV is not short."""
        self._small, self._small_tokens = _still_there(self._small)
        self._main, self._main_tokens = _still_there(self._main)
        self._limit = max(2 * (len(self._small) + len(self._main)), FEW_LEAVES)

    def _pop_small(self) -> Node | None:
        node, was = self._small.popitem(last=False)
        self._small_tokens -= was.tokens
        if not _evictable(node):
            return None
        if node.last_use > was.last_use:
            self._to_main(node, 1)
            return None
        self._remember(node)
        return node

    def _pop_main(self) -> Node | None:
        node, was = self._main.popitem(last=False)
        self._main_tokens -= was.tokens
        if not _evictable(node):
            return None
        rounds = min(was.rounds + (node.last_use > was.last_use), self.ROUNDS)
        if rounds:
            self._to_main(node, rounds - 1)
            return None
        return node

    def _to_main(self, node: Node, rounds: int) -> None:
        self._main[node] = _Waiting(node.last_use, node.tokens, rounds)
        self._main_tokens += node.tokens

    def _remember(self, node: Node) -> None:
        self._ghosts[node.ids[0]] = node.tokens
        self._ghost_tokens += node.tokens
        while self._ghosts and self._ghost_tokens > max(self._main_tokens, self._small_tokens):
            self._ghost_tokens -= self._ghosts.popitem(last=False)[1]


def _still_there(queue: OrderedDict[Node, _Waiting]) -> tuple[OrderedDict[Node, _Waiting], int]:
    """A queue in its order without the nodes that are no longer in the tree, and its tokens."""
    kept = OrderedDict((node, was) for node, was in queue.items() if node.parent is not None)
    return kept, sum(was.tokens for was in kept.values())


class ScanOrder(LeafOrder):
    """The leaf of the lowest score, found by looking at every leaf: for scores that change with time.

    ``score(leaves)`` answers one number a leaf, in order; equal ones go least recently used first.
    """

    def __init__(self, score: Callable[[list[Node]], list[float]]) -> None:
        self._score = score
        self.leaves: dict[Node, None] = {}
        self._limit = FEW_LEAVES

    def offer(self, node: Node) -> None:
        self.leaves[node] = None
        if len(self.leaves) > self._limit:  # nodes that went with their state
            self.leaves = {leaf: None for leaf in self.leaves if leaf.parent is not None}
            self._limit = max(2 * len(self.leaves), FEW_LEAVES)

    def pop(self) -> Node | None:
        leaves = [node for node in self.leaves if _evictable(node)]
        if not leaves:
            self.leaves.clear()
            return None
        if len(leaves) < len(self.leaves):
            self.leaves = dict.fromkeys(leaves)
        scores = self._score(leaves)
        chosen = min(
            zip(scores, leaves, strict=True), key=lambda pair: (pair[0], pair[1].last_use, pair[1].node_id)
        )[1]
        del self.leaves[chosen]
        return chosen


class SizeAware(LeafOrder):
    """GreedyDual-Size-Frequency (Cherkasova, 1998) with equal costs: a leaf's credit is its uses over its pages, on
    top of the credit of the last leaf that went, so that large leaves go early and none stays for ever."""

    def __init__(self) -> None:
        self._floor = 0.0
        self._credit: dict[Node, tuple[int, float]] = {}  # node -> last use seen, credit
        self._limit = FEW_LEAVES
        self._scan = ScanOrder(lambda leaves: [self._now(leaf) for leaf in leaves])

    def offer(self, node: Node) -> None:
        self._now(node)
        self._scan.offer(node)
        if len(self._credit) > self._limit:
            self._credit = {leaf: was for leaf, was in self._credit.items() if leaf.parent is not None}
            self._limit = max(2 * len(self._credit), FEW_LEAVES)

    def pop(self) -> Node | None:
        node = self._scan.pop()
        if node is not None:
            self._floor = self._credit[node][1]
        self._credit = {leaf: self._credit[leaf] for leaf in self._scan.leaves}
        return node

    def _now(self, node: Node) -> float:
        seen = self._credit.get(node)
        if seen is None or seen[0] != node.last_use:
            seen = self._credit[node] = (node.last_use, self._floor + (1 + node.hits) / len(node.ids))
        return seen[1]


def marconi_scores(nodes: list[Node], worth: Worth, weight: float = 1.0) -> list[float]:
    """Recency plus ``weight`` times work per memory, both scaled to [0, 1] over the candidates (Pan et al., Marconi,
    MLSys 2025, arXiv:2411.19379; its weight is tuned by replaying the trace)."""
    recency = _scaled([float(node.last_use) for node in nodes])
    return [
        r + weight * w
        for r, w in zip(recency, _scaled([worth.work_per_memory(n) for n in nodes]), strict=True)
    ]


def _scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def _evictable(node: Node) -> bool:
    return node.parent is not None and not node.children and not node.kv_locks


ORDERS: dict[str, Callable[[Outlook], LeafOrder]] = {
    **{name: (lambda outlook, name=name: LeafQueue(name)) for name in POLICIES},  # type: ignore[misc]
    "s3fifo": lambda outlook: S3Fifo(),
    "size": lambda outlook: SizeAware(),
    "flops": lambda outlook: ScanOrder(partial(marconi_scores, worth=outlook.worth)),
    "gain": lambda outlook: ScanOrder(outlook.gains_per_token),
}
"""All orders by name: those of POLICIES, s3fifo, size (GreedyDual-Size-Frequency), flops (Marconi) and gain (the
fewest tokens that a state is expected to save, for the KV that it takes)."""


def leaf_order(policy: str, outlook: Outlook) -> LeafOrder:
    """A fresh order; raises ValueError with the nearest name where there is no such policy."""
    return ORDERS[one_of("eviction", policy, ORDERS)](outlook)
