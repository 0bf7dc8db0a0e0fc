"""In which order waiting requests are tried for admission."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TypeAlias

from depthchart.cache.node import Node
from depthchart.cache.tree import Match, RadixTree
from depthchart.scheduler.request import Job

__all__ = ["QUEUE_POLICIES", "order_waiting", "queue_policy"]

MATCH_LIMIT = 128
"""A policy that matches every waiting request gives way to fcfs where more than these wait (as in SGLang)."""

Policy: TypeAlias = Callable[[list[Job], RadixTree, random.Random], list[Job]]


def order_waiting(policy: str, waiting: Iterable[Job], tree: RadixTree, rng: random.Random) -> list[Job]:
    """The waiting jobs in the order in which ``policy`` admits them; equal ones in order of arrival."""
    arrived = sorted(waiting, key=lambda job: job.order)
    if policy in _MATCHING and len(arrived) > MATCH_LIMIT:
        return arrived
    return QUEUE_POLICIES[policy](arrived, tree, rng)


def queue_policy(name: str) -> str:
    """``name`` itself; raises ValueError with the nearest one where there is no such policy."""
    if name in QUEUE_POLICIES:
        return name
    near = get_close_matches(str(name), QUEUE_POLICIES, n=1)
    hint = f"; nearest: {near[0]!r}" if near else ""
    raise ValueError(f"policy={name!r}: no such queue policy{hint}; there are {', '.join(QUEUE_POLICIES)}")


def _match(job: Job, tree: RadixTree) -> Match:
    return tree.lookup(job.text.ids(len(job.text) - 1))


def _longest_prefix(jobs: list[Job], tree: RadixTree, rng: random.Random) -> list[Job]:
    return sorted(jobs, key=lambda job: -_match(job, tree).tokens)


def _dfs_weight(jobs: list[Job], tree: RadixTree, rng: random.Random) -> list[Job]:
    """Depth first through the tree, the child with most waiting requests below it first."""
    at: dict[Node, list[Job]] = {}
    weight: dict[Node, int] = {}
    for job in jobs:
        node = _match(job, tree).node
        at.setdefault(node, []).append(job)
        for step in (tree.root, *node.path()):
            weight[step] = weight.get(step, 0) + 1
    ordered: list[Job] = []
    stack = [tree.root]
    while stack:
        node = stack.pop()
        ordered += at.get(node, [])
        children = [child for child in node.children.values() if child in weight]
        stack += sorted(children, key=lambda child: -weight[child])[::-1]
    return ordered


def _shuffled(jobs: list[Job], tree: RadixTree, rng: random.Random) -> list[Job]:
    mixed = list(jobs)
    rng.shuffle(mixed)
    return mixed


QUEUE_POLICIES: dict[str, Policy] = {
    "fcfs": lambda jobs, tree, rng: jobs,
    "lpm": _longest_prefix,
    "lof": lambda jobs, tree, rng: sorted(jobs, key=lambda job: -job.output_tokens),
    "dfs-weight": _dfs_weight,
    "random": _shuffled,
    "priority": lambda jobs, tree, rng: sorted(jobs, key=lambda job: -job.request.priority),
}
"""fcfs: first come, first served; lpm: longest usable prefix match first; lof: longest output first;
dfs-weight: depth first through the tree, so that requests of one subtree run together (both lpm and it from
SGLang); random: a new seeded shuffle every step; priority: larger request priority first."""

_MATCHING = frozenset({"lpm", "dfs-weight"})
