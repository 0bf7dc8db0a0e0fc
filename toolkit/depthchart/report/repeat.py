"""How a run is done again: as Python, and as a command. Only what differs from the defaults is spelled out."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import MISSING, fields
from typing import Any

from depthchart.geometry import Geometry
from depthchart.run import Run
from depthchart.simulate import simulate

__all__ = ["repeat_call", "repeat_command"]

_FLAGS = ("kv_tokens", "state_slots", "policy", "eviction", "state_eviction", "arrivals", "seed")
_SWITCHES = ("mixed", "strict")


def repeat_call(run: Run) -> list[str]:
    """Python lines that do the run again, given the trace and the default time model."""
    given = [f"    {name}={value!r}," for name, value in _settings(run).items()]
    geometry = ", ".join(f"{name}={value}" for name, value in _geometry(run.geometry).items())
    return [
        "from depthchart import Geometry, load_trace",
        "from depthchart.simulate import simulate",
        "",
        f"trace = load_trace({str(run.settings['trace'])!r}){_head(run)}",
        "run = simulate(",
        f"    trace, Geometry({geometry}), {run.settings['rule']!r},",
        *given,
        ")",
    ]


def repeat_command(run: Run) -> str:
    """The same as a command line, or a comment that names what has no flag."""
    settings = _settings(run)
    if missing := [name for name in settings if name not in (*_FLAGS, *_SWITCHES)]:
        return f"# the command line has no flag for {', '.join(missing)}"
    words = ["depthchart", "simulate", str(run.settings["trace"]), "--rule", str(run.settings["rule"])]
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


def _head(run: Run) -> str:
    return f".head({run.settings['requests']})" if run.settings.get("requests") else ""


def _settings(run: Run) -> dict[str, Any]:
    defaults = {name: p.default for name, p in inspect.signature(simulate).parameters.items()}
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
