"""What a run did to its memory, as counts: checkpoints kept and not kept, evictions by reason, and what the tree holds
at the end. All from events, so that they cannot disagree with the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from depthchart.events import Donated, Entry, NodeRemoved, NotDonated, StateDropped
from depthchart.redraw import redraw

__all__ = ["counters"]


def counters(entries: Iterable[Entry]) -> dict[str, int]:
    """Counts by name; tokens where the name says so, else events or nodes. Reasons that never occurred are left out."""
    entries = list(entries)
    found: Counter[str] = Counter({"checkpoints donated": 0})
    for _, _, event in entries:
        match event:
            case Donated():
                found["checkpoints donated"] += 1
            case NotDonated(outcome=outcome):
                found[f"checkpoints {outcome}"] += 1
            case NodeRemoved(_, tokens, why):
                found[f"KV tokens removed, {why}"] += tokens
            case StateDropped(_, why):
                found[f"states dropped, {why}"] += 1
    return {**dict(sorted(found.items())), **_tree(entries)}


def _tree(entries: list[Entry]) -> dict[str, int]:
    nodes = redraw(entries).nodes
    children = Counter(node.parent_id for node in nodes.values())
    forks = [node for node in nodes.values() if children[node.node_id] > 1]
    status = Counter(node.status for node in nodes.values())
    return {
        "KV tokens in the tree": sum(node.end - node.start for node in nodes.values()),
        "nodes in the tree": len(nodes),
        "nodes with a state": status["state"] + status["misplaced"],
        "tombstones": status["tombstone"],
        "forks": len(forks),
        "forks with a state": sum(node.state_depth is not None for node in forks),
    }
