"""A node of the radix tree: an edge of whole pages with their KV, and perhaps a state at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise

from depthchart.cache.allocator import Pages
from depthchart.tokens import Ids

__all__ = ["Node", "Origin"]


class Origin(IntEnum):
    """Where in its text a state was taken; where texts differ, the lower one counts."""

    PROMPT_END = 0  # after the last whole page of the prompt
    ANSWER = 1
    WAY = 2  # within the prompt


class Node:
    """The tokens ``[start, end)`` of every text that passes through, in whole tree pages.

    ``ids`` are the prefix ids of its pages, ``pages`` their KV pages, ``state`` the slot of a state that
    should have consumed exactly ``end`` tokens. ``had_state`` tells a tombstone from a bare node,
    ``uses`` counts the texts that resumed from the state, ``origin`` is where in its text it was taken.
    """

    __slots__ = (
        "children",
        "created",
        "end",
        "had_state",
        "hits",
        "ids",
        "in_heap",
        "kv_locks",
        "last_use",
        "namespace",
        "node_id",
        "origin",
        "pages",
        "parent",
        "priority",
        "request",
        "start",
        "state",
        "state_locks",
        "uses",
    )

    def __init__(
        self, node_id: int, parent: Node | None, ids: Ids, pages: Pages, start: int, end: int
    ) -> None:
        self.node_id = node_id
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.ids, self.pages = ids, pages
        self.start, self.end = start, end
        self.state: int | None = None
        self.had_state = False
        self.origin = Origin.PROMPT_END
        self.kv_locks = self.state_locks = 0
        self.created = self.last_use = self.hits = self.priority = self.uses = 0
        self.in_heap = False
        self.request = self.namespace = ""

    def __repr__(self) -> str:
        state = "no state" if self.state is None else f"state in slot {self.state}"
        locks = f", locks {self.kv_locks}/{self.state_locks}" if self.kv_locks or self.state_locks else ""
        return f"Node {self.node_id} [{self.start}, {self.end}) {state}{locks}"

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        return self.climb()[::-1]

    def climb(self) -> list[Node]:
        """The same from this node up."""
        nodes: list[Node] = []
        node = self
        while (parent := node.parent) is not None:
            nodes.append(node)
            node = parent
        return nodes

    def walk(self) -> Iterator[Node]:
        """All nodes below this one, depth first, children in the order of their first appearance."""
        stack = list(self.children.values())[::-1]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(list(node.children.values())[::-1])

    def split(self, pages: int, page: int, node_id: int) -> Node:
        """Cut the edge after ``pages`` pages. The new node is the upper half; this one keeps its end, its
        state, its children and whoever points at it. Returns the upper half."""
        assert self.parent is not None
        assert 0 < pages < len(self.ids)
        middle = self.start + pages * page
        upper = Node(node_id, self.parent, self.ids[:pages], self.pages[:pages], self.start, middle)
        upper.kv_locks, upper.priority, upper.hits = self.kv_locks, self.priority, self.hits
        upper.created, upper.last_use = self.created, self.last_use
        upper.request, upper.namespace = self.request, self.namespace
        self.parent.children[self.ids[0]] = upper
        self.ids, self.pages, self.start, self.parent = self.ids[pages:], self.pages[pages:], middle, upper
        upper.children[self.ids[0]] = self
        return upper

    def shared_pages(self, ids: Sequence[int], at: int, stop: int) -> int:
        """How many of this edge's pages ``ids[at:stop]`` shares. Prefix ids agree up to one point and never
        after it, so the point is found by bisection."""
        limit = min(len(self.ids), stop - at)
        if limit and self.ids[limit - 1] == ids[at + limit - 1]:
            return limit
        low, high = 0, limit
        while low < high:
            middle = (low + high) // 2
            if self.ids[middle] == ids[at + middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def check(self, page: int) -> str | None:
        """What is wrong with the node in itself, in words, or None."""
        if self.start % page or self.end % page or self.end <= self.start:
            return f"{self!r}: both ends must lie on the tree page {page}, and the edge must not be empty"
        if len(self.ids) * page != self.tokens or len(self.pages) != len(self.ids):
            return f"{self!r}: has {len(self.ids)} ids and {len(self.pages)} pages for {self.tokens} tokens"
        for key, child in self.children.items():
            if child.parent is not self or child.start != self.end or child.ids[0] != key:
                return f"{self!r}: child {child!r} is hung wrongly"
        if any(child.kv_locks > self.kv_locks for child in self.children.values()):
            return f"{self!r}: a child is locked more often than its parent"
        return "an edge repeats a prefix id" if any(a == b for a, b in pairwise(self.ids)) else None
