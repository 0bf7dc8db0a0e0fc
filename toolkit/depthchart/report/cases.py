"""The report of one case, and of one text on one geometry."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from depthchart import frames
from depthchart.cases.one_path import OnePath
from depthchart.cases.stage import Stage
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.display import geometry_html, geometry_text
from depthchart.geometry import Geometry
from depthchart.moments import headline, moment_chart, moment_words
from depthchart.provenance import provenance
from depthchart.report.blocks import Frame
from depthchart.report.page import Page
from depthchart.rewind import Rewind

__all__ = ["case_page", "path_call", "path_page"]

MOST_FRAMES = 40


def case_page(shown: Stage) -> Page:
    """A case as it came out: what happened step by step, and the tree after each step where there is one."""
    page = Page(f"{shown.name} under {shown.under}" if shown.under else shown.name, shown.story)
    about = f" Under {shown.about}." if shown.about else ""
    page.section("What happened", f"Source: {shown.source or 'none'}.{about} {shown.said}", *shown.faults)
    if shown.rows:
        page.table(shown.rows)
    if shown.entries and shown.geometry is not None:
        _film(page, shown, shown.geometry)
    if shown.lines:
        page.section("Step by step").listing(shown.lines)
    if shown.geometry is not None:
        page.section("Geometry").html(geometry_html(shown.geometry), geometry_text(shown.geometry))
    return page.provenance({"to repeat": shown.command, **provenance()})


def _film(page: Page, shown: Stage, geometry: Geometry) -> None:
    rewind = Rewind(shown.entries)
    moments = rewind.moments(changes_only=shown.clock)[1:]
    chosen = sorted({round(i * (len(moments) - 1) / MOST_FRAMES) for i in range(MOST_FRAMES + 1)})
    pictures = [
        Frame(
            partial(moment_chart, rewind, moment, geometry, clock=shown.clock),
            headline(rewind, moment, clock=shown.clock),
            moment_words(rewind, moment),
        )
        for moment in (moments[at] for at in chosen if at < len(moments))
    ]
    nodes, checkpoints = frames.nodes(rewind.at(len(rewind))), frames.checkpoints(shown.entries)
    page.film(pictures, "The tree after each step.", {"nodes": nodes, "checkpoints": checkpoints})


def path_page(path: OnePath) -> Page:
    """One text, twice, on one geometry: the chart, the decisions, what the geometry costs."""
    g = path.geometry
    page = Page(f"Where checkpoints land under {path.rule}", path.verdict)
    page.section("The checkpoints", *dict.fromkeys(path.faults))
    chart = checkpoint_chart(
        path.nodes, path.checkpoints, g, title=f"A prompt of {path.prompt:,} tokens, twice"
    )
    data = {"nodes": path.nodes, "checkpoints": path.checkpoints}
    page.figure(chart, "What two requests with the same text have left behind.", data)
    page.table(path.rows(), (2, 3, 4), "Every decision; depths in tokens.")
    page.section("The geometry").html(geometry_html(g), geometry_text(g).splitlines()[0])
    remarks = [(remark.severity, remark.text) for remark in g.advice(path.rule)]
    if remarks:
        page.table([("weight", "advice"), *remarks])
    page.section("To repeat it").listing(path_call(path))
    return page.provenance({"rule": path.rule, "cut": path.cut, "output tokens": path.output, **provenance()})


def path_call(path: OnePath) -> list[str]:
    """Python lines that run the same text on the same geometry."""
    geometry = ", ".join(f"{name}={value}" for name, value in asdict(path.geometry).items())
    return [
        "from depthchart import Geometry",
        "from depthchart.cases.one_path import one_path",
        "",
        f"one_path(Geometry({geometry}), {path.rule!r}, cut={path.cut}, prompt={path.prompt}, output={path.output})",
    ]
