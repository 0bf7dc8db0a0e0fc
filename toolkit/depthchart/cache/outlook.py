"""How likely a cached state is to be used again, learned while the cache runs.

States are sorted into kinds by what can be seen of them: whether texts end, go on or part at their node, whether they
were used before, and how long ago their KV was last passed (in powers of two of the tree's clock). For each
kind it is counted how many states stood by when something had to go, and how many were resumed from. Their quotient is
the chance of a use per look, as in LHD (Beckmann et al., NSDI 2018); a weak prior stands in until a kind
has been seen often enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from depthchart.cache.node import Node
from depthchart.cache.worth import Worth, covered_from

__all__ = ["Outlook"]

Kind: TypeAlias = tuple[int, bool, int]

PRIOR_LOOKS = 50.0  # looks that the prior is worth
PRIOR_INNER = 0.3


class Outlook:
    """What a tree knows of its states' future. ``now`` is the tree's clock, set by the tree before it asks."""

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        self.now = 0
        self._used: dict[Kind, int] = {}
        self._looked: dict[Kind, int] = {}
        self._all_used, self._all_looked = 1, 100

    def used(self, node: Node) -> None:
        """A text has resumed from the node's state (told before its clock is refreshed)."""
        kind = self._kind(node)
        self._used[kind] = self._used.get(kind, 0) + 1
        self._all_used += 1
        node.uses += 1

    def missed(self, node: Node) -> None:
        """A text would have resumed from the node's state, had it not been evicted."""
        kind = self._kind(node)
        self._used[kind] = self._used.get(kind, 0) + 1
        self._all_used += 1

    def looked(self, nodes: Iterable[Node]) -> None:
        """These states stood by while one had to be chosen."""
        for node in nodes:
            kind = self._kind(node)
            self._looked[kind] = self._looked.get(kind, 0) + 1
            self._all_looked += 1

    def chance(self, node: Node) -> float:
        """Uses per look of states of this node's kind."""
        kind = self._kind(node)
        mean = self._all_used / self._all_looked
        prior = mean * (PRIOR_INNER if kind[0] == 1 else 1.0) * 4 * 2.0 ** (-kind[2] / 2)
        seen = self._looked.get(kind, 0) + PRIOR_LOOKS
        return float((self._used.get(kind, 0) + PRIOR_LOOKS * prior) / seen)

    def gain(self, node: Node) -> float:
        """Work that the node's state saves per look: its chance times its reach beyond the state above it."""
        return self.chance(node) * self.worth.work(covered_from(node), node.end)

    def gain_per_token(self, leaf: Node) -> float:
        """The same over the KV that goes with a leaf; nothing where it has no state, since no text can resume there."""
        return self.gain(leaf) / (leaf.end - freed_from(leaf)) if leaf.state is not None else 0.0

    def _kind(self, node: Node) -> Kind:
        return min(len(node.children), 2), node.uses > 0, (self.now - node.last_use).bit_length()


def freed_from(leaf: Node) -> int:
    """Where the KV begins that goes when the leaf goes: tombstones above it that nothing else needs go with it."""
    node = leaf
    while node.parent is not None and node.parent.end and node.parent.state is None and len(node.parent.children) == 1:
        node = node.parent
    return node.start
