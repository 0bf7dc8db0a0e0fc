"""Figures: pure functions from data frames to matplotlib figures."""

from __future__ import annotations

from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.compare import compare_chart
from depthchart.charts.dcp import dcp_chart
from depthchart.charts.divergence import divergence_chart, precision_chart, token_chart
from depthchart.charts.hits import hit_chart
from depthchart.charts.requests import reuse_chart
from depthchart.charts.style import use_theme
from depthchart.charts.sweep_lines import sweep_lines
from depthchart.charts.sweeps import heat_map, pareto
from depthchart.charts.timeline import schedule_chart

__all__ = [
    "checkpoint_chart",
    "compare_chart",
    "dcp_chart",
    "divergence_chart",
    "heat_map",
    "hit_chart",
    "pareto",
    "precision_chart",
    "reuse_chart",
    "schedule_chart",
    "sweep_lines",
    "token_chart",
    "use_theme",
]
