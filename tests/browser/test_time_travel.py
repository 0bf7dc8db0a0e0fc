"""The tree explorer in a real JupyterLab: slider, play, one request, a node's history, the time it takes, the report."""

import os
import re
from statistics import median

import pytest
from tests.browser.conftest import click_spot

pytestmark = pytest.mark.browser

LIMIT_MS = 400


@pytest.fixture
def explorer(run_notebook, visit):
    run_notebook("10_time_travel.ipynb")
    return Explorer(visit)


class Explorer:
    """The explorer on the page: moves a control and waits for what it shows."""

    def __init__(self, visit):
        self.visit, self.page = visit, visit.page
        self.root = self.page.locator(".depthchart-tree-explorer")
        self.picture = self.root.locator("img")
        self.head = self.root.locator(".depthchart-tree b").first
        self.picture.wait_for()
        self.root.scroll_into_view_if_needed()
        self.drawn_ms, self.busy_ms = [], []

    def key(self, key):
        """Press a key on the slider, wait for the new headline, and note the time."""
        before = self.head.inner_text()
        self.root.get_by_role("slider").first.focus()
        self.page.keyboard.press(key)
        self.page.wait_for_function(
            "([root, text]) => root.querySelector('.depthchart-tree b').innerText !== text",
            arg=[self.root.element_handle(), before],
        )
        self.visit.settle()
        timing = self.root.get_by_text("drawn in")
        self.drawn_ms.append(_number(timing.inner_text()))
        self.busy_ms.append(_number(timing.get_attribute("title")))

    def choose(self, drop_down, index, shows):
        """Choose from a drop-down by position and wait for the words that this shows."""
        self.root.locator("select").nth(drop_down).select_option(index=index)
        self.root.get_by_text(shows).first.wait_for()
        self.visit.settle()


def test_time_travel(explorer, offline, visit, lab_home):
    page = visit.page
    assert "1 misplaced state" in explorer.head.inner_text()
    assert "BROKEN INVARIANT" in explorer.root.inner_text()
    visit.picture("tree-explorer")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Home", "ArrowRight", "End"):
        explorer.key(key)
    end = explorer.head.inner_text()
    explorer.key("Home")
    assert "no nodes" in explorer.head.inner_text()

    _play(explorer)
    _click_nodes(explorer)
    explorer.choose(1, 1, "drawn in")
    explorer.choose(2, 1, "what happened to it in the whole run")
    assert "it is made by" in explorer.root.inner_text()
    explorer.root.get_by_text("What the marks mean").click()
    visit.picture("tree-explorer-one-request")
    explorer.choose(1, 0, "drawn in")
    explorer.key("End")
    assert explorer.head.inner_text() == end

    report = _report(explorer, lab_home)
    assert visit.failed == []
    assert visit.outside == []
    print(f"redraws in the kernel {explorer.drawn_ms} ms, of them computing {explorer.busy_ms} ms")
    assert median(explorer.busy_ms) < LIMIT_MS
    if os.getloadavg()[0] < (
        os.cpu_count() or 1
    ):  # the clock counts only where nobody else wants the processors
        assert median(explorer.drawn_ms) < LIMIT_MS
    assert (
        page.locator(".jp-OutputArea-output [data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    )
    _read_offline(offline, report)


def _click_nodes(explorer):
    """A click on a node tells its history and chooses it in the drop-down; another one takes it back."""
    explorer.key("End")
    picture = explorer.root.locator(".depthchart-clickable")
    for _ in range(2):
        spots = picture.evaluate("node => node.spots")
        key = click_spot(explorer.visit, picture, spots[len(spots) // 2][0])
        explorer.root.get_by_text(f"Node {key}: what happened to it", exact=False).wait_for()
        explorer.visit.settle()
        chosen = explorer.root.locator("select").nth(2)
        assert chosen.evaluate("node => node.selectedOptions[0].text").split()[:2] == ["node", key]
        assert picture.locator(".depthchart-chosen").count() == 1
        explorer.visit.picture("tree-explorer-clicked")
        click_spot(explorer.visit, picture, key)
        explorer.root.get_by_text(f"Node {key}: what happened to it", exact=False).wait_for(state="hidden")
        explorer.visit.settle()
        explorer.key("ArrowLeft")


def _play(explorer):
    """The play button moves the tree by itself, and stops."""
    seen = explorer.head.inner_text()
    buttons = explorer.root.locator(".widget-play button")
    buttons.first.click()
    for _ in range(3):
        explorer.page.wait_for_function(
            "([root, text]) => root.querySelector('.depthchart-tree b').innerText !== text",
            arg=[explorer.root.element_handle(), seen],
        )
        seen = explorer.head.inner_text()
    buttons.first.click()  # the same button now pauses
    explorer.visit.settle()
    explorer.page.wait_for_timeout(700)
    stopped = explorer.head.inner_text()
    explorer.page.wait_for_timeout(1200)
    assert explorer.head.inner_text() == stopped
    assert "no nodes" not in stopped


def _report(explorer, home):
    """Start a report, stop it, then write one whole; gives its path."""
    bar = explorer.root.locator(".depthchart-report")
    write, stop = bar.get_by_role("button", name="Write report"), bar.get_by_role("button", name="Stop")
    write.click()
    bar.get_by_text(re.compile(r"\d+ of \d+")).wait_for()
    explorer.visit.picture("report-under-way")
    stop.click()
    bar.get_by_text("stopped at").wait_for()
    path = home / "notebooks" / "out" / "report.html"
    assert not path.exists()
    write.click()
    bar.get_by_text("it opens without a network").wait_for()
    assert path.is_file()
    return path


def _read_offline(visit, report):
    """The report from disk, with no network: its slider, its play button and its tables work."""
    page = visit.page
    page.goto(f"file://{report}")
    film = page.locator("[data-film]")
    shown = film.locator(".frame:not([hidden])")
    assert shown.count() == 1
    assert "1 misplaced state" in film.locator("output").inner_text()
    visit.picture("report")
    film.scroll_into_view_if_needed()
    visit.picture("report-film")
    film.get_by_role("slider").focus()
    page.keyboard.press("Home")
    assert "1 of 4" in film.locator("output").inner_text()
    assert shown.count() == 1
    assert shown.locator("svg").bounding_box()["width"] > 600
    page.keyboard.press("ArrowRight")
    assert film.locator("output").inner_text().startswith("2 of ")
    film.locator("[data-play]").click()
    page.wait_for_function("() => document.querySelector('[data-film] output').innerText.startsWith('4 of ')")
    film.locator("[data-play]").click()

    table = page.locator("table[data-sort]", has=page.get_by_role("columnheader", name="first_token_s"))
    prompts = _column(table, "prompt_tokens")
    table.get_by_role("button", name="prompt_tokens").click()
    assert _column(table, "prompt_tokens") == sorted(prompts)
    table.get_by_role("button", name="prompt_tokens").click()
    assert _column(table, "prompt_tokens") == sorted(prompts, reverse=True)
    table.scroll_into_view_if_needed()
    visit.picture("report-table")
    _dark_and_narrow(visit)
    assert visit.failed == []
    assert visit.outside == []


def _dark_and_narrow(visit):
    """Page and figures follow a dark theme; on a telephone nothing but tables and figures scrolls sideways."""
    page = visit.page
    states = page.locator("figure").first.locator("path[style*='--c-kv-edge']").first
    stroke = "node => getComputedStyle(node).stroke + getComputedStyle(node).fill"
    light = states.evaluate(stroke)
    page.emulate_media(color_scheme="dark")
    assert (
        page.locator("body").evaluate("node => getComputedStyle(node).backgroundColor") == "rgb(20, 24, 29)"
    )
    assert states.evaluate(stroke) != light
    page.evaluate("() => window.scrollTo(0, 0)")
    visit.picture("report-dark")
    page.set_viewport_size({"width": 420, "height": 1000})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 420
    visit.picture("report-narrow")
    page.locator("[data-film]").scroll_into_view_if_needed()
    visit.picture("report-narrow-film")


def _column(table, name):
    heads = table.locator("th").all_inner_texts()
    at = next(i for i, head in enumerate(heads) if name in head)
    return [
        int(text.replace(",", ""))
        for text in table.locator(f"tbody td:nth-child({at + 1})").all_inner_texts()
    ]


def _number(text):
    return int(re.search(r"\d+", text)[0])
