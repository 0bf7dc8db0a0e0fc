"""Where the nodes of a radix tree go: one lane per leaf path. Frames in, frames out; nothing is drawn here.

All depths are in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from depthchart.columns import NODES

__all__ = ["check_nodes", "lane_layout", "relevant_nodes", "require_columns"]


def lane_layout(nodes: pd.DataFrame) -> pd.DataFrame:
    """Give every node (a frame of NODES) its lane; parents come before their children.

    Adds ``lane`` (0 is the top one), ``reach_lane`` (the lane of the last child, a leaf's own lane) and
    ``leaf``. Every leaf has a lane of its own; an inner node shares that of its first child, so a shared
    prefix is placed once. Children go by age, then by id, and namespaces by name: rows in another order give the same
    lanes, and a new branch opens below the old ones. A node whose parent is absent counts as a
    child of the root.
    """
    check_nodes(nodes)
    order = nodes.assign(_age=nodes["created_s"].fillna(0.0)).sort_values(["namespace", "_age", "node_id"])
    ids = order["node_id"].tolist()
    known = set(ids)
    children: dict[int, list[int]] = {}
    roots: list[int] = []
    for node, parent in zip(ids, order["parent_id"].tolist(), strict=True):
        if parent in known:
            children.setdefault(parent, []).append(node)
        else:
            roots.append(node)
    walk = _depth_first(roots, children)
    lane = _lanes(walk, children)
    placed = nodes.set_index("node_id", drop=False).loc[walk].reset_index(drop=True)
    return placed.assign(
        lane=[lane[n] for n in walk],
        reach_lane=[lane[children[n][-1]] if n in children else lane[n] for n in walk],
        leaf=[n not in children for n in walk],
    )


def relevant_nodes(nodes: pd.DataFrame, max_nodes: int) -> pd.DataFrame:
    """At most ``max_nodes`` nodes, each with all its ancestors.

    Misplaced nodes come first, then locked ones, then the most recently used.
    """
    if max_nodes < 1:
        raise ValueError(f"max_nodes={max_nodes}: must be at least 1")
    if len(nodes) <= max_nodes:
        return nodes
    rank = nodes.assign(
        _misplaced=nodes["status"].eq("misplaced"),
        _locked=nodes["kv_locks"].gt(0) | nodes["state_locks"].gt(0),
        _used=nodes["last_used_s"].fillna(float("-inf")),
    ).sort_values(["_misplaced", "_locked", "_used", "node_id"], ascending=[False, False, False, True])
    parent = dict(zip(nodes["node_id"].tolist(), nodes["parent_id"].tolist(), strict=True))
    kept: set[int] = set()
    for node in rank["node_id"].tolist():
        path: list[int] = []
        while node in parent and node not in kept and len(kept) + len(path) <= max_nodes:
            path.append(node)
            node = parent[node]
        if len(kept) + len(path) <= max_nodes:
            kept.update(path)
        if len(kept) == max_nodes:
            break
    return nodes[nodes["node_id"].isin(kept)]


def check_nodes(nodes: pd.DataFrame) -> None:
    """Raise ValueError where a frame is not one tree at one moment: missing columns, a node twice or empty, a ring."""
    require_columns(nodes, NODES, "nodes")
    twice = nodes.loc[nodes["node_id"].duplicated(), "node_id"].tolist()
    if twice:
        raise ValueError(f"nodes: node_id {twice[0]} occurs twice; a frame shows the tree at one moment")
    empty = nodes.loc[nodes["end_tokens"] <= nodes["start_tokens"]]
    if len(empty):
        row = empty.iloc[0]
        raise ValueError(
            f"nodes: node {row['node_id']} runs from {row['start_tokens']} to {row['end_tokens']}; "
            "end_tokens must be above start_tokens"
        )
    parents = dict(zip(nodes["node_id"].tolist(), nodes["parent_id"].tolist(), strict=True))
    rooted: set[int] = set()
    for node in parents:
        path: list[int] = []
        while node in parents and node not in rooted and len(path) <= len(parents):
            path.append(node)
            node = parents[node]
        if len(path) > len(parents):
            raise ValueError(
                f"nodes: parent_id of nodes {sorted(set(path))[:5]} form a ring; every path must lead to the root"
            )
        rooted.update(path)


def require_columns(frame: pd.DataFrame, columns: Iterable[str], name: str) -> None:
    """Raise ValueError naming the columns that ``frame`` lacks."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"{name}: lacks the columns {', '.join(missing)} (see depthchart.columns)")


def _depth_first(roots: list[int], children: dict[int, list[int]]) -> list[int]:
    """Nodes, parents first; a stack, since a long chat is a path of thousands of nodes."""
    walk: list[int] = []
    stack = roots[::-1]
    while stack:
        node = stack.pop()
        walk.append(node)
        stack.extend(reversed(children.get(node, [])))
    return walk


def _lanes(walk: list[int], children: dict[int, list[int]]) -> dict[int, int]:
    lane: dict[int, int] = {}
    for node in walk:
        if node not in children:
            lane[node] = len(lane)
    for node in reversed(walk):
        if node in children:
            lane[node] = lane[children[node][0]]
    return lane
