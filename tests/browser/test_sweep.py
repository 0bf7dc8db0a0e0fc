"""The sweep explorer in a real JupyterLab: started, stopped, run to its end, and a configuration opened as a run."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell

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
    assert root.locator("table").last.locator("tr").count() == 37
    visit.picture("sweep")

    root.get_by_role("button", name="As a run").click()
    tree = root.locator(".depthchart-tree-explorer")
    tree.locator("img").wait_for()
    visit.settle()
    assert "nodes" in tree.locator(".depthchart-tree b").first.inner_text()
    tree.scroll_into_view_if_needed()
    visit.picture("sweep-run")
    assert visit.failed == visit.outside == []
