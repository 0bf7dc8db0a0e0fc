"""A replay told step by step, for a terminal: what each step did, what the rule said, where states went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from depthchart.cases.replay import Replay
from depthchart.cases.script import Script
from depthchart.events import (
    Donated,
    Extended,
    Freed,
    Matched,
    NodeRemoved,
    NodeSplit,
    NotDonated,
    StateDropped,
    Tracked,
    Violation,
)
from depthchart.presets import preset
from depthchart.redraw import DrawnNode, TreeView, redraw

__all__ = ["tell", "verdict"]

BAR = 48  # characters for the deepest node


def tell(script: Script) -> tuple[list[str], dict[str, Any]]:
    """The story's lines, and the result as ``replay`` gives it."""
    run = Replay(script)
    result = run.run()
    lines = _head(script)
    error = result["error"]
    for number, step in enumerate(script.steps):
        lines += ["", f"step {number}  {_call(step)}"]
        happened = [entry.event for entry in run.log if entry.step == number]
        lines += [f"    {line}" for event in happened for line in _event(event)]
        if step["op"] == "match":
            report = result["steps"][number] if number < len(result["steps"]) else {}
            lines += [f"    reuses {report.get('matched')} tokens (KV alone: {report.get('kv_matched')})"]
            lines += _twice(redraw(run.log, float(number)), report.get("matched") or 0)
        if error is not None and error["step"] == number:
            lines += [f"    STOPPED: {error['type']}: {error['message']}"]
            break
    lines += ["", *_tree(redraw(run.log), script.geometry.tree_page)]
    free = result["free"]
    lines += ["", f"free at the end: {free['kv_tokens']:,} KV tokens, {free['state_slots']} state slots"]
    return lines, result


def verdict(result: Mapping[str, Any], expected: bool, missed: Sequence[str]) -> str:
    """How a replay came out, in one sentence; ``expected``: the script settles what must come out, ``missed``: what did
    not."""
    if missed:
        return "not what the script expects:\n  " + "\n  ".join(missed)
    if result["error"]:
        said = f"{result['error']['type']} at step {result['error']['step']}"
    elif result["violations"]:
        said = f"ran to its end, with {len(result['violations'])} broken invariants"
    else:
        said = "sound: every invariant held"
    return said + (", as the script expects" if expected else "")


def _head(script: Script) -> list[str]:
    g = script.geometry
    pool = f" x pool {g.index_pool}" if g.index_pool > 1 else ""
    lines = [f"{script.name}{f' ({script.source})' if script.source else ''}"]
    lines += [script.story] if script.story else []
    lines.append(
        f"page {g.page_size} x DCP {g.dcp_size}{pool} = tree page {g.tree_page}; chunk {g.chunk_width}; "
        f"checkpoint grid {g.checkpoint_grid}"
    )
    checks = (
        "strict: a broken invariant stops it"
        if script.strict
        else "checks off: a broken invariant is only noted"
    )
    if script.preset:
        lines.append(f"preset {script.preset}: {preset(script.preset).summary}")
    lines.append(f"rule {script.rule}: {script.setup.rule.summary}; {checks}")
    return lines


def _call(step: Mapping[str, Any]) -> str:
    who = step.get("id", "")
    match step["op"]:
        case "request" | "match" as op:
            runs = " + ".join(f"{length} of {name!r}" for name, length in step["tokens"])
            return f"{op} {who}: {runs}".replace(" :", ":")
        case "extend" | "decode" as op:
            last = ", the last before it finishes" if step.get("final") else ""
            return f"{op} {who} by {step['tokens']} tokens{last}"
        case "evict":
            return "evict " + ", ".join(
                f"{step[key]} {key.replace('_', ' ')}" for key in ("kv_tokens", "states") if key in step
            )
        case op:
            return f"{op} {who}"


def _event(event: object) -> Iterator[str]:
    match event:
        case Matched(_, tokens, kv_tokens, branch):
            branching = f"; branch depth {branch}" if branch is not None else ""
            yield f"matched {tokens} tokens (KV alone: {kv_tokens}){branching}"
        case Extended(_, prefix, end, wanted, donate, reason):
            yield f"ran [{prefix}, {end})"
            yield f"rule: {'checkpoint at ' + str(wanted) if donate else 'no checkpoint'}: {reason}"
        case Tracked(_, kind, _, _, wanted, depth):
            asked = "" if wanted == depth else f", asked for {wanted}"
            yield f"{kind}: the kernel stored a state of {depth} tokens{asked}"
        case Donated(_, node_id, _, depth, node_end, fits):
            off = abs(depth - node_end)
            wrong = "" if fits else f"  <-- WRONG by {off} tokens" if off else "  <-- WRONG: of another text"
            yield f"donated the state of {depth} tokens to node {node_id}, which ends at {node_end}{wrong}"
        case NotDonated(_, wanted, _, outcome, reason):
            yield f"state at {wanted} not donated ({outcome}): {reason}"
        case Freed(_, segments) if segments:
            yield "freed " + ", ".join(f"[{start}, {end})" for start, end in segments)
        case NodeSplit(node_id, upper_id, at):
            yield f"node {node_id} is split at {at}; node {upper_id} takes the tokens above"
        case NodeRemoved(node_id, tokens, why):
            yield f"node {node_id} ({tokens} tokens) is gone: {why}"
        case StateDropped(node_id, why):
            yield f"node {node_id} lost its state: {why}"
        case Violation(kind, message):
            yield f"VIOLATION {kind}: {message}"


def _twice(view: TreeView, matched: int) -> list[str]:
    """What a match on a state of another depth does to the next text."""
    for node in view.nodes.values():
        if node.end == matched and node.status == "misplaced" and node.state_depth is not None:
            more = node.state_depth - node.end
            what = (
                f"runs {more} tokens through the recurrence twice"
                if more > 0
                else f"leaves {-more} tokens out of the recurrence"
            )
            return [
                f"    its state has consumed {node.state_depth} tokens: going on from {matched} {what},"
                " and the text is wrong"
            ]
    return []


def _tree(view: TreeView, page: int) -> list[str]:
    if not view.nodes:
        return ["tree: empty"]
    deepest = max(node.end for node in view.nodes.values())
    scale = BAR / deepest
    count = f"{len(view.nodes)} node{'s' * (len(view.nodes) > 1)}"
    lines = [f"tree ({count}, depths in tokens; o state, X state of another depth, . no state)"]
    children: dict[int, list[DrawnNode]] = {}
    for node in view.nodes.values():
        children.setdefault(node.parent_id, []).append(node)
    stack = children.get(-1, [])[::-1]
    while stack:
        node = stack.pop()
        mark = {"state": "o", "misplaced": "X"}.get(node.status, ".")
        bar = (
            " " * round(node.start * scale)
            + "=" * max(1, round(node.end * scale) - round(node.start * scale))
            + mark
        )
        held = "" if node.state_depth is None else f" ({node.state_depth} tokens)"
        lines.append(f"  {bar:<{BAR + 2}} node {node.node_id} [{node.start}, {node.end}) {node.status}{held}")
        stack += children.get(node.node_id, [])[::-1]
    return lines
