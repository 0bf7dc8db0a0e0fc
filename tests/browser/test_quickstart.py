"""The quickstart in a real JupyterLab: its pictures, every slider, the rule, an illegal choice, and the time it takes."""

import os
import re
import time
from statistics import median

import pytest

pytestmark = pytest.mark.browser

LIMIT_MS = 200


def test_quickstart(run_notebook, visit):
    page = run_notebook("00_quickstart.ipynb")
    assert_pictures(page)
    page.get_by_role("heading", name="00 Quickstart").scroll_into_view_if_needed()
    visit.picture("quickstart")
    explorer = Explorer(visit)
    visit.picture("explorer")

    assert "64 tokens run through the recurrence twice" in explorer.text()
    explorer.choose("absolute")
    assert "reuses 512 of 604 tokens, and the state there has read exactly those" in explorer.text()
    visit.picture("explorer-absolute")
    explorer.choose("prefix_relative")
    for slider, key, readout in ((2, "ArrowRight", "128"), (1, "ArrowLeft", "4"), (0, "ArrowRight", "128")):
        explorer.move(slider, key, readout)
    visit.picture("explorer-moved")

    explorer.move(0, "ArrowRight", "256")
    explorer.press(0, "ArrowRight", "528")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "page_size=528: must divide chunk_width=128 or be a multiple of it" in alert.inner_text()
    assert not explorer.picture.is_visible()
    visit.picture("explorer-illegal")

    assert visit.failed == []
    assert visit.outside == []
    assert (
        page.locator(".jp-OutputArea-output [data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    )
    print(
        f"redraws in the kernel {explorer.drawn_ms} ms, of them computing {explorer.busy_ms} ms; "
        f"from key press to picture {[round(seconds * 1000) for seconds in explorer.seen_s]} ms"
    )
    assert median(explorer.busy_ms) < LIMIT_MS
    # The clock counts only where nobody else wants the processors.
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert median(explorer.drawn_ms) < LIMIT_MS


def assert_pictures(page):
    """Before, after and the tree are drawn, as wide as the cell and no wider."""
    drawn = page.locator(".jp-RenderedSVG img, .jp-RenderedSVG svg")
    assert drawn.count() == 3
    for box in (drawn.nth(i).bounding_box() for i in range(3)):
        assert 600 < box["width"] < 1200
        assert box["height"] > 100


class Explorer:
    """The explorer on the page: moves a control, waits for the new picture and notes the times."""

    def __init__(self, visit):
        self.visit, self.page = visit, visit.page
        self.root = self.page.locator(".depthchart-geometry-explorer")
        self.picture = self.root.locator("img")
        self.root.scroll_into_view_if_needed()
        self.picture.wait_for()
        self.drawn_ms, self.busy_ms, self.seen_s = [], [], []

    def text(self):
        return self.root.inner_text()

    def press(self, slider, key, readout):
        handle = self.root.get_by_role("slider").nth(slider)
        handle.focus()
        self.page.keyboard.press(key)
        self.page.wait_for_function(
            "([node, text]) => node.innerText.trim() === text",
            arg=[self.root.locator(".widget-readout").nth(slider).element_handle(), readout],
        )

    def move(self, slider, key, readout):
        self._changes(lambda: self.press(slider, key, readout))

    def choose(self, rule):
        self._changes(lambda: self.root.locator("select").first.select_option(rule))

    def _changes(self, act):
        before, start = self.picture.get_attribute("src"), time.perf_counter()
        act()
        self.page.wait_for_function(
            "([image, src]) => image.src !== src && image.complete",
            arg=[self.picture.element_handle(), before],
        )
        self.seen_s.append(time.perf_counter() - start)
        self.visit.settle()  # the texts come in messages after the picture
        timing = self.root.get_by_text("drawn in")
        self.drawn_ms.append(_number(timing.inner_text()))
        self.busy_ms.append(_number(timing.get_attribute("title")))


def _number(text):
    return int(re.search(r"\d+", text)[0])
