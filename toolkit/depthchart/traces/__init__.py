"""Traces: exact token identities, readers of public formats, seeded generators.

Names are loaded on first use, so that importing the room stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthchart.traces.formats import FORMATS, load_trace, save_trace, stream_trace
    from depthchart.traces.neutral import write_trace
    from depthchart.traces.summary import TraceSummary, describe
    from depthchart.traces.synthesize import GENERATORS, make
    from depthchart.traces.trace import Runs, Trace, TraceRequest

_HOME = {
    "Trace": "trace",
    "TraceRequest": "trace",
    "Runs": "trace",
    "GENERATORS": "synthesize",
    "make": "synthesize",
    "load_trace": "formats",
    "save_trace": "formats",
    "stream_trace": "formats",
    "FORMATS": "formats",
    "describe": "summary",
    "TraceSummary": "summary",
    "write_trace": "neutral",
}

__all__ = [
    "FORMATS",
    "GENERATORS",
    "Runs",
    "Trace",
    "TraceRequest",
    "TraceSummary",
    "describe",
    "load_trace",
    "make",
    "save_trace",
    "stream_trace",
    "write_trace",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"depthchart.traces.{_HOME[name]}"), name)
    raise AttributeError(f"module 'depthchart.traces' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
