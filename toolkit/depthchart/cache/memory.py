"""The whole memory of an engine: KV pages, state slots and the tree, and the check of their books."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from depthchart.cache.allocator import PageAllocator, Pages
from depthchart.cache.node import Node
from depthchart.cache.state_pool import StatePool
from depthchart.cache.tree import Evicted, RadixTree
from depthchart.cache.worth import Worth
from depthchart.errors import InvariantError, MisplacedStateError, PoolExhausted
from depthchart.events import Emit, ignore
from depthchart.geometry import Geometry
from depthchart.tokens import PrefixIndex, Tag, Text

__all__ = ["Holding", "Memory"]


class Holding(NamedTuple):
    """What one running request holds besides the tree: its own pages, its slots, its lock."""

    request: str
    pages: Sequence[int]
    slots: Sequence[int]
    lock: Node | None


class Memory:
    """Pools of ``kv_tokens`` KV token slots (rounded down to tree pages) and ``state_slots`` states. Policies are those
    of ``RadixTree``; ``index``: prefix ids for this tree page, to be shared; ``branch_grid``: the grid of branch
    depths (default: the checkpoint grid)."""

    def __init__(
        self,
        geometry: Geometry,
        kv_tokens: int,
        state_slots: int,
        *,
        eviction: str = "lru",
        state_eviction: str = "lru",
        refresh: str = "used",
        matching: str = "nearest",
        worth: Worth | None = None,
        branch_grid: int | None = None,
        max_states_per_path: int | None = None,
        keep_tombstones: bool = False,
        index: PrefixIndex | None = None,
        emit: Emit = ignore,
    ) -> None:
        if index is not None and index.page != geometry.tree_page:
            raise ValueError(
                f"index: made for pages of {index.page} tokens; the tree page is {geometry.tree_page}"
            )
        self.geometry = geometry
        self.index = PrefixIndex(geometry.tree_page) if index is None else index
        self._forgets = index is None  # one that was given may serve others too
        self.allocator = PageAllocator(kv_tokens, geometry.tree_page)
        self.states = StatePool(state_slots)
        self.tree = RadixTree(
            self.allocator,
            self.states,
            geometry.checkpoint_grid if branch_grid is None else branch_grid,
            eviction=eviction,
            state_eviction=state_eviction,
            refresh=refresh,
            matching=matching,
            worth=worth,
            max_states_per_path=max_states_per_path,
            keep_tombstones=keep_tombstones,
            emit=emit,
        )

    @property
    def free_kv_tokens(self) -> int:
        return self.allocator.free_tokens

    @property
    def free_state_slots(self) -> int:
        return self.states.free_slots

    def take_pages(self, pages: int, spare: int = 0) -> Pages:
        """Allocate pages, evicting until ``pages + spare`` are free if need be. Raises PoolExhausted, taking
        none, where even eviction leaves fewer than ``pages``."""
        short = (pages + spare) * self.allocator.page - self.allocator.free_tokens
        if short > 0:
            if pages * self.allocator.page > self.allocator.free_tokens + self.tree.evictable_tokens:
                raise PoolExhausted(
                    f"{pages} pages of {self.allocator.page} KV tokens wanted; {self.allocator.free_tokens} tokens are free "
                    f"and {self.tree.evictable_tokens} evictable"
                )
            self.tree.evict(kv_tokens=short)
        return self.allocator.allocate(pages)

    def take_slot(self) -> int | None:
        """A state slot, evicting one state if need be; None where all are in use or locked."""
        if not self.states.free_slots and not self.tree.evict(states=1).states:
            return None
        return self.states.allocate()

    def take_slots(self, count: int) -> list[int] | None:
        """``count`` slots, or None and none taken."""
        if count > self.states.free_slots + self.tree.evictable_states:
            return None
        return [slot for _ in range(count) if (slot := self.take_slot()) is not None]

    def evict(self, kv_tokens: int = 0, states: int = 0) -> Evicted:
        """Evict from the tree; see ``RadixTree.evict``."""
        return self.tree.evict(kv_tokens, states)

    def forget(self, texts: Iterable[Text] = ()) -> None:
        """Let the index drop the prefixes that neither the tree nor a state nor one of ``texts`` (all those in use)
        needs, whenever it has doubled; an index that was given to this memory drops none."""
        if self._forgets and self.index.crowded:
            tags = (tag.prefix for tag in self.states.tags if tag is not None)
            ends = (text.last_id for text in texts)
            self.index.forget(chain(self.tree.known_prefixes(), tags, ends))

    def misplaced(self, node: Node, slot: int) -> str | None:
        """What is wrong with hanging the state of ``slot`` on ``node``, in words; None where it fits."""
        tag, right = self.states.tags[slot], Tag(node.end, node.ids[-1])
        if tag == right:
            return None
        if tag is None:
            return f"the state for the node ending at {node.end} was never written"
        if tag.depth != node.end:
            return (
                f"the state filed on the node ending at {node.end} has consumed {tag.depth} tokens: "
                f"{abs(tag.depth - node.end)} too {'many' if tag.depth > node.end else 'few'}"
            )
        return f"the state filed on the node ending at {node.end} has consumed {tag.depth} tokens of another text"

    def violations(self, holdings: Iterable[Holding] = (), *, misplaced: bool = True) -> list[str]:
        """All that breaks DESIGN section 3, in words; linear in the size of the memory. ``misplaced=False``
        leaves out states on wrong nodes (which a run with checks off knows of already)."""
        holdings = list(holdings)
        found: list[str] = []
        nodes = list(self.tree.root.walk())
        for node in nodes:
            problem = node.check(self.allocator.page)
            if problem is None and misplaced and node.state is not None:
                problem = self.misplaced(node, node.state)
            if problem is not None:
                found.append(problem)
        found += self._wrong_counts(nodes) + _wrong_locks(self.tree.root, nodes, holdings)
        pages = [page for node in nodes for page in node.pages] + [page for h in holdings for page in h.pages]
        slots = [n.state for n in nodes if n.state is not None] + [slot for h in holdings for slot in h.slots]
        for check, owned in ((self.allocator.check, pages), (self.states.check, slots)):
            try:
                check(owned)
            except InvariantError as error:
                found.append(str(error))
        return found

    def check_invariants(self, holdings: Iterable[Holding] = ()) -> None:
        """Raise InvariantError (MisplacedStateError for a state on a wrong node) unless all is in order."""
        found = self.violations(holdings)
        if not found:
            return
        kind = MisplacedStateError if "has consumed" in found[0] else InvariantError
        raise kind("; ".join(found))

    def _wrong_counts(self, nodes: list[Node]) -> list[str]:
        tree = self.tree
        locked = sum(node.tokens for node in nodes if node.kv_locks)
        total = sum(node.tokens for node in nodes)
        holders = [node for node in nodes if node.state is not None]
        pinned = sum(1 for node in holders if node.state_locks)
        checks = (
            ("protected KV tokens", tree.protected_tokens, locked),
            ("evictable KV tokens", tree.evictable_tokens, total - locked),
            ("protected states", tree.protected_states, pinned),
            ("states in the LRU", len(tree.state_order), len(holders)),
            (
                "states both in the tree and in the LRU",
                sum(n in tree.state_order for n in holders),
                len(holders),
            ),
        )
        return [f"{name}: counted {have}, really {right}" for name, have, right in checks if have != right]


def _wrong_locks(root: Node, nodes: list[Node], holdings: list[Holding]) -> list[str]:
    """Locks must be exactly those that the running requests hold (skipped where none are known)."""
    if not holdings:
        return []
    kv: dict[Node, int] = {}
    state: dict[Node, int] = {}
    for holding in holdings:
        if holding.lock is None or holding.lock is root:
            continue
        state[holding.lock] = state.get(holding.lock, 0) + 1
        for node in holding.lock.path():
            kv[node] = kv.get(node, 0) + 1
    return [
        f"{node!r}: locks should be {kv.get(node, 0)}/{state.get(node, 0)}"
        for node in nodes
        if (node.kv_locks, node.state_locks) != (kv.get(node, 0), state.get(node, 0))
    ]
