"""Explorers for notebooks: ipywidgets on top of the charts, with no logic of their own.

They need the extra ``lab`` (``pip install 'depthchart[lab]'``).
"""

from __future__ import annotations

from depthchart.widgets.case import CaseExplorer, case_explorer
from depthchart.widgets.geometry import GeometryExplorer, geometry_explorer
from depthchart.widgets.kernels import KernelExplorer, kernel_explorer
from depthchart.widgets.sweeping import SweepExplorer, sweep_explorer
from depthchart.widgets.tree import TreeExplorer, tree_explorer

__all__ = [
    "CaseExplorer",
    "GeometryExplorer",
    "KernelExplorer",
    "SweepExplorer",
    "TreeExplorer",
    "case_explorer",
    "geometry_explorer",
    "kernel_explorer",
    "sweep_explorer",
    "tree_explorer",
]
