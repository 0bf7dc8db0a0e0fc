"""Long work in explorers: a thread with a progress bar and a stop button, so that nothing else has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as w

from depthchart.widgets.panels import error_panel

__all__ = ["Advance", "Stopped", "WorkBar"]

Advance = Callable[[int, int], object]


class Stopped(Exception):
    """Raised inside work that was asked to stop."""


class WorkBar(w.VBox):
    """A button that starts ``work(advance)``; what it returns is shown as text (HTML), an error in its own words.

    ``work`` calls ``advance(done, total)`` now and then: that moves the bar, and raises ``Stopped`` once stop was pressed.
    One piece of work runs at a time.
    """

    def __init__(self, label: str, work: Callable[[Advance], str], *before: Any) -> None:
        self._work = work
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock, self._wanted = threading.Lock(), False
        self.start = w.Button(description=label, button_style="primary", layout=w.Layout(width="auto"))
        self.stop = w.Button(description="Stop", disabled=True, layout=w.Layout(width="80px"))
        self.bar = w.IntProgress(min=0, max=1, layout=w.Layout(width="220px", display="none"))
        self.count, self.message = w.HTML(), w.HTML()
        row = w.HBox(
            [*before, self.start, self.stop, self.bar, self.count], layout=w.Layout(flex_flow="row wrap")
        )
        super().__init__([row, self.message])
        self.add_class("depthchart-work")
        self.start.on_click(lambda button: self.begin())
        self.stop.on_click(lambda button: self.halt())

    @property
    def running(self) -> bool:
        """Whether work is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Start the work, unless it runs already."""
        with self._lock:
            if self.running:
                return
            self._thread = threading.Thread(target=self._run, name="depthchart-work", daemon=True)
            self._prepare()
            self._thread.start()

    def again(self) -> None:
        """Start the work; where it runs already, stop it and start it anew."""
        with self._lock:
            self._wanted = self.running
            if self._wanted:
                self._stop.set()
        if not self._wanted:
            self.begin()

    def halt(self) -> None:
        """Ask the work to stop at its next ``advance``."""
        if self.running:
            self.count.value, self._wanted = "stopping", False
            self._stop.set()

    def wait(self, seconds: float | None = None) -> None:
        """Until the work is done, for at most so long."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _prepare(self) -> None:
        self._stop.clear()
        self.start.disabled, self.stop.disabled = True, False
        self.bar.value, self.bar.layout.display = 0, None
        self.count.value, self.message.value = "working", ""

    def _run(self) -> None:
        while True:
            said, done = "", "done"
            try:
                said = self._work(self._advance)
            except Stopped:
                done = f"stopped at {self.bar.value:,} of {self.bar.max:,}"
            except Exception as error:  # an error in a thread would otherwise be seen by nobody
                said, done = error_panel(error), "failed"
            with self._lock:
                if not self._wanted:
                    self.message.value, self.count.value = said, done
                    self.bar.layout.display = "none"
                    self.start.disabled, self.stop.disabled = False, True
                    self._thread = None
                    return
                self._wanted = False
                self._prepare()

    def _advance(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self.bar.max, self.bar.value = max(1, total), done
        self.count.value = f"{done:,} of {total:,}"
