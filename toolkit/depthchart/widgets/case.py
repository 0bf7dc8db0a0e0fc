"""The case explorer: a public bug under a rule or engine preset of choice, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w

from depthchart.cases.stage import Stage, case_names, engines_of, stage
from depthchart.depth import RULES
from depthchart.display import geometry_html, table_html
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.report.cases import case_page
from depthchart.rewind import Moment, Rewind
from depthchart.widgets.clickable import AUTO
from depthchart.widgets.panels import error_panel, marks_panel, repeat_panel, verdict_panel
from depthchart.widgets.reporting import ReportBar
from depthchart.widgets.tree_pane import TreePane

__all__ = ["CaseExplorer", "case_explorer"]

RECORDED = "as recorded"


def case_explorer(
    case: str = "sglang-39115-absolute",
    rule: str = RECORDED,
    *,
    cases: Sequence[str] = (),
    theme: str = AUTO,
) -> CaseExplorer:
    """Choose a public bug, a depth rule or an engine preset, and whether a broken invariant stops it; then go through
    its steps.

    ``case`` and ``cases`` are names of bundled scripts or of catalogued cases of any kind, or files of scripts; ``cases``
    can be chosen (default: all of them). ``theme`` is "light", "dark" or "auto" (as the page is). Raises ScriptError for
    an unknown case, ValueError for an unknown rule or preset.
    """
    return CaseExplorer(case, rule, cases or case_names(), theme)


class CaseExplorer(w.VBox):
    """Controls ``case``, ``rule``, ``strict``, ``slider`` and ``play``; ``stage`` is what is shown."""

    def __init__(self, case: str, rule: str, cases: Sequence[str], theme: str = AUTO) -> None:
        self._quiet = False
        self.stage: Stage = stage(case)
        if rule != RECORDED and rule not in RULES:
            _known(rule)
        offered = list(dict.fromkeys([*cases, case]))
        wide = w.Layout(width="420px", max_width="98%")
        self.case = w.Dropdown(description="case", options=offered, value=case, layout=wide)
        self.rule = w.Dropdown(
            description="under",
            options=_choices(case, rule),
            value=rule,
            layout=w.Layout(width="300px", max_width="98%"),
            tooltip="a depth rule, or an engine's whole bundle of rule, cuts and eviction",
        )
        self.strict = w.Checkbox(
            value=bool(self.stage.strict), description="stop where an invariant breaks", indent=False
        )
        self.slider = w.IntSlider(description="step", continuous_update=False, readout=False, layout=wide)
        self.play = w.Play(interval=1000, show_repeat=False)
        self._link = w.jslink((self.play, "value"), (self.slider, "value"))
        self.intro, self.verdict, self.story, self.message, self.repeat = (w.HTML() for _ in range(5))
        self.body = w.VBox()
        self.pane = TreePane(Rewind(()), Geometry(1), theme=theme)
        self.pane.picture.on_click(self._tell)
        self.node_id: int | None = None
        self.moments: list[Moment] = []
        self.report = ReportBar(self._write_report, "out/case.html")
        wrap = w.Layout(flex_flow="row wrap")
        top = w.HBox([self.case, self.rule, self.strict], layout=wrap)
        super().__init__([top, self.message, self.body, self.report])
        self.add_class("depthchart-case-explorer")
        self.case.observe(self._new_case, names="value")
        for control in (self.rule, self.strict):
            control.observe(self._replay, names="value")
        self.slider.observe(self._show, names="value")
        self._replay()

    @property
    def moment(self) -> Moment:
        """What the slider points at."""
        return self.moments[min(self.slider.value, len(self.moments) - 1)]

    def _new_case(self, change: object) -> None:
        """Another case begins with its own checks, and offers the engines that it speaks of."""
        try:
            first = stage(self.case.value)
        except ValueError as error:
            self.message.value = error_panel(error)
            return
        self._quiet = True
        kept = self.rule.value
        choices = _choices(self.case.value)
        self.rule.options = choices
        self.rule.value = kept if kept in dict(choices).values() else RECORDED
        self.strict.value = bool(first.strict)
        self._quiet = False
        self._replay()

    def _replay(self, change: object = None) -> None:
        if self._quiet:
            return
        try:
            self._run()
        except Exception as error:  # a rule of the user's own may raise anything
            self.message.value = error_panel(error)
            self.body.children = ()
            return
        self.message.value = ""

    def _run(self) -> None:
        under = None if self.rule.value == RECORDED else self.rule.value
        self.stage = shown = stage(self.case.value, under)
        can = shown.strict is not None
        if can and shown.strict != self.strict.value:
            self.stage = shown = stage(self.case.value, under, strict=self.strict.value)
        self.strict.layout.display = None if can else "none"
        self.verdict.value = verdict_panel(shown.said, shown.faults, shown.right)
        self.intro.value = _intro(shown)
        self.repeat.value = repeat_panel([shown.command])
        parts: list[Any] = [self.intro, self.verdict]
        self.node_id = None
        if shown.entries and shown.geometry is not None:
            self._load(shown, shown.geometry)
            parts += [w.HBox([self.play, self.slider], layout=w.Layout(flex_flow="row wrap")), self.pane]
        else:
            self.moments = []
        self._tell_story()
        parts += [self.story, *([w.HTML(marks_panel())] if self.moments else []), self.repeat]
        self.body.children = tuple(parts)

    def _load(self, shown: Stage, geometry: Geometry) -> None:
        rewind = Rewind(shown.entries)
        self.pane.load(rewind, geometry, clock=shown.clock)
        self.moments = rewind.moments(changes_only=shown.clock)
        last = len(self.moments) - 1
        self._quiet = True
        self.slider.max = self.play.max = last
        self.slider.value = self.play.value = last
        self._quiet = False
        self.pane.show(self.moment)

    def _show(self, change: object = None) -> None:
        if self._quiet or not self.moments:
            return
        try:
            self.pane.show(self.moment, node_id=self.node_id)
            self._tell_story()
        except Exception as error:  # an error in a callback would otherwise be seen by nobody
            self.message.value = error_panel(error)

    def _tell(self, key: str) -> None:
        """The history of a clicked node; of none where it was told already."""
        self.node_id = None if self.node_id == int(key) else int(key)
        self._show()

    def _tell_story(self) -> None:
        at_first = not self.moments or self.slider.value == 0
        self.story.value = _story(self.stage, None if at_first else self.moment.step)

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        return case_page(self.stage).write(path, advance=advance)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget, and its picture for where no kernel or no script runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if self.moments:
            bundle["image/svg+xml"] = bytes(self.pane.picture.value).decode()
        return bundle


def _choices(case: str, *more: str) -> list[tuple[str, str]]:
    """What a case can be run under: as recorded, the engines that it speaks of, every rule, every engine."""
    own = engines_of(case)
    names = dict.fromkeys([*own, *RULES, *PRESETS, *(name for name in more if name != RECORDED)])
    return [(RECORDED, RECORDED), *((f"rule {n}" if n in RULES else f"engine {n}", n) for n in names)]


def _known(name: str) -> None:
    try:
        preset(name)
    except ValueError:
        RULES[name]  # says which rules there are


def _intro(shown: Stage) -> str:
    source = f"<b>{escape(shown.source)}</b>" if shown.source else ""
    about = escape(shown.about)
    story = f"<div>{escape(shown.story)}</div>" if shown.story else ""
    head = " · ".join(part for part in (source, about) if part)
    return f'<div style="line-height:1.4;max-width:900px">{head}{story}</div>'


def _story(shown: Stage, step: int | None) -> str:
    """Tables of the case, or the whole story with the chosen step in bold; where it ended, and the tree, come last."""
    parts = []
    if shown.rows:
        parts.append(
            f'<div style="line-height:1.35;overflow:auto;max-height:340px">{table_html(shown.rows)}</div>'
        )
    if not shown.entries and shown.geometry is not None:
        parts.append(geometry_html(shown.geometry))
    if shown.lines:
        parts.append(_listing(shown.lines, step))
    return "".join(parts)


def _listing(lines: Sequence[str], step: int | None) -> str:
    shown, here = [], False
    for line in lines:
        if line.startswith("step "):
            here = step is not None and line.split()[1] == str(step)
        elif line.startswith("tree"):
            here = False
        shown.append(f"<b>{escape(line)}</b>" if here and line else escape(line))
    text = "\n".join(shown)
    return f'<pre style="line-height:1.35;max-height:340px;overflow:auto;font-size:12px">{text}</pre>'
