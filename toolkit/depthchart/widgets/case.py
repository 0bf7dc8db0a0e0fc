"""The case explorer: a public bug under a rule of choice, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w

from depthchart.cases.catalogue import Case, catalogue
from depthchart.cases.expect import mismatches
from depthchart.cases.replay import Replay
from depthchart.cases.script import Script, find_script, load_script, script_names
from depthchart.cases.story import tell, verdict
from depthchart.depth import RULES
from depthchart.report.cases import case_page
from depthchart.rewind import Moment, Rewind
from depthchart.widgets.panels import error_panel, marks_panel, verdict_panel
from depthchart.widgets.reporting import ReportBar
from depthchart.widgets.tree_pane import TreePane

__all__ = ["CaseExplorer", "case_explorer"]

RECORDED = "as recorded"


def case_explorer(
    case: str = "sglang-39115-absolute",
    rule: str = RECORDED,
    *,
    cases: Sequence[str] = (),
    theme: str = "light",
) -> CaseExplorer:
    """Choose a recorded case, a depth rule, and whether a broken invariant stops it; then go through its steps.

    ``case`` and ``cases`` are names of bundled scripts or of catalogued cases, or files of scripts; ``cases`` can be chosen
    (default: all scripts that are bundled or in the catalogue). Raises
    ScriptError for an unknown case, ValueError for an unknown rule.
    """
    return CaseExplorer(case, rule, cases or [*script_names(), *_catalogued()], theme)


class CaseExplorer(w.VBox):
    """Controls ``case``, ``rule``, ``strict``, ``slider`` and ``play``; ``script`` is what is shown."""

    def __init__(self, case: str, rule: str, cases: Sequence[str], theme: str = "light") -> None:
        self.theme, self._quiet = theme, False
        self.script: Script = _find(case)
        if rule != RECORDED:
            RULES[rule]
        offered = list(dict.fromkeys([*cases, case]))
        wide = w.Layout(width="420px")
        self.case = w.Dropdown(description="case", options=offered, value=case, layout=wide)
        self.rule = w.Dropdown(
            description="rule", options=[RECORDED, *RULES], value=rule, layout=w.Layout(width="260px")
        )
        self.strict = w.Checkbox(
            value=self.script.strict, description="stop where an invariant breaks", indent=False
        )
        self.slider = w.IntSlider(description="step", continuous_update=False, readout=False, layout=wide)
        self.play = w.Play(interval=1000, show_repeat=False)
        self._link = w.jslink((self.play, "value"), (self.slider, "value"))
        self.intro, self.verdict, self.story, self.message = (w.HTML() for _ in range(4))
        self.body = w.VBox()
        self.report = ReportBar(self._write_report, "out/case.html")
        super().__init__(
            [
                w.HBox([self.case, self.rule, self.strict]),
                self.message,
                self.body,
                self.report,
            ]
        )
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
        """Another case begins with its own checks."""
        try:
            strict = _find(self.case.value).strict
        except ValueError as error:
            self.message.value = error_panel(error)
            return
        self._quiet = True
        self.strict.value = strict
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
        self.body.children = (
            self.intro,
            self.verdict,
            w.HBox([self.play, self.slider]),
            self.pane,
            self.story,
            w.HTML(marks_panel(self.theme)),
        )

    def _run(self) -> None:
        recorded = _find(self.case.value)
        rule = None if self.rule.value in (RECORDED, recorded.rule) else self.rule.value
        strict = None if self.strict.value == recorded.strict else self.strict.value
        self.script = recorded.under(rule=rule, strict=strict)
        self.lines, self.result = tell(self.script)
        replay = Replay(self.script)
        replay.run()
        rewind = Rewind(replay.log)
        self.moments = rewind.moments(changes_only=False)
        self.pane = TreePane(rewind, self.script.geometry, theme=self.theme, clock=False)
        said = verdict(self.result, bool(self.script.expect), mismatches(self.result, self.script.expect))
        faults = [fault["message"] for fault in self.result["violations"]]
        if self.result["error"]:
            faults.insert(0, self.result["error"]["message"])
        self.verdict.value = verdict_panel(f"{said[0].upper()}{said[1:]}.", faults)
        self.intro.value = _intro(self.script)
        last = len(self.moments) - 1
        self._quiet = True
        self.slider.max = self.play.max = last
        self.slider.value = self.play.value = last
        self._quiet = False
        self._show()

    def _show(self, change: object = None) -> None:
        if self._quiet:
            return
        try:
            self.pane.show(self.moment)
            self.story.value = _story(self.lines, None if self.slider.value == 0 else self.moment.step)
        except Exception as error:  # an error in a callback would otherwise be seen by nobody
            self.message.value = error_panel(error)

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        return case_page(self.script).write(path, advance=advance)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget, and its picture for where no kernel or no script runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if self.body.children:
            bundle["image/svg+xml"] = bytes(self.pane.picture.value).decode()
        return bundle


def _catalogued() -> dict[str, Case]:
    """The cases of the catalogue that are scripts, by id."""
    return {case.id: case for case in catalogue() if case.kind == "script"}


def _find(name: str) -> Script:
    """A bundled script, a case of the catalogue, or a file. A case runs under the rule that shows it, where that is one
    rule of ours, with checks off."""
    case = _catalogued().get(name)
    if case is None or name in script_names():
        return find_script(name)
    raw = {
        "geometry": dict(case.geometry),
        "pools": dict(case.pools),
        "steps": [dict(step) for step in case.steps],
        "decode_grid": case.decode_grid,
        "rule": case.shows if case.shows in RULES else "absolute",
        "strict": False,
        "source": case.thread,
        "story": f"{case.title}. {case.explanation} Faulty: {case.faulty}. Right: {case.right}.",
    }
    return load_script(raw, case.id)


def _intro(script: Script) -> str:
    source = f"<b>{escape(script.source)}</b> · " if script.source else ""
    rule = f"rule <code>{escape(script.rule)}</code>: {escape(RULES[script.rule].summary)}"
    story = f"<div>{escape(script.story)}</div>" if script.story else ""
    return f'<div style="line-height:1.4;max-width:900px">{source}{rule}{story}</div>'


def _story(lines: Sequence[str], step: int | None) -> str:
    """The whole story, the chosen step in bold; where it ended, and the tree, come last."""
    shown, here = [], False
    for line in lines:
        if line.startswith("step "):
            here = step is not None and line.split()[1] == str(step)
        elif line.startswith("tree"):
            here = False
        shown.append(f"<b>{escape(line)}</b>" if here and line else escape(line))
    text = "\n".join(shown)
    return f'<pre style="line-height:1.35;max-height:340px;overflow:auto;font-size:12px">{text}</pre>'
