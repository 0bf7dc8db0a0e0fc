"""How likely a cached state is to be used again, learned while the cache runs.

States are sorted into kinds by what can be seen of them: whether texts end, go on or part at their node, where in its text
the state was taken (``node.Origin``), and whether it was used before. For each kind it is counted,
by age (time since the KV was last passed, in powers of two of the tree's clock), how many states stood by when something
had to go, and how many were resumed from, or would have been, had they not been evicted. Uses over looks, both from a
state's present age on, are the uses that keeping it earns per look: the hit density of LHD (Beckmann et al., NSDI 2018).
A weak prior stands in until a kind has been seen often enough.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from itertools import accumulate
from typing import TypeAlias

from depthchart.cache.node import Node
from depthchart.cache.worth import Worth, covered_from

__all__ = ["Outlook"]

Kind: TypeAlias = int
"""6 * (0: texts end here, 1: one goes on, 2: they part) + 2 * origin + (used before)."""
KINDS, SHAPE = 18, 6
AGES = 48  # powers of two of the tree's clock
PRIOR_LOOKS = 50.0  # looks that the prior is worth; results change little from 20 to 100


class Outlook:
    """What a tree knows of its states' future. ``now`` is the tree's clock, set by the tree before it asks."""

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        self.now = 0
        self._used = [[0] * AGES for _ in range(KINDS)]
        self._looked = [[0] * AGES for _ in range(KINDS)]
        self._all_used, self._all_looked = 1, 100
        self._chances: dict[Kind, list[float]] = {}  # of the kinds that were asked for since the last count

    def used(self, node: Node) -> None:
        """A text has resumed from the node's state (told before the node's clock is refreshed)."""
        self.missed(node)
        node.uses += 1

    def missed(self, node: Node) -> None:
        """A text would have resumed from the node's state, had it not been evicted."""
        self._used[_kind(node)][self._age(node)] += 1
        self._all_used += 1
        self._chances.clear()

    def looked(self, nodes: Iterable[Node]) -> None:
        """These states stood by while one had to be chosen."""
        for node in nodes:
            self._looked[_kind(node)][self._age(node)] += 1
            self._all_looked += 1
        self._chances.clear()

    def chance(self, node: Node) -> float:
        """Uses per look of states of this node's kind, from its age on; within a power of two it falls with the
        root of the age, as the prior does, so that the younger of two alike is worth more."""
        kind, age = _kind(node), self._age(node)
        by_age = self._chances.get(kind)
        if by_age is None:
            by_age = self._chances[kind] = self._density(kind)
        return by_age[age] * math.sqrt(0.75 * 2.0**age / (self.now - node.last_use + 1))

    def gain(self, node: Node) -> float:
        """Tokens that the node's state saves per look: its chance times its reach beyond the state above it."""
        return self.chance(node) * (node.end - covered_from(node))

    def gain_per_token(self, leaf: Node) -> float:
        """The same over the KV that goes with a leaf; nothing where it has no state, since no text can resume there."""
        return self.gain(leaf) / (leaf.end - freed_from(leaf)) if leaf.state is not None else 0.0

    def gains_per_token(self, leaves: Iterable[Node]) -> list[float]:
        """``gain_per_token`` of each."""
        return [self.gain_per_token(leaf) for leaf in leaves]

    def counts(self) -> Hashable:
        """All that was counted: equal counts, equal chances."""
        kinds = (tuple(map(tuple, counts)) for counts in (self._used, self._looked))
        return (*kinds, self._all_used, self._all_looked)

    def _density(self, kind: Kind) -> list[float]:
        """By age: what the kind has shown, on top of what it and its twins (taken elsewhere in their texts) have shown
        together, on top of the mean of all kinds, more for the young and less for the old."""
        mean = self._all_used / self._all_looked
        prior = [PRIOR_LOOKS * mean * 4 * 2.0 ** (-age / 2) for age in range(AGES)]
        shared = _rates(_together(self._used, kind), _together(self._looked, kind), prior)
        return _rates(self._used[kind], self._looked[kind], [PRIOR_LOOKS * rate for rate in shared])

    def _age(self, node: Node) -> int:
        return (self.now - node.last_use).bit_length()


def _rates(used: list[int], looked: list[int], prior: list[float]) -> list[float]:
    """Uses over looks from each age on; ``prior``: uses that are expected of PRIOR_LOOKS looks."""
    tails = zip(_tails(used), _tails(looked), prior, strict=True)
    return [(uses + expected) / (looks + PRIOR_LOOKS) for uses, looks, expected in tails]


def _together(counts: list[list[int]], kind: Kind) -> list[int]:
    """Counts by age of a kind and its twins."""
    first = kind // SHAPE * SHAPE
    return [sum(of_age) for of_age in zip(*counts[first + kind % 2 : first + SHAPE : 2], strict=True)]


def _kind(node: Node) -> Kind:
    return SHAPE * min(len(node.children), 2) + 2 * node.origin + (node.uses > 0)


def _tails(counts: list[int]) -> list[int]:
    """For each age, the sum from it on."""
    return list(accumulate(reversed(counts)))[::-1]


def freed_from(leaf: Node) -> int:
    """Where the KV begins that goes when the leaf goes: tombstones above it that nothing else needs go with it."""
    node = leaf
    while (
        node.parent is not None
        and node.parent.end
        and node.parent.state is None
        and len(node.parent.children) == 1
    ):
        node = node.parent
    return node.start
