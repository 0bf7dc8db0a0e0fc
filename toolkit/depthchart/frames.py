"""Data frames from a run's events; column names and their meaning are in ``columns``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pandas as pd

from depthchart.columns import CHECKPOINTS, EVENTS, HITS, NODES, REQUESTS, STEPS
from depthchart.events import (
    Aborted,
    Admitted,
    Arrived,
    Donated,
    Entry,
    Extended,
    Finished,
    FirstToken,
    Matched,
    NodeAdded,
    NotDonated,
    Rejected,
    Retracted,
    Tracked,
)
from depthchart.redraw import TreeView
from depthchart.scheduler.loop import StepRecord

__all__ = [
    "checkpoints",
    "events",
    "hits",
    "nodes",
    "requests",
    "steps",
    "times_per_output_token",
    "wrong_reuse",
]

Pending: TypeAlias = dict[str, list[dict[str, Any]]]


def requests(log: Iterable[Entry], seen: Mapping[str, int] | None = None, page: int = 1) -> pd.DataFrame:
    """One row per request, in order of arrival; H and C are those of its first admission.

    ``seen``: leading prompt tokens that an earlier request had computed, where that is known; of them, whole pages of
    ``page`` tokens, and at most all but the prompt's last token, are possible.
    """
    rows: dict[str, dict[str, Any]] = {}
    for entry in log:
        event = entry.event
        if isinstance(event, Arrived):
            rows[event.request] = _arrived(event)
        elif (row := rows.get(getattr(event, "request", ""))) is not None:
            _update(row, event, entry.time_s)
    for name, tokens in (seen or {}).items():
        if (row := rows.get(name)) is not None:
            row.update(
                seen_tokens=tokens, possible_tokens=min(tokens, row["prompt_tokens"] - 1) // page * page
            )
    frame = pd.DataFrame(list(rows.values()), columns=list(REQUESTS))
    whole = [
        name for name in REQUESTS if name.endswith("_tokens") or name in ("prefill_steps", "retractions")
    ]
    times = [name for name in REQUESTS if name.endswith("_s")]
    return frame.astype({**dict.fromkeys(whole, "Int64"), **dict.fromkeys(times, "float64")})


def hits(table: pd.DataFrame, page: int) -> pd.DataFrame:
    """How many of the admitted requests of ``requests`` had a KV hit H, a reuse C and a gap H - C of which size.

    Bins: nothing; then below a page; then [1, 2), [2, 4), [4, 8), ... pages of ``page`` tokens.
    """
    met = table[table["reused_tokens"].notna()]
    most = int(met[["kv_hit_tokens", "reused_tokens", "lost_tokens"]].max().max()) if len(met) else 0
    edges = [0, 1, *([page] if page > 1 else [])]
    while edges[-1] <= most:
        edges.append(2 * edges[-1])
    columns = {
        f"{name}_requests": [
            int(((met[f"{name}_tokens"] >= a) & (met[f"{name}_tokens"] < b)).sum())
            for a, b in pairwise(edges)
        ]
        for name in ("kv_hit", "reused", "lost")
    }
    frame = pd.DataFrame({"from_tokens": edges[:-1], "to_tokens": edges[1:], **columns}, columns=list(HITS))
    return frame.astype("int64")


def times_per_output_token(table: pd.DataFrame) -> pd.Series[float]:
    """TPOT: seconds from the first output token to the end, over the tokens after the first, of each finished request
    that had any."""
    several = table[(table["status"] == "finished") & (table["output_tokens"] > 1)]
    spent = several["finished_s"] - several["first_token_s"]
    return (spent / (several["output_tokens"] - 1).astype("float64")).astype("float64")


def steps(records: Sequence[StepRecord]) -> pd.DataFrame:
    """One row per step."""
    return pd.DataFrame(list(records), columns=list(STEPS))


def events(log: Iterable[Entry]) -> pd.DataFrame:
    """One row per event; ``detail`` spells out the fields that have no column of their own."""
    rows = []
    for time_s, step, event in log:
        fields = event._asdict()
        request, node = fields.pop("request", ""), fields.pop("node_id", None)
        detail = ", ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", None))
        rows.append((time_s, step, type(event).__name__, request, node, detail))
    return pd.DataFrame(rows, columns=list(EVENTS)).astype({"node_id": "Int64"})


def nodes(view: TreeView) -> pd.DataFrame:
    """One row per node of a redrawn tree."""
    rows = [
        (
            node.node_id,
            node.parent_id,
            node.namespace,
            node.start,
            node.end,
            node.state_depth,
            node.status,
            node.kv_locks,
            node.state_locks,
            node.request,
            node.created_s,
            node.last_used_s,
        )
        for node in view.nodes.values()
    ]
    return pd.DataFrame(rows, columns=list(NODES)).astype({"state_depth_tokens": "Int64"})


def checkpoints(log: Iterable[Entry]) -> pd.DataFrame:
    """One row per decision: what the rule wanted, what the kernel stored, where the tree filed it, or why not. A refusal
    names the deepest node that its request had reached by then."""
    rows: list[dict[str, Any]] = []
    pending: Pending = {}
    reached: dict[str, int] = {}
    row: dict[str, Any] | None
    for entry in log:
        event = entry.event
        match event:
            case Matched(request, node_id=node_id) | NodeAdded(node_id=node_id, request=request) if node_id:
                reached[request] = node_id
            case Extended(request, prefix, end, wanted, donate, reason) if not donate:
                row = _decision(entry, request, "prefill", prefix, end, wanted)
                row.update(outcome="refused", reason=reason, node_id=reached.get(request))
                rows.append(row)
            case Extended(request, reason=reason):
                pending.setdefault(request, []).append({"why": reason})
            case Tracked(request, kind, prefix, end, wanted, depth):
                row = _decision(entry, request, kind, prefix, end, wanted)
                row.update(
                    state_depth_tokens=depth, outcome="pending", reason=_take_why(pending, request, kind)
                )
                rows.append(row)
                pending.setdefault(request, []).append(row)
            case Donated(request, node_id, wanted, _, node_end, fits):
                if (row := _find(pending, request, wanted)) is not None:
                    outcome = "donated" if fits else "misplaced"
                    row.update(node_end_tokens=node_end, node_id=node_id, outcome=outcome)
            case NotDonated(request, wanted, _, outcome, reason):
                if (row := _find(pending, request, wanted, keep=True)) is not None:
                    row.update(outcome=outcome, reason=reason)
                    if outcome == "refused":
                        row["node_id"] = reached.get(request)
            case Aborted(request):
                for row in pending.pop(request, []):
                    if row.get("outcome") == "pending":
                        row.update(outcome="superseded", reason="the request was aborted")
            case Finished(request) | Retracted(request):
                pending.pop(request, None)
    frame = pd.DataFrame(rows, columns=list(CHECKPOINTS))
    whole = [name for name in CHECKPOINTS if name.endswith("_tokens") or name in ("node_id", "step")]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def wrong_reuse(log: Iterable[Entry]) -> pd.DataFrame:
    """One row per match that took over a state of other tokens than the node's: the request's text is wrong.

    Columns: request, time_s, node_id, reused_tokens (what the match gave), state_depth_tokens (what the state had
    consumed).
    """
    view, rows = TreeView(), []
    for entry in log:
        event = entry.event
        if (
            isinstance(event, Matched)
            and (node := view.nodes.get(event.node_id)) is not None
            and node.status == "misplaced"
        ):
            rows.append((event.request, entry.time_s, node.node_id, event.tokens, node.state_depth))
        view.apply(entry)
    return pd.DataFrame(rows, columns=["request", "time_s", "node_id", "reused_tokens", "state_depth_tokens"])


def _decision(
    entry: Entry, request: str, kind: str, prefix: int, end: int, wanted: int | None
) -> dict[str, Any]:
    return {
        "request": request,
        "step": entry.step,
        "time_s": entry.time_s,
        "kind": kind,
        "prefix_tokens": prefix,
        "end_tokens": end,
        "depth_tokens": wanted,
    }


def _take_why(pending: Pending, request: str, kind: str) -> str:
    """The reason that the Extended event just before gave for this checkpoint."""
    if kind == "decode":
        return "decode checkpoint on the track grid"
    for row in reversed(pending.get(request, [])):
        if "why" in row:
            return str(row["why"])
    return ""


def _find(pending: Pending, request: str, wanted: int, *, keep: bool = False) -> dict[str, Any] | None:
    """The row of the request's checkpoint at ``wanted``, which is unique while it runs."""
    for row in reversed(pending.get(request, [])):
        if row.get("depth_tokens") == wanted:
            if not keep:
                pending[request].remove(row)
            return row
    return None


def _arrived(event: Arrived) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(REQUESTS)
    row.update(
        request=event.request,
        session=event.session,
        arrival_s=event.arrival_s,
        prompt_tokens=event.prompt_tokens,
    )
    row.update(prefill_steps=0, retractions=0, status="waiting")
    return row


def _update(row: dict[str, Any], event: object, time_s: float) -> None:
    match event:
        case Matched(_, tokens, kv_tokens) if row["kv_hit_tokens"] is None:
            row.update(kv_hit_tokens=kv_tokens, reused_tokens=tokens, lost_tokens=kv_tokens - tokens)
        case Admitted():
            row["status"] = "running"
            row["admitted_s"] = time_s if row["admitted_s"] is None else row["admitted_s"]
        case Extended():
            row["prefill_steps"] += 1
        case FirstToken():
            row["first_token_s"] = time_s
        case Finished(_, _, output_tokens):
            row.update(finished_s=time_s, output_tokens=output_tokens, status="finished")
        case Retracted():
            row["retractions"] += 1
            row["status"] = "waiting"
        case Aborted():
            row["status"] = "aborted"
        case Rejected():
            row["status"] = "rejected"
