"""The sweep explorer in a real JupyterLab: started, stopped, run to its end; cells, points and rows open as runs."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from tests.browser.conftest import click_spot

pytestmark = pytest.mark.browser

CELL = """from depthchart import load_trace
from depthchart.widgets import sweep_explorer
ranges = {"page_size": [64, 512], "preset": ["sglang", "depthchart"], "kv_tokens": [16384, 32768, 65536],
          "state_slots": [12, 24, 48]}
sweep_explorer(load_trace("agentic", limit=60), ranges)"""


def test_sweep(run_notebook, visit, lab_home):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=[new_code_cell(CELL)], metadata=kernel)
    nbformat.write(notebook, lab_home / "notebooks" / "sweep.ipynb")
    page = run_notebook("sweep.ipynb")
    root = page.locator(".depthchart-sweep-explorer")
    work = root.locator(".depthchart-work").first
    start, stop = work.get_by_role("button", name="Run the sweep"), work.get_by_role("button", name="Stop")

    start.click()
    work.get_by_text(re.compile(r"\d+ of 36")).wait_for()
    visit.picture("sweep-running")
    stop.click()
    work.get_by_text(re.compile("stopped at .* of 36")).wait_for()
    assert not root.get_by_role("button", name="As a run").is_visible()

    start.click()
    work.get_by_text("36 configurations of agentic").wait_for()
    visit.settle()
    root.locator("img").nth(1).wait_for()
    rows = root.locator(".depthchart-rows tbody tr")
    assert rows.count() == 36
    visit.picture("sweep")

    heat, front = (root.locator(".depthchart-clickable").nth(at) for at in range(2))
    key = click_spot(visit, heat, heat.evaluate("node => node.spots")[0][0])
    _opened(visit, root, key.split(",")[0])
    assert heat.locator(".depthchart-chosen").count() == 1
    assert (
        front.locator(".depthchart-chosen").count()
        == rows.locator("xpath=self::*[contains(@class, 'chosen')]").count()
    )
    visit.picture("sweep-cell")

    _opened(visit, root, click_spot(visit, front, "20"))
    root.locator(".depthchart-rows").scroll_into_view_if_needed()
    visit.picture("sweep-point")
    root.locator(".depthchart-rows tr[data-key='7']").click()
    _opened(visit, root, "7")
    root.locator(".depthchart-rows tr[data-key='8']").press("Enter")
    _opened(visit, root, "8")

    reuse = root.get_by_role("columnheader", name="reuse", exact=True)
    at = reuse.evaluate("node => node.cellIndex")
    reuse.click()
    shares = [
        float(text)
        for text in root.locator(f".depthchart-rows tbody td:nth-child({at + 1})").all_inner_texts()
    ]
    assert shares == sorted(shares)

    root.get_by_role("button", name="As a run").click()  # and by the list, without a pointer
    _opened(visit, root, "8")
    visit.picture("sweep-run")
    assert visit.failed == visit.outside == []


def _opened(visit, root, key):
    """The configuration at this place of the list runs and is shown as a tree, with its own words above."""
    visit.page.wait_for_function(
        "([root, key]) => [...root.querySelectorAll('.depthchart-work')].some(work => work.innerText.includes(' steps')"
        " && work.innerText.includes('done')) && root.querySelector(`tr[data-key='${key}']`).classList.contains('chosen')"
        " && root.querySelector('.depthchart-tree-explorer img')",
        arg=[root.element_handle(), key],
    )
    visit.settle()
    tree = root.locator(".depthchart-tree-explorer")
    assert "node" in tree.locator(".depthchart-tree b").first.inner_text()
