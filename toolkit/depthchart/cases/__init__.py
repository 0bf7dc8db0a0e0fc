"""Replay of lifecycle scripts: one request lifecycle, step by step, on the real memory and lifecycle code."""

from depthchart.cases.replay import replay
from depthchart.cases.script import Script, find_script, load_script, script_names

__all__ = ["Script", "find_script", "load_script", "replay", "script_names"]
