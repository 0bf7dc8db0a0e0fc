"""Explorers for notebooks: ipywidgets on top of the charts, with no logic of their own.

They need the extra ``lab`` (``pip install 'depthchart[lab]'``).
"""

from __future__ import annotations

from depthchart.widgets.geometry import GeometryExplorer, geometry_explorer

__all__ = ["GeometryExplorer", "geometry_explorer"]
