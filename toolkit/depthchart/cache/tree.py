"""The radix tree over page-aligned prefixes: KV on every edge, a state at some node ends.

A match must end on a node that has KV on its whole path and a state at its end (DESIGN section 3). The
tree owns the KV pages and state slots that it holds and gives them back to the pools when it evicts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from depthchart.cache.allocator import PageAllocator, Pages
from depthchart.cache.eviction import leaf_order
from depthchart.cache.node import Node
from depthchart.cache.outlook import Outlook
from depthchart.cache.state_pool import StatePool
from depthchart.cache.states import MATCHINGS, REFRESHES, STATE_POLICIES
from depthchart.cache.worth import Worth
from depthchart.errors import one_of
from depthchart.events import (
    Emit,
    Locked,
    NodeAdded,
    NodeRemoved,
    NodeSplit,
    StateDropped,
    StateFiled,
    Unlocked,
    ignore,
)
from depthchart.tokens import Ids, Tag

__all__ = ["Evicted", "Inserted", "Match", "RadixTree"]


class Match(NamedTuple):
    """``node`` (the root where nothing matched) ends at ``tokens``; the KV alone reached ``kv_tokens``;
    ``branch`` is the deepest grid point inside the KV match that has no state yet, or None. ``kv_node`` is the node
    in which the KV match ended: after ``match``, it ends there."""

    node: Node
    tokens: int
    kv_tokens: int
    branch: int | None
    kv_node: Node


class Inserted(NamedTuple):
    """``node`` ends at the inserted length (the root where nothing was); the first ``existing`` tokens
    were in the tree already, so the inserter still owns its own pages for them."""

    node: Node
    existing: int


class Evicted(NamedTuple):
    kv_tokens: int = 0
    states: int = 0


class RadixTree:
    """Nodes in whole pages; ``grid`` is the checkpoint grid, on which branch depths lie.

    ``eviction`` orders KV leaves (``eviction.ORDERS``), ``state_eviction`` states (``states.STATE_POLICIES``); their
    LRU order is one of their own, in which a match refreshes what ``refresh`` says (``states.REFRESHES``).
    ``matching`` says from which states a text may resume (``states.MATCHINGS``), ``worth`` what a state saves, for
    the policies that ask. ``max_states_per_path`` caps the states on one path softly (sglang#31230).
    ``keep_tombstones`` leaves childless tombstones in place, as SGLang 0.5.23 does; otherwise they are cleaned up
    the path, since nothing can ever match them.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        states: StatePool,
        grid: int,
        *,
        eviction: str = "lru",
        state_eviction: str = "lru",
        refresh: str = "used",
        matching: str = "nearest",
        worth: Worth | None = None,
        max_states_per_path: int | None = None,
        keep_tombstones: bool = False,
        emit: Emit = ignore,
    ) -> None:
        if grid < 1:
            raise ValueError(f"grid={grid}: must be positive; nearest legal: 1")
        cap = max_states_per_path
        if cap is not None and (not isinstance(cap, int) or cap < 1):
            raise ValueError(
                f"max_states_per_path={cap!r}: must be a whole number of at least 1, or None for no cap; nearest legal: 1"
            )
        self.allocator, self.states, self.grid, self.page = allocator, states, grid, allocator.page
        self.max_states_per_path, self.keep_tombstones = max_states_per_path, keep_tombstones
        self.emit = emit
        self.root = Node(0, None, array("q"), array("i"), 0, 0)
        self.evictable_tokens = self.protected_tokens = 0
        self.state_order: dict[Node, None] = {}  # least recently used first
        self.protected_states = 0
        self.outlook = Outlook(worth or Worth())
        self._leaves = leaf_order(eviction, self.outlook)
        self._choose_state = STATE_POLICIES[one_of("state_eviction", state_eviction, STATE_POLICIES)]
        self.learns = "gain" in (eviction, state_eviction)
        self._refreshes_path = one_of("refresh", refresh, REFRESHES) == "path"
        self._tips_only = one_of("matching", matching, MATCHINGS) == "tip"
        self.clock = 0
        self.grown = (
            0  # counts what may make a match longer; as long as it stands still, matches only get shorter
        )
        self._last_id = 0

    # --- looking up ---------------------------------------------------------------------------------------

    def lookup(self, ids: Sequence[int], pages: int | None = None) -> Match:
        """The match of a text's page ids (of its first ``pages``), changing nothing."""
        usable, kv_tokens, node = self.root, 0, self.root
        for node, shared in self._visit(ids, len(ids) if pages is None else pages):
            kv_tokens = node.start + shared * self.page
            if shared < len(node.ids):
                break
            if self._resumable(node):
                usable = node
        return Match(usable, usable.end, kv_tokens, self._branch(usable.end, kv_tokens), node)

    def match(self, ids: Sequence[int], pages: int | None = None) -> Match:
        """As ``lookup``, for use: splits the edge in which the KV match ends, refreshes the KV of the whole
        path, and the state of the matched node alone."""
        usable, kv_tokens, node = self.root, 0, self.root
        seen = self._visit(ids, len(ids) if pages is None else pages)
        self._note_use(seen)
        clock = self.clock
        for node, shared in seen:
            node.last_use = clock = clock + 1
            if shared == len(node.ids) and self._resumable(node):
                usable = node
        self.clock = clock
        if seen:
            kv_tokens = node.start + shared * self.page
            if kv_tokens < node.end:
                node = self._split(node, shared)
        if usable.state is not None:
            self._refresh_used(usable)
        return Match(usable, usable.end, kv_tokens, self._branch(usable.end, kv_tokens), node)

    def has_state(self, ids: Sequence[int], pages: int, below: Node | None = None) -> bool:
        """Whether a node that holds a state ends after exactly the first ``pages`` pages of a text; ``below``: a node on
        the text's path to start from."""
        node = below or self.root
        if node.end < pages * self.page:
            seen = self._visit(ids, pages, node)
            node = seen[-1][0] if seen else node
        return node.end == pages * self.page and node.state is not None

    def pages_of(self, node: Node) -> Pages:
        """The KV pages of the whole path down to the node."""
        pages: Pages = array("i")
        for step in node.path():
            pages += step.pages
        return pages

    def known_prefixes(self) -> Iterator[int]:
        """The prefix id at the end of every node, and those that the order of eviction remembers."""
        yield from (node.ids[-1] for node in self.root.walk())
        yield from self._leaves.remembered()

    def _visit(self, ids: Sequence[int], stop: int, node: Node | None = None) -> list[tuple[Node, int]]:
        """The nodes that a text's first ``stop`` pages pass below ``node`` (the root), and how many pages of each they
        share: all but the last whole."""
        node, seen = node or self.root, []
        at = node.end // self.page
        while at < stop and (child := node.children.get(ids[at])) is not None:
            whole = len(child.ids)
            end = at + whole
            # the usual case, all shared, costs one comparison
            if end > stop or child.ids[-1] != ids[end - 1]:
                seen.append((child, shared := child.shared_pages(ids, at, stop)))
                if shared < whole:
                    break
            else:
                seen.append((child, whole))
            node, at = child, end
        return seen

    def _resumable(self, node: Node) -> bool:
        return node.state is not None and not (self._tips_only and node.children)

    def _branch(self, matched: int, kv_tokens: int) -> int | None:
        point = kv_tokens // self.grid * self.grid
        return point if point > matched else None

    # --- growing ------------------------------------------------------------------------------------------

    def insert(
        self,
        ids: Ids,
        row: Pages,
        pages: int | None = None,
        *,
        below: Node | None = None,
        request: str = "",
        namespace: str = "",
        priority: int = 0,
    ) -> Inserted:
        """Put a text's whole pages (its first ``pages``) into the tree, which takes over ``row[existing // page:pages]``;
        the inserter keeps the pages of what was there already. ``below``: a node on the text's path, not past those pages,
        to start from; the nodes above it count as used all the same."""
        if pages is None:
            pages = len(ids)
            if len(row) != pages:
                raise ValueError(f"row: {len(row)} pages for {pages} page ids; must be as many")
        node = below or self.root
        seen = self._visit(ids, pages, node)
        at, clock = node.end // self.page, self.clock
        for step in (*node.path(), *(child for child, _ in seen)):
            step.last_use = clock = clock + 1
            step.hits += 1
            if priority > step.priority:
                step.priority = priority
        self.clock = clock
        if seen:
            node, shared = seen[-1]
            at = node.start // self.page + shared
            if shared < len(node.ids):
                node = self._split(node, shared)
        existing = at * self.page
        if at < pages:
            node = self._add(node, ids[at:pages], row[at:pages], request, namespace, priority)
        return Inserted(node, existing)

    def file_state(self, node: Node, slot: int) -> bool:
        """Hand a state slot to a node; False, leaving the slot with its owner, where the node has one."""
        if node is self.root:
            raise ValueError("node: the root cannot hold a state; insert at least one page first")
        if node.state is not None:
            self._refresh_state(node)
            return False
        node.state, node.had_state, node.uses = slot, True, 0
        self.state_order[node] = None
        self.grown += 1
        self.protected_states += node.state_locks > 0
        tag = self.states.tags[slot]
        fits = tag == Tag(node.end, node.ids[-1])
        self.emit(StateFiled(node.node_id, node.end, -1 if tag is None else tag.depth, fits))
        self._cap_path(node)
        return True

    def _add(self, parent: Node, ids: Ids, pages: Pages, request: str, namespace: str, priority: int) -> Node:
        node = Node(self._fresh_id(), parent, ids, pages, parent.end, parent.end + len(ids) * self.page)
        node.request, node.namespace, node.priority = request, namespace, priority
        self._touch(node)
        node.created = node.last_use
        parent.children[ids[0]] = node
        self.grown += 1
        self.evictable_tokens += node.tokens
        self._leaves.offer(node)
        self.emit(NodeAdded(node.node_id, parent.node_id, node.start, node.end, request, namespace))
        return node

    def _split(self, node: Node, pages: int) -> Node:
        """Cut the edge; both halves were used just now."""
        upper = node.split(pages, self.page, self._fresh_id())
        self._touch(upper)
        self.emit(NodeSplit(node.node_id, upper.node_id, upper.end))
        return upper

    def _cap_path(self, node: Node) -> None:
        """Drop the shallowest inner states of the path until the cap holds; forks, locked nodes, leaves and
        the new state stay, so the cap is soft."""
        if self.max_states_per_path is None:
            return
        holders = [step for step in node.path() if step.state is not None]
        excess = len(holders) - self.max_states_per_path
        for step in holders:
            if excess <= 0:
                break
            if step is not node and len(step.children) == 1 and not step.state_locks:
                self._drop_state(step, "path cap")
                excess -= 1

    # --- locks --------------------------------------------------------------------------------------------

    def lock(self, node: Node, *, state: bool = True) -> None:
        """Protect the KV of the whole path, and the state of this one node (where it has one)."""
        for step in node.climb():
            if not step.kv_locks:
                self._protect(step)
            step.kv_locks += 1
        if node is not self.root:
            if state:
                self._lock_state(node)
            self.emit(Locked(node.node_id, state))

    def unlock(self, node: Node, *, state: bool = True) -> None:
        """Undo one ``lock`` of the same node (a split in between does not matter)."""
        for step in node.climb():
            assert step.kv_locks > 0, f"{step!r} is not locked"
            step.kv_locks -= 1
            if not step.kv_locks:
                tokens = step.end - step.start
                self.evictable_tokens += tokens
                self.protected_tokens -= tokens
                if not step.children:
                    self._leaves.offer(step)
        if node is not self.root:
            if state:
                self._unlock_state(node)
            self.emit(Unlocked(node.node_id, state))

    def _protect(self, node: Node) -> None:
        tokens = node.end - node.start
        self.evictable_tokens -= tokens
        self.protected_tokens += tokens

    def _lock_state(self, node: Node) -> None:
        self.protected_states += node.state is not None and not node.state_locks
        node.state_locks += 1

    def _unlock_state(self, node: Node) -> None:
        assert node.state_locks > 0, f"{node!r}: its state is not locked"
        node.state_locks -= 1
        self.protected_states -= node.state is not None and not node.state_locks

    def move_lock(self, node: Node, below: Node) -> None:
        """The lock of ``node`` goes to one ``below`` it: as ``lock`` of that one and ``unlock`` of this, which is then no
        leaf and still under the lock."""
        for step in below.climb():
            if step is node:
                break
            if not step.kv_locks:
                self._protect(step)
            step.kv_locks += 1
        self._lock_state(below)
        self.emit(Locked(below.node_id, True))
        if node is not self.root:
            self._unlock_state(node)
            self.emit(Unlocked(node.node_id, True))

    @property
    def evictable_states(self) -> int:
        return len(self.state_order) - self.protected_states

    # --- eviction -----------------------------------------------------------------------------------------

    def evict(self, kv_tokens: int = 0, states: int = 0) -> Evicted:
        """Evict at least so much, as far as locks allow. KV goes leaf by leaf, with its state; a state of an
        inner node goes alone and leaves a tombstone, that of a leaf takes the leaf with it."""
        tokens = taken = 0
        self.outlook.now = self.clock
        if self.learns:
            self.outlook.looked(self.state_order)
        while tokens < kv_tokens and (leaf := self._leaves.pop()) is not None:
            gone, held = self._remove_leaf(leaf, "KV evicted")
            tokens, taken = tokens + gone, taken + held
        while taken < states and (holder := self._next_state()) is not None:
            gone, held = self._evict_state(holder)
            tokens, taken = tokens + gone, taken + held
        return Evicted(tokens, taken)

    def reset(self) -> None:
        """Give everything back. Raises ValueError while anything is locked."""
        if self.protected_tokens or self.protected_states:
            raise ValueError("reset: nodes are still locked; finish or abort their requests first")
        self.evict(self.evictable_tokens, len(self.state_order))

    def _next_state(self) -> Node | None:
        return self._choose_state(self.state_order, self.outlook)

    def _evict_state(self, node: Node) -> tuple[int, int]:
        if node.is_leaf and not node.kv_locks:
            return self._remove_leaf(node, "state evicted")
        self._drop_state(node, "evicted")
        return 0, 1

    def _remove_leaf(self, leaf: Node, why: str) -> tuple[int, int]:
        """Remove an unlocked leaf; then, unless they are kept, the tombstones above that became leaves. Returns the KV
        tokens and the states that went."""
        node, states = leaf, 0
        while True:
            parent, top = node.parent, node.start
            assert parent is not None
            states += node.state is not None
            self._remove(node, why if node is leaf else "childless tombstone")
            if parent is self.root or parent.children or parent.kv_locks:
                break
            if self.keep_tombstones or parent.state is not None:
                self._leaves.offer(parent)
                break
            node = parent
        return leaf.end - top, states

    def _remove(self, node: Node, why: str) -> None:
        assert node.parent is not None
        if node.state is not None:
            self._drop_state(node, why)
        self.allocator.free(node.pages)
        del node.parent.children[node.ids[0]]
        self.grown += self._tips_only  # the parent may have become a tip
        node.parent = None
        tokens = node.end - node.start
        self.evictable_tokens -= tokens
        self.emit(NodeRemoved(node.node_id, tokens, why))

    def _drop_state(self, node: Node, why: str) -> None:
        assert node.state is not None
        self.states.free(node.state)
        node.state = None
        del self.state_order[node]
        self.emit(StateDropped(node.node_id, why))

    # --- small helpers ------------------------------------------------------------------------------------

    def _touch(self, node: Node) -> None:
        self.clock += 1
        node.last_use = self.clock

    def _refresh_state(self, node: Node) -> None:
        del self.state_order[node]
        self.state_order[node] = None

    def _note_use(self, seen: list[tuple[Node, int]]) -> None:
        """Tell the outlook which state a match is about to use, while its age can still be seen, and which
        evicted one it would have used instead."""
        self.outlook.now = self.clock
        missed = False
        for node, shared in reversed(seen):
            if shared < len(node.ids):
                continue
            if self._resumable(node):
                return self.outlook.used(node)
            if node.had_state and not missed:
                missed = True
                self.outlook.missed(node)

    def _refresh_used(self, node: Node) -> None:
        above = [step for step in node.path()[:-1] if step.state is not None] if self._refreshes_path else []
        for step in (*above, node):
            self._refresh_state(step)

    def _fresh_id(self) -> int:
        self._last_id += 1
        return self._last_id
