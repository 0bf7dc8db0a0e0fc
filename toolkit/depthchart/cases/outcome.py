"""Runs one case under one rule or engine bundle and says what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from depthchart.cache.allocator import check_segments
from depthchart.cases.catalogue import Case, catalogue, find_case
from depthchart.cases.replay import Replay
from depthchart.cases.script import load_script
from depthchart.depth import RULES, Rule
from depthchart.errors import InvariantError
from depthchart.events import EventLog, Matched, Violation
from depthchart.geometry import Geometry
from depthchart.presets import Preset, preset
from depthchart.redraw import redraw
from depthchart.run import Run
from depthchart.simulate import simulate
from depthchart.tokens import canonical
from depthchart.traces.trace import Trace, TraceRequest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OUTCOMES", "Outcome", "by_name", "case_frames", "case_run", "matrix", "outcome_table", "run_case"]

OUTCOMES = ("ok", "wrong state", "crash", "leak", "no reuse", "not run")
"""crash: a check that engines have would stop it (freed ranges share a page), or nothing could go on; no reuse: sound,
and less on offer than the right answer; not run: the case is no matter of this library (``Case.needs``)."""

_WORST = ("crash", "leak", "wrong state", "no reuse", "ok")


class Outcome(NamedTuple):
    """``outcome`` is one of OUTCOMES; ``values`` what came out (depths, or tokens reused), ``why`` in words."""

    outcome: str
    values: tuple[Any, ...] = ()
    why: str = ""


def run_case(case: Case, name: str) -> Outcome:
    """One case under one rule or preset. Raises ValueError for a name that is neither."""
    chosen = by_name(name)
    return {
        "extends": _extends,
        "script": _script,
        "trace": _trace,
        "geometry": _geometry,
        "segments": _segments,
    }.get(case.kind, _not_run)(case, chosen)


def matrix(
    cases: Iterable[Case] | None = None, names: Iterable[str] | None = None
) -> dict[str, dict[str, Outcome]]:
    """Outcomes by case id, then by rule or preset; by default of all cases under all built-in rules and under the
    presets that each case names itself."""
    given = None if names is None else tuple(names)
    rules = tuple(name for name, one in RULES.items() if one.plan is not None)
    return {
        case.id: {name: run_case(case, name) for name in given or (*rules, *case.presets)}
        for case in (cases or catalogue())
    }


def by_name(name: str) -> Preset:
    """A preset, or a rule as one that sets nothing else; raises ValueError for a name that is neither."""
    if name in RULES:
        rule = RULES[name]
        return Preset(name, rule.summary, "", lambda g, kv, slots: rule)
    try:
        return preset(name)
    except ValueError as error:
        raise ValueError(f"{name!r}: neither a rule ({', '.join(RULES)}) nor a preset: {error}") from None


def outcome_table(found: Mapping[str, Mapping[str, Outcome]] | None = None) -> pd.DataFrame:
    """A matrix as a frame of outcomes: cases down; across the rules that all ran under, then what each case's own
    presets made of it. Needs pandas."""
    import pandas as pd

    rows = matrix() if found is None else found
    names = [name for name in next(iter(rows.values()), {}) if all(name in row for row in rows.values())]
    table = {case: {name: row[name].outcome for name in names} for case, row in rows.items()}
    for case, row in rows.items():
        table[case]["its presets"] = ", ".join(
            f"{name}: {one.outcome}" for name, one in row.items() if name not in names
        )
    return pd.DataFrame(table).T


def case_frames(case: Case | str, rule: str) -> tuple[pd.DataFrame, pd.DataFrame, Geometry]:
    """Nodes and checkpoints (columns.NODES, columns.CHECKPOINTS) at the end of a script or trace case, and its
    geometry: ``checkpoint_chart(*case_frames("sglang-39115", "absolute"))``. Needs pandas.

    Raises ValueError for an unknown case, or one that leaves no tree.
    """
    from depthchart import frames

    if isinstance(case, str):
        case = find_case(case)

    if case.kind == "script":
        log = _replayed(case, by_name(rule)).log
    elif case.kind == "trace":
        log = _simulated(case, by_name(rule)).log
    else:
        raise ValueError(f"case {case.id!r} is of kind {case.kind!r}: only scripts and traces leave a tree")
    return frames.nodes(redraw(log)), frames.checkpoints(log), Geometry(**case.geometry)


# --- by kind ----------------------------------------------------------------------------------------------


def _extends(case: Case, bundle: Preset) -> Outcome:
    geometry = Geometry(**case.geometry)
    rule = bundle.apply(geometry, 1 << 20, 64).rule
    outcomes, depths, why = [], [], ""
    for row in case.rows:
        g = Geometry(**{**case.geometry, **row["geometry"]}) if "geometry" in row else geometry
        decision = rule(g, row["prefix"], row["end"], row.get("branch"))
        depth = decision.depth if decision.donate and decision.depth is not None else 0
        depths.append(depth)
        wrong = [
            d
            for d in decision.depths
            if d % g.tree_page or rule.stored_depth(g, row["prefix"], row["end"], d) != d
        ]
        outcome = (
            "wrong state" if wrong else "no reuse" if max(decision.depths, default=0) < row["right"] else "ok"
        )
        outcomes.append(outcome)
        if outcome != "ok" and not why:
            why = f"[{row['prefix']}, {row['end']}): {depth or 'none'} for {row['right']}; " + (
                _off(rule, g, row["prefix"], row["end"], wrong[0]) if wrong else decision.reason
            )
    return Outcome(min(outcomes, key=_WORST.index), tuple(depths), why)


def _off(rule: Rule, g: Geometry, prefix: int, end: int, depth: int) -> str:
    node, stored = depth // g.tree_page * g.tree_page, rule.stored_depth(g, prefix, end, depth)
    return f"the node ends at {node}" if stored == depth else f"the node at {node} gets the state of {stored}"


def _script(case: Case, bundle: Preset) -> Outcome:
    result = _replayed(case, bundle).result
    if result["error"]:
        return Outcome("crash", (), result["error"]["message"])
    steps = zip(case.steps, result["steps"], strict=True)
    reuse = tuple(report["matched"] for step, report in steps if step["op"] in ("match", "request"))
    return _judge([(v["type"], v["message"]) for v in result["violations"]], reuse, case.right_reuse)


class _Replayed(NamedTuple):
    result: dict[str, Any]
    log: EventLog


def _replayed(case: Case, bundle: Preset) -> _Replayed:
    script = {
        "geometry": dict(case.geometry),
        "rule" if bundle.name in RULES else "preset": bundle.name,
        "strict": False,
        "pools": dict(case.pools),
        "steps": list(case.steps),
        "decode_grid": case.decode_grid,
    }
    run = Replay(load_script(script, case.id))
    return _Replayed(run.run(), run.log)


def case_run(case: Case, name: str) -> Run:
    """A trace case as a run under a rule or preset."""
    return _simulated(case, by_name(name))


def _simulated(case: Case, bundle: Preset) -> Run:
    geometry = Geometry(**case.geometry)
    setup = bundle.apply(geometry, case.pools["kv_tokens"], case.pools["state_slots"])
    settings: dict[str, Any] = {"strict": False, "arrivals": "trace", **setup.settings, **case.settings}
    return simulate(_requests(case), geometry, **settings)


def _trace(case: Case, bundle: Preset) -> Outcome:
    run = _simulated(case, bundle)
    first: dict[str, int] = {}
    for event in run.log.of(Matched):
        first.setdefault(event.request, event.tokens)
    faults = [(event.kind, event.message) for event in run.log.of(Violation)]
    faults += [("InvariantError", text) for text in run.violations]
    return _judge(faults, tuple(first.values()), case.right_reuse)


def _judge(faults: list[tuple[str, str]], reuse: tuple[int, ...], right: tuple[int, ...]) -> Outcome:
    kinds = {"PageSharedError": "crash", "SegmentError": "crash", "MisplacedStateError": "wrong state"}
    if faults:
        named = [(kinds.get(kind, "leak"), message) for kind, message in faults]
        worst = min(named, key=lambda one: _WORST.index(one[0]))
        return Outcome(worst[0], reuse, worst[1])
    short = [(got, wanted) for got, wanted in zip(reuse, right, strict=False) if got < wanted]
    if len(reuse) < len(right):
        return Outcome("crash", reuse, f"{len(right) - len(reuse)} requests never ran")
    return (
        Outcome("no reuse", reuse, f"{short[0][0]} tokens reused for {short[0][1]}")
        if short
        else Outcome("ok", reuse)
    )


def _geometry(case: Case, bundle: Preset) -> Outcome:
    values: list[Any] = []
    wrong: list[str] = []
    for row in case.rows:
        try:
            geometry = Geometry(**row["geometry"])
        except ValueError as error:
            values.append("refused")
            if not row.get("refused"):
                wrong.append(str(error))
            continue
        advice = [
            remark.code
            for remark in geometry.advice(row.get("rule", bundle.apply(geometry, 1 << 20, 64).rule.name))
        ]
        values.append(tuple(getattr(geometry, name) for name in row.get("values", {})))
        wrong += [
            f"{n} is {getattr(geometry, n)}, not {v}"
            for n, v in row.get("values", {}).items()
            if getattr(geometry, n) != v
        ]
        wrong += [f"no remark {code!r}" for code in row.get("remarks", ()) if code not in advice]
        wrong += [f"remark {code!r}" for code in row.get("no_remarks", ()) if code in advice]
    return Outcome("crash" if wrong else "ok", tuple(values), "; ".join(wrong))


def _segments(case: Case, bundle: Preset) -> Outcome:
    wrong = []
    for row in case.rows:
        segments = [tuple(segment) for segment in row["segments"]]
        try:
            check_segments(segments, row["page"], -(-segments[-1][1] // row["page"]) * row["page"])
            fine = True
        except InvariantError:
            fine = False
        if fine != row["ok"]:
            wrong.append(f"pages of {row['page']}, {segments}: {'taken' if fine else 'refused'}")
    return Outcome("crash" if wrong else "ok", (), "; ".join(wrong))


def _not_run(case: Case, bundle: Preset) -> Outcome:
    return Outcome("not run", (), f"shown by {case.covered_by}" if case.covered_by else case.needs)


def _requests(case: Case) -> Trace:
    """Requests of a case: ``tokens`` [[segment, length], …], ``output`` tokens (1), ``repeat`` times, ``at`` seconds;
    without ``at`` each waits for the one before. ``{i}`` in a segment's name is the number of the repetition."""
    numbers: dict[str, int] = {}
    made: list[TraceRequest] = []
    for row in case.requests:
        for i in range(row.get("repeat", 1)):
            made.append(_request(row, i, len(made), numbers))
    return Trace(case.id, tuple(made), source=case.thread)


def _request(row: Mapping[str, Any], i: int, at: int, numbers: dict[str, int]) -> TraceRequest:
    def segment(name: str) -> int:
        return numbers.setdefault(name.replace("{i}", str(i)), len(numbers) + 1)

    prompt = canonical((segment(str(name)), 0, length) for name, length in row["tokens"])
    output = canonical([(segment(f"out {at}"), 0, row.get("output", 1))])
    return TraceRequest(f"q{at}", row.get("at", 1000.0 * at), prompt, output)
