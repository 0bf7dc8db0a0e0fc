"""Traces: exact token identities, readers of public formats, seeded generators.

Names are loaded on first use, so that importing the room stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthchart.trace_summary import TraceSummary, describe
    from depthchart.traces.formats import FORMATS, load_trace, save_trace, stream_trace
    from depthchart.traces.neutral import write_trace
    from depthchart.traces.synthesize import GENERATORS, make
    from depthchart.traces.trace import Runs, Trace, TraceRequest

_HOME = {
    "Trace": "depthchart.traces.trace",
    "TraceRequest": "depthchart.traces.trace",
    "Runs": "depthchart.traces.trace",
    "GENERATORS": "depthchart.traces.synthesize",
    "make": "depthchart.traces.synthesize",
    "load_trace": "depthchart.traces.formats",
    "save_trace": "depthchart.traces.formats",
    "stream_trace": "depthchart.traces.formats",
    "FORMATS": "depthchart.traces.formats",
    "describe": "depthchart.trace_summary",
    "TraceSummary": "depthchart.trace_summary",
    "write_trace": "depthchart.traces.neutral",
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
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'depthchart.traces' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
