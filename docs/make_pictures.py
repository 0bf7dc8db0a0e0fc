"""Draws the README's pictures anew: ``python docs/make_pictures.py`` (``make pictures``)."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from depthchart import Geometry, find_script, frames, load_trace
from depthchart.cases.replay import Replay
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.style import to_png
from depthchart.events import Violation
from depthchart.files import write_whole
from depthchart.redraw import redraw
from depthchart.simulate import simulate

HERE = Path(__file__).parent / "pictures"


def main() -> None:
    """Write every picture and print its path."""
    script = find_script("sglang-39115-absolute")
    for rule, strict in (("prefix_relative", False), ("absolute", True)):
        run = Replay(script.under(rule=rule, strict=strict))
        run.run()
        checkpoints = frames.checkpoints(run.log)
        window = (0.0, float(checkpoints["end_tokens"].max()) * 1.1)  # one axis for both rules
        nodes = frames.nodes(redraw(run.log))
        chart = checkpoint_chart(nodes, checkpoints, script.geometry, title=f"rule {rule}", window=window)
        print(write_whole(HERE / f"seed_bug_{rule}.png", to_png(chart, dpi=150)))
    print(write_whole(HERE / "tree.png", to_png(_tree(), dpi=150)))


def _tree() -> Figure:
    """The demo's trace under the unsound rule, checks off, at its first broken invariant."""
    geometry = Geometry(64, dcp_size=8, chunk_width=64)
    run = simulate(
        load_trace("agentic", limit=200),
        geometry,
        "prefix_relative",
        kv_tokens=65_536,
        state_slots=48,
        strict=False,
    )
    at = next(entry.time_s for entry in run.log if isinstance(entry.event, Violation))
    nodes, checkpoints = run.nodes(at), run.checkpoints
    here = checkpoints[checkpoints["request"].isin(nodes["request"]) & (checkpoints["time_s"] <= at)]
    return checkpoint_chart(
        nodes, here, geometry, title="An agentic trace under prefix_relative, at its first misplaced state"
    )


if __name__ == "__main__":
    main()
