"""How a run is done again: as Python, and as a command. Only what differs from the defaults is spelled out."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import MISSING, fields
from typing import Any

from depthchart.depth import RULES
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, Setup
from depthchart.run import Run
from depthchart.simulate import simulate

__all__ = ["repeat_call", "repeat_command", "repeat_lines", "trace_call"]

_FLAGS = ("kv_tokens", "state_slots", "policy", "eviction", "state_eviction", "arrivals", "seed")
_SWITCHES = ("mixed", "strict")


def repeat_lines(run: Run) -> list[str]:
    """Python lines, then the command line, that do the run again."""
    return [*repeat_call(run), "", "# or, in a shell:", repeat_command(run)]


def repeat_call(run: Run) -> list[str]:
    """Python lines that do the run again, with the default time model."""
    settings, bundle = _settings(run), _preset(run)
    geometry = ", ".join(f"{name}={value}" for name, value in _geometry(run.geometry).items())
    imports = ["from depthchart import Geometry, load_trace"]
    made = [f"geometry = Geometry({geometry})"]
    rule = f"    trace, geometry, {str(run.settings['rule'])!r},"
    if bundle:
        known = _bundle(bundle, run)
        settings = {
            k: v for k, v in settings.items() if k not in (*known.policies, "kv_tokens", "state_slots")
        }
        imports.append("from depthchart.presets import preset")
        pools = (
            f"{known.kv_tokens}, {known.state_slots}{', divided=True' if PRESETS[bundle].joint_pool else ''}"
        )
        made.append(f"settings = preset({bundle!r}).apply(geometry, {pools}).settings")
        rule = "    trace, geometry, **settings,"
    return [
        *imports,
        "from depthchart.simulate import simulate",
        "",
        f"trace = {trace_call(run.loaded, str(run.settings['trace']), run.settings.get('requests'))}",
        *made,
        "run = simulate(",
        rule,
        *(f"    {name}={value!r}," for name, value in settings.items()),
        ")",
    ]


def trace_call(loaded: Any, name: str, requests: int | None) -> str:
    """The call that reads a trace: its path and the reader's options, cut to its first ``requests``; its ``name`` with a
    remark where it was made otherwise."""
    if not loaded:
        return f"...  # the trace {name!r} was made in Python, not read from a file"
    options = "".join(f", {key}={value!r}" for key, value in loaded.items() if key != "path")
    head = f".head({requests})" if requests else ""
    return f"load_trace({str(loaded['path'])!r}{options}){head}"


def repeat_command(run: Run) -> str:
    """The same as a command line, or a comment that names what has no flag."""
    if not run.loaded:
        return f"# no command: the trace {str(run.settings['trace'])!r} was not read from a file"
    settings, bundle = _settings(run), _preset(run)
    if bundle:
        settings = {k: v for k, v in settings.items() if k not in _bundle(bundle, run).policies}
    options = [name for name in run.loaded if name != "path"]
    if missing := [*options, *(name for name in settings if name not in (*_FLAGS, *_SWITCHES))]:
        return f"# the command line has no flag for {', '.join(missing)}"
    words = ["depthchart", "simulate", str(run.loaded["path"])]
    words += ["--preset", bundle] if bundle else ["--rule", str(run.settings["rule"])]
    if bundle and PRESETS[bundle].joint_pool:
        words.append("--divided")
    if count := run.settings.get("requests"):
        words += ["--limit", str(count)]
    for name, value in _geometry(run.geometry).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    for name in _FLAGS:
        if name in settings:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    for name in _SWITCHES:
        if name in settings:
            words.append(f"--{'' if settings[name] else 'no-'}{name}")
    return shlex.join(words)


def _preset(run: Run) -> str:
    """The engine preset that sets rule, pools and policies just as this run has them; empty where none does, or where
    a registered rule with the plain policies does."""
    policies = {name for name in _settings(run) if name not in (*_FLAGS, *_SWITCHES)}
    if not policies and str(run.settings["rule"]) in RULES:
        return ""
    for name in PRESETS:
        setup, defaults = _bundle(name, run), _defaults()
        wanted = {key: setup.policies.get(key, defaults[key]) for key in policies | set(setup.policies)}
        same = all(run.settings.get(key) == value for key, value in wanted.items())
        if same and setup.rule.name == run.settings["rule"]:
            return name
    return ""


def _bundle(name: str, run: Run) -> Setup:
    """The preset on the pools that the run had: halves already, where it has one joint pool."""
    pools = run.settings["kv_tokens"], run.settings["state_slots"]
    return PRESETS[name].apply(run.geometry, *pools, divided=True)


def _defaults() -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(simulate).parameters.items()}


def _settings(run: Run) -> dict[str, Any]:
    defaults = _defaults()
    return {
        name: value
        for name, value in run.settings.items()
        if name in defaults and name not in ("trace", "rule") and value != defaults[name]
    }


def _geometry(geometry: Geometry) -> dict[str, int]:
    plain = {f.name: f.default for f in fields(Geometry) if f.default is not MISSING}
    return {
        f.name: getattr(geometry, f.name)
        for f in fields(Geometry)
        if plain.get(f.name, MISSING) != getattr(geometry, f.name)
    }
