"""depthchart: where can the prefix cache of a hybrid language model keep its states?

The names below are loaded on first use, so that ``import depthchart`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthchart.cases import find_script, replay
    from depthchart.depth import RULES, Decision, decide_many, rule
    from depthchart.geometry import Advice, Geometry
    from depthchart.models import MODELS, Model
    from depthchart.roofline import Roofline
    from depthchart.run import Run
    from depthchart.traces import Trace, load_trace

__version__ = "0.1.0"

_HOME = {
    "Geometry": "geometry",
    "Advice": "geometry",
    "Decision": "depth",
    "RULES": "depth",
    "rule": "depth",
    "decide_many": "depth",
    "MODELS": "models",
    "Model": "models",
    "Roofline": "roofline",
    "Run": "run",
    "Trace": "traces",
    "load_trace": "traces",
    "find_script": "cases",
    "replay": "cases",
}

__all__ = [
    "MODELS",
    "RULES",
    "Advice",
    "Decision",
    "Geometry",
    "Model",
    "Roofline",
    "Run",
    "Trace",
    "decide_many",
    "find_script",
    "load_trace",
    "replay",
    "rule",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"depthchart.{_HOME[name]}"), name)
    raise AttributeError(f"module 'depthchart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
