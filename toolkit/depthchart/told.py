"""Events in words: one short clause each. Depths and lengths in tokens."""

from __future__ import annotations

from depthchart.events import (
    Aborted,
    AdmissionRefused,
    Arrived,
    Donated,
    Extended,
    Finished,
    Locked,
    Matched,
    NodeAdded,
    NodeRemoved,
    NodeSplit,
    NotDonated,
    Rejected,
    Retracted,
    StateDropped,
    StateFiled,
    Unlocked,
    Violation,
)

__all__ = ["told"]


def told(event: object, node_id: int | None = None) -> str:
    """What happened, from the point of view of ``node_id`` where one is given; "" for what a reader of the tree need
    not know (bookkeeping that another event tells better)."""
    match event:
        case (
            NodeAdded() | NodeSplit() | NodeRemoved() | StateFiled() | StateDropped() | Locked() | Unlocked()
        ):
            return _node(event, node_id)
        case Arrived(request, prompt, _):
            return f"{request} arrives with a prompt of {prompt:,} tokens"
        case Matched(request, tokens, kv_tokens):
            less = f" (its KV alone: {kv_tokens:,})" if kv_tokens > tokens else ""
            return f"{request} reuses {tokens:,} tokens{less}"
        case AdmissionRefused(request, reason):
            return f"{request} has to wait: {reason}"
        case Rejected(request, reason):
            return f"{request} is rejected: {reason}"
        case Extended(request, prefix, end):
            return f"{request} runs [{prefix:,}, {end:,})"
        case Donated(request, to, _, depth, end, fits):
            off = f"WRONG by {abs(depth - end):,} tokens" if depth != end else "WRONG, of other tokens"
            wrong = "" if fits else f", which ends at {end:,}: {off}"
            return f"{request} donates its state of {depth:,} tokens to {_it(to, node_id)}{wrong}"
        case NotDonated(request, wanted, _, outcome, reason):
            return f"{request}'s state at {wanted:,} is not donated ({outcome}): {reason}"
        case Finished(request):
            return f"{request} finishes"
        case Aborted(request):
            return f"{request} is aborted"
        case Retracted(request):
            return f"{request} is retracted and will start again"
        case Violation(kind, message):
            return f"BROKEN INVARIANT {kind}: {message}"
    return ""


def _node(event: object, own: int | None) -> str:
    match event:
        case NodeAdded(node_id, _, start, end, request):
            return f"{_it(node_id, own)} is made by {request or 'a request'}: tokens [{start:,}, {end:,})"
        case NodeSplit(node_id, upper_id, at) if own == upper_id:
            return f"made by splitting node {node_id}: takes its tokens above {at:,}"
        case NodeSplit(node_id, upper_id, at):
            return f"{_it(node_id, own)} is split at {at:,}: the tokens above go to node {upper_id}"
        case NodeRemoved(node_id, tokens, why):
            return f"{_it(node_id, own)} goes with its {tokens:,} tokens ({why})"
        case StateFiled(node_id, end, depth, fits):
            why = f"but the node ends at {end:,}" if depth != end else "but not those of the node's path"
            wrong = "" if fits else f", {why}: MISPLACED"
            return f"{_it(node_id, own)} gets a state that has read {depth:,} tokens{wrong}"
        case StateDropped(node_id, why):
            return f"{_it(node_id, own)} loses its state ({why})"
        case Locked(node_id, _) if own is not None:
            return "locked by a request"
        case Unlocked(node_id, _) if own is not None:
            return "unlocked"
    return ""


def _it(node_id: int, own: int | None) -> str:
    return "it" if node_id == own else f"node {node_id}"
