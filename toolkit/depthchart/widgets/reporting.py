"""The report button of the explorers."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w

from depthchart.widgets.background import Advance, WorkBar

__all__ = ["ReportBar"]


class ReportBar(WorkBar):
    """Writes a report to the path in ``path``; ``write(path, advance=…)`` does it and returns where it lies."""

    def __init__(self, write: Callable[..., Path], path: str) -> None:
        self._write = write
        self.path = w.Text(
            value=path, description="report to", layout=w.Layout(width="300px"), continuous_update=False
        )
        super().__init__("Write report", self._report, self.path)
        self.add_class("depthchart-report")

    def _report(self, advance: Advance) -> str:
        path = self.path.value.strip()
        if not path:
            raise ValueError("report to: is empty; give a path that ends in .html or .pdf")
        written: Any = self._write(path, advance=advance)
        size = written.stat().st_size / 1e6
        return (
            f"wrote <code>{escape(str(written.resolve()))}</code> ({size:.1f} MB); it opens without a network"
        )
