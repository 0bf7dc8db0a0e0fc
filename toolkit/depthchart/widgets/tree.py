"""The tree explorer: a run's radix tree at any moment, played like a film."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter, process_time
from typing import Any

import ipywidgets as w

from depthchart.events import Entry, Violation
from depthchart.geometry import Geometry
from depthchart.report.repeat import repeat_lines
from depthchart.rewind import Moment, Rewind
from depthchart.run import Run
from depthchart.widgets.clickable import AUTO
from depthchart.widgets.panels import error_panel, marks_panel, repeat_panel
from depthchart.widgets.reporting import ReportBar
from depthchart.widgets.tree_pane import TreePane

__all__ = ["TreeExplorer", "tree_explorer"]

ALL = "all requests"
NO_NODE = 0  # the root, which has no history
FASTEST_MS = 300
FRAMES = 240  # a long run is played in about so many steps


def tree_explorer(
    run: Run | Iterable[Entry], geometry: Geometry | None = None, *, theme: str = AUTO
) -> TreeExplorer:
    """A slider and a play button over a run's events, one request alone or all, and any node's history (click it).

    ``run`` may also be bare events (``Replay.log``, ``OnePath.log``); then ``geometry`` says on which grids. Opens on the
    first broken invariant where there is one, else on the end. ``theme`` is "light", "dark" or "auto" (as the page is).
    Raises ValueError where the geometry is missing or
    the theme is unknown.
    """
    if not isinstance(run, Run) and geometry is None:
        raise ValueError("geometry=None: is needed where events are given instead of a Run")
    return TreeExplorer(run, geometry or run.geometry, theme)  # type: ignore[union-attr]


class TreeExplorer(w.VBox):
    """Controls ``slider``, ``play``, ``by``, ``request`` and ``node``; ``redraw_ms`` is how long the last redraw took."""

    def __init__(self, run: Run | Iterable[Entry], geometry: Geometry, theme: str = AUTO) -> None:
        self.rewind = Rewind(run.log if isinstance(run, Run) else run)
        self.moments: list[Moment] = []
        self.redraw_ms, self._busy = 0.0, False
        self.pane = TreePane(self.rewind, geometry, theme=theme)
        self._make_controls()
        self.message, self.timing = w.HTML(), w.HTML()
        self.report = ReportBar(run.report, "out/report.html") if isinstance(run, Run) else None
        wrap = w.Layout(flex_flow="row wrap")
        rows: list[Any] = [
            w.HBox([self.play, self.slider, self.timing], layout=wrap),
            w.HBox([self.by, self.request, self.node], layout=wrap),
            self.message,
            self.pane,
            w.HTML(marks_panel()),
        ]
        if isinstance(run, Run):
            rows.append(w.HTML(repeat_panel(repeat_lines(run), "this run")))
        super().__init__(rows + ([self.report] if self.report else []))
        self.add_class("depthchart-tree-explorer")
        self._set_moments(_opening(self.rewind))
        for control in (self.slider, self.request, self.node):
            control.observe(self._changed, names="value")
        self.by.observe(lambda change: self._set_moments(self.moment.count), names="value")
        self.play.observe(self._from_the_start, names="playing")
        self.pane.picture.on_click(self._tell)

    def _make_controls(self) -> None:
        self.slider = w.IntSlider(
            description="moment",
            continuous_update=False,
            layout=w.Layout(width="520px", max_width="98%"),
            readout_format="d",
        )
        self.play = w.Play(interval=FASTEST_MS, show_repeat=False)
        self._link = w.jslink((self.play, "value"), (self.slider, "value"))
        wide = w.Layout(width="260px")
        self.by = w.Dropdown(description="move by", options=["step", "event"], layout=w.Layout(width="180px"))
        self.request = w.Dropdown(
            description="show",
            options=[(ALL, ""), *((name, name) for name in self.rewind.requests)],
            layout=wide,
        )
        self.node = w.Dropdown(description="history of", options=[("no node", NO_NODE)], layout=wide)

    @property
    def moment(self) -> Moment:
        """What the slider points at."""
        return self.moments[min(self.slider.value, len(self.moments) - 1)]

    def redraw(self) -> None:
        """Show the chosen moment; an error is shown in its own words."""
        start, busy = perf_counter(), process_time()
        try:
            self.pane.show(self.moment, self.request.value, self.node.value or None)
            self._offer_nodes()
            self.message.value = ""
        except Exception as error:  # an error in a callback would otherwise be seen by nobody
            self.message.value = error_panel(error)
        self.redraw_ms = (perf_counter() - start) * 1000
        spent = f"{(process_time() - busy) * 1000:.0f} ms of one processor's time"
        self.timing.value = (
            f'<span style="opacity:0.7" title="{spent}">drawn in {self.redraw_ms:.0f} ms</span>'
        )
        self._pace()

    def _changed(self, change: object) -> None:
        if not self._busy:
            self.redraw()

    def _set_moments(self, count: int) -> None:
        """Take the moments of the chosen kind and go to the one nearest to ``count`` events."""
        self.moments = self.rewind.moments(self.by.value)
        last = len(self.moments) - 1
        at = min(range(last + 1), key=lambda i: abs(self.moments[i].count - count))
        self._busy = True
        self.slider.max = self.play.max = last
        self.play.step = max(1, last // FRAMES)
        self.play.value = self.slider.value = at
        self._busy = False
        self.redraw()

    def _offer_nodes(self) -> None:
        """The nodes that can be chosen: those in the tree, and the chosen one though it may be gone."""
        view, chosen = self.rewind.at(self.moment.count), self.node.value
        shown = list(view.nodes.values())
        if self.request.value:
            own = self.rewind.nodes_of(self.request.value, self.moment.count)
            shown = [node for node in shown if node.node_id in own]
        offered = {n.node_id: f"node {n.node_id} [{n.start:,}, {n.end:,}) {n.request}" for n in shown}
        if chosen != NO_NODE:
            offered.setdefault(chosen, f"node {chosen} (gone)")
        options = [("no node", NO_NODE), *((text, node_id) for node_id, text in offered.items())]
        if options != list(self.node.options):
            self._busy = True
            self.node.options = options
            self.node.value = chosen
            self._busy = False

    def _tell(self, key: str) -> None:
        """The history of a clicked node; of none where it was told already."""
        if int(key) in (node_id for _, node_id in self.node.options):
            self.node.value = NO_NODE if self.node.value == int(key) else int(key)

    def _from_the_start(self, change: Any) -> None:
        """Pressing play at the end begins anew."""
        if change["new"] and self.slider.value >= self.slider.max:
            self.play.value = self.slider.value = 0

    def _pace(self) -> None:
        """No faster than can be drawn, or moves would pile up behind the picture."""
        wanted = max(FASTEST_MS, round(self.redraw_ms * 1.6 / 100) * 100)
        if abs(wanted - self.play.interval) > 0.25 * self.play.interval:
            self.play.interval = wanted

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget, and its picture for where no kernel or no script runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        bundle["image/svg+xml"] = bytes(self.pane.picture.value).decode()
        return bundle


def _opening(rewind: Rewind) -> int:
    """After how many events to open: at the first misplaced state or broken invariant, else at the end."""
    broken = (at for at, entry in enumerate(rewind.entries, 1) if isinstance(entry.event, Violation))
    return next(broken, len(rewind))
