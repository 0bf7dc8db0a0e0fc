"""The report of one replayed case, and of one text on one geometry."""

from __future__ import annotations

from functools import partial

from depthchart import frames
from depthchart.cases.expect import mismatches
from depthchart.cases.one_path import OnePath
from depthchart.cases.replay import Replay
from depthchart.cases.script import Script
from depthchart.cases.story import tell, verdict
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.display import geometry_html, geometry_text
from depthchart.moments import headline, moment_chart, moment_words
from depthchart.provenance import provenance
from depthchart.report.blocks import Frame
from depthchart.report.page import Page
from depthchart.rewind import Rewind

__all__ = ["case_page", "path_page"]


def case_page(script: Script) -> Page:
    """A script replayed: what happened step by step, and the tree after each."""
    lines, result = tell(script)
    said = verdict(result, bool(script.expect), mismatches(result, script.expect))
    replay = Replay(script)
    replay.run()
    rewind = Rewind(replay.log)
    page = Page(f"{script.name} under {script.rule}", script.story)
    page.section("What happened", f"Source: {script.source or 'none'}. Verdict: {said}.")
    shown = [
        Frame(
            partial(moment_chart, rewind, moment, script.geometry, clock=False),
            headline(rewind, moment, clock=False),
            moment_words(rewind, moment),
        )
        for moment in rewind.moments(changes_only=False)[1:]
    ]
    nodes, checkpoints = frames.nodes(rewind.at(len(rewind))), frames.checkpoints(replay.log)
    page.film(shown, "The tree after each step of the script.", {"nodes": nodes, "checkpoints": checkpoints})
    page.section("Step by step").listing(lines)
    page.section("Geometry").html(geometry_html(script.geometry), geometry_text(script.geometry))
    strict = "" if script.strict else " --no-strict"
    command = f"depthchart replay {script.name} --rule {script.rule}{strict}"
    return page.provenance({"to repeat": command, **provenance()})


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
    return page.provenance({"rule": path.rule, "cut": path.cut, "output tokens": path.output, **provenance()})
