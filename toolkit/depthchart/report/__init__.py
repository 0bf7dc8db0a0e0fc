"""Reports that open anywhere: ``Page`` for any content, ``report_runs`` for runs."""

from __future__ import annotations

from depthchart.report.page import Page, frame_rows
from depthchart.report.runs import report_runs, run_page

__all__ = ["Page", "frame_rows", "report_runs", "run_page"]
