"""A case ready to be looked at, of whatever kind: what happened, the events behind its tree, what it shows in words.

Cases are bundled scripts, files of scripts, and all of the catalogue: scripts, traces, tables of single decisions or
geometries, and notes on what no depth rule decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from depthchart.cases.catalogue import Case, catalogue
from depthchart.cases.expect import mismatches
from depthchart.cases.outcome import Outcome, by_name, case_run, run_case
from depthchart.cases.replay import Replay
from depthchart.cases.script import Script, find_script, load_script, script_names
from depthchart.cases.story import tell, verdict
from depthchart.depth import RULES
from depthchart.events import Entry, Matched, Violation
from depthchart.geometry import Geometry
from depthchart.presets import preset

__all__ = ["Stage", "case_names", "engines_of", "stage"]

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Stage:
    """``under`` is the depth rule or engine preset, ``about`` says what that is; ``said`` is how it came out, in one
    sentence, ``faults`` the broken invariants; ``right``: whether it is what the case asks for (None: nothing ran).
    ``entries`` are the events of its tree (empty where there is none; with ``clock`` their times are seconds), ``lines``
    the story step by step, ``rows`` a table below its head. ``strict``: whether the case can be stopped at a broken
    invariant and is (None: it cannot). ``command`` repeats it."""

    name: str
    under: str
    about: str
    source: str
    story: str
    geometry: Geometry | None
    said: str
    faults: list[str]
    right: bool | None
    command: str
    entries: Sequence[Entry] = ()
    clock: bool = False
    lines: list[str] = field(default_factory=list)
    rows: Rows = field(default_factory=list)
    strict: bool | None = None
    script: Script | None = None


def case_names() -> list[str]:
    """Everything that ``stage`` knows by name: bundled scripts, then the catalogue."""
    return list(dict.fromkeys([*script_names(), *(case.id for case in catalogue())]))


def engines_of(name: str) -> tuple[str, ...]:
    """The engine presets that a case speaks of, the one that shows the fault first; none for a script of its own."""
    case = _catalogued(name)
    if case is None:
        script = find_script(name)
        return (script.preset,) if script.preset else ()
    return case.presets


def stage(name: str, under: str | None = None, *, strict: bool | None = None) -> Stage:
    """A case as it came out under a depth rule or engine preset (None: the one that shows the fault).

    ``strict`` stops at a broken invariant, where the case is a script (None: as the script says). Raises ScriptError for
    an unknown case, ValueError for an unknown rule or preset.
    """
    case = _catalogued(name)
    if case is None:
        return _script_stage(find_script(name), under, strict, "")
    chosen = under or _shows(case)
    if case.kind == "script":
        shown = _script_stage(_as_script(case, chosen), None, strict, case.id)
        if shown.strict:
            return shown
        result = run_case(case, chosen)
        return replace(shown, said=_said(case, result), right=result.outcome == "ok")
    return _other_stage(case, chosen)


def _catalogued(name: str) -> Case | None:
    """A case of the catalogue; a bundled script goes before one of the same name."""
    if name in script_names():
        return None
    return next((case for case in catalogue() if case.id == name), None)


def _shows(case: Case) -> str:
    """The rule or preset that shows the fault, where it is one of ours; else the first that the case expects."""
    for name in (case.shows, case.preset, *case.expect):
        if name in RULES or (name and _is_preset(name)):
            return name
    return "absolute"


def _is_preset(name: str) -> bool:
    try:
        preset(name)
    except ValueError:
        return False
    return True


# --- scripts ----------------------------------------------------------------------------------------------


def _script_stage(script: Script, under: str | None, strict: bool | None, case_id: str) -> Stage:
    kept = None if strict == script.strict else strict
    if under is not None and under != (script.preset or script.rule):
        script = _under(script, under)
    if kept is not None:
        script = script.under(strict=kept)
    lines, result = tell(script)
    replay = Replay(script)
    replay.run()
    said = verdict(result, bool(script.expect), mismatches(result, script.expect))
    faults = [fault["message"] for fault in result["violations"]]
    if result["error"]:
        faults.insert(0, result["error"]["message"])
    engine = script.preset or script.rule
    flag = f"--preset {engine}" if script.preset else f"--rule {engine}"
    command = (
        f"depthchart cases run {case_id} {flag}"
        if case_id
        else f"depthchart replay {script.name} --rule {script.rule}{'' if script.strict else ' --no-strict'}"
    )
    return Stage(
        name=script.name,
        under=engine,
        about=_about(engine),
        source=script.source,
        story=script.story,
        geometry=script.geometry,
        said=f"{said[0].upper()}{said[1:]}.",
        faults=faults,
        right=not faults,
        command=command,
        entries=tuple(replay.log),
        lines=lines,
        strict=script.strict,
        script=script,
    )


def _under(script: Script, name: str) -> Script:
    """The script under another rule, or under an engine's whole bundle."""
    if name in RULES:
        return script.under(rule=name)
    raw = {
        "geometry": asdict(script.geometry),
        "pools": {"kv_tokens": script.kv_tokens, "state_slots": script.state_slots},
        "steps": [dict(step) for step in script.steps],
        "preset": name,
        "strict": script.strict,
        "source": script.source,
        "story": script.story,
    }
    return load_script(raw, script.name)


def _as_script(case: Case, under: str) -> Script:
    raw = {
        "geometry": dict(case.geometry),
        "pools": dict(case.pools),
        "steps": [dict(step) for step in case.steps],
        "decode_grid": case.decode_grid,
        "rule" if under in RULES else "preset": under,
        "strict": False,
        "source": case.thread,
        "story": _story(case),
    }
    return load_script(raw, case.id)


# --- the other kinds --------------------------------------------------------------------------------------


def _other_stage(case: Case, under: str) -> Stage:
    result = run_case(case, under)
    flag = "--rule" if under in RULES else "--preset"
    given: dict[str, Any] = {}
    faults: list[str] = []
    if case.kind == "trace":
        run = case_run(case, under)
        given = {"entries": tuple(run.log), "clock": True, "rows": _reuse_rows(case, run.log.of(Matched))}
        faults = [*(event.message for event in run.log.of(Violation)), *run.violations]
    elif case.kind != "note":
        given = {"rows": _rows(case, under, result)}
    return Stage(
        name=case.id,
        under=under if case.kind != "note" else "",
        about=_about(under) if case.kind != "note" else "",
        source=case.thread,
        story=_story(case),
        geometry=Geometry(**case.geometry) if case.geometry else None,
        said=_said(case, result),
        faults=faults,
        right=None if case.kind == "note" else result.outcome == "ok",
        command=f"depthchart cases list {case.id}"
        if case.kind == "note"
        else f"depthchart cases run {case.id} {flag} {under}",
        **given,
    )


def _said(case: Case, result: Outcome) -> str:
    if case.kind == "note":
        where = (
            f"The test {case.covered_by} shows it." if case.covered_by else f"What it needs: {case.needs}."
        )
        return f"There is no tree to see here: no depth rule decides this. {where}"
    words = {
        "ok": "Right: what the case asks for came out",
        "wrong state": "Wrong state: a node holds the state of another depth",
        "crash": "It stops: a check would end it, or nothing could go on",
        "leak": "Leak: something is never given back",
        "no reuse": "Sound, but less is reused than the right answer allows",
    }
    said = words.get(result.outcome, result.outcome)
    return f"{said}{': ' + result.why if result.why and result.outcome != 'ok' else ''}."


def _reuse_rows(case: Case, matches: Sequence[Matched]) -> Rows:
    first: dict[str, Matched] = {}
    for event in matches:
        first.setdefault(event.request, event)
    right = [*map(str, case.right_reuse), *("–" for _ in range(len(first)))]
    rows: Rows = [
        (name, f"{event.kv_tokens:,}", f"{event.tokens:,}", wanted)
        for (name, event), wanted in zip(first.items(), right, strict=False)
    ]
    return [("request", "KV alone [tokens]", "reused [tokens]", "right [tokens]"), *rows]


def _rows(case: Case, under: str, result: Outcome) -> Rows:
    if case.kind == "extends":
        return _extend_rows(case, under)
    if case.kind == "geometry":
        head = ("geometry", "gives", "right")
        shown = zip(case.rows, result.values, strict=False)
        return [
            head,
            *((_spelled(row["geometry"]), _gives(row, values), _wanted(row)) for row, values in shown),
        ]
    ranges: Rows = [
        (
            str(row["page"]),
            ", ".join(f"[{a}, {b})" for a, b in row["segments"]),
            "no page twice" if row["ok"] else "to be refused: two of them share a page",
        )
        for row in case.rows
    ]
    return [("page [tokens]", "ranges that one request frees", "right"), *ranges]


def _extend_rows(case: Case, under: str) -> Rows:
    rows: Rows = [("extend", "checkpoint at", "state kept there", "right", "why")]
    for row in case.rows:
        g = Geometry(**{**case.geometry, **row.get("geometry", {})})
        rule = by_name(under).apply(g, 1 << 20, 64).rule
        decision = rule(g, row["prefix"], row["end"], row.get("branch"))
        depth = decision.depth if decision.donate else None
        stored = None if depth is None else rule.stored_depth(g, row["prefix"], row["end"], depth)
        rows.append(
            (
                f"[{row['prefix']:,}, {row['end']:,})",
                "none" if depth is None else f"{depth:,}",
                "none" if stored is None else f"{stored:,} tokens",
                f"{row['right']:,}" if row["right"] else "none",
                decision.reason,
            )
        )
    return rows


def _gives(row: Mapping[str, Any], values: Any) -> str:
    if values == "refused":
        return "refused"
    return (
        ", ".join(f"{name} {value}" for name, value in zip(row.get("values", {}), values, strict=False))
        or "legal"
    )


def _wanted(row: Mapping[str, Any]) -> str:
    if row.get("refused"):
        return "refused"
    told = [f"{name} {value}" for name, value in row.get("values", {}).items()]
    told += [f"the remark “{code}”" for code in row.get("remarks", ())]
    told += [f"no remark “{code}”" for code in row.get("no_remarks", ())]
    return ", ".join(told) or "legal"


def _spelled(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _story(case: Case) -> str:
    return f"{case.title}. {case.explanation} Faulty: {case.faulty}. Right: {case.right}."


def _about(name: str) -> str:
    """What a rule or preset is, in words."""
    if name in RULES:
        return f"rule {name}: {RULES[name].summary}"
    bundle = preset(name)
    return f"engine preset {name}: {bundle.summary}" + (f" ({bundle.source})" if bundle.source else "")
