"""The case explorer in a real JupyterLab, opened from the index page: another rule, checks off, steps, its report."""

import re

import pytest
from tests.browser.conftest import click_spot

pytestmark = pytest.mark.browser


def test_a_case_from_the_index(run_notebook, visit, lab, lab_home, offline):
    page = visit.page
    page.goto(f"{lab}/lab/tree/notebooks/index.ipynb?reset")
    link = page.locator(".jp-RenderedMarkdown a", has_text="08 Recorded bugs")
    link.wait_for()
    visit.settle()
    assert page.locator(".jp-RenderedMarkdown table tr").count() == 1 + len(
        list(lab_home.glob("notebooks/[0-9]*.ipynb"))
    )
    visit.picture("index")
    link.click()
    page.get_by_role("heading", name="08 Recorded bugs").wait_for()

    run_notebook("08_recorded_bugs.ipynb")
    root = page.locator(".depthchart-case-explorer")
    root.locator("img").wait_for()
    assert "PageSharedError at step 3" in root.inner_text()
    assert "shares a page with segment [512, 576)" in root.inner_text()
    visit.picture("case-strict")
    root.get_by_text("stop where an invariant breaks").click()
    root.get_by_text("step 3 · 1 node: 1 misplaced state", exact=False).wait_for()
    assert "64 too many" in root.inner_text()
    visit.settle()
    visit.picture("case-checks-off")
    root.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    root.get_by_text("no nodes", exact=False).first.wait_for()
    root.locator("select").nth(1).select_option("rule\xa0absolute")  # the browser gets hard spaces
    root.get_by_text("Sound: every invariant held").wait_for()
    visit.settle()
    click_spot(visit, root.locator(".depthchart-clickable"), "1")
    root.get_by_text("Node 1: what happened to it", exact=False).wait_for()
    visit.settle()
    root.locator("select").first.select_option("llamacpp-24035")  # an engine's own way of doing it
    root.get_by_text("Checkpoints of one slot", exact=False).first.wait_for()
    visit.settle()  # choosing a case offers its engines: wait for them before choosing one
    root.locator("select").nth(1).select_option("as\xa0recorded")
    root.get_by_text("less is reused than the right answer allows", exact=False).wait_for()
    assert "engine preset llamacpp-24035" in root.inner_text()
    visit.settle()
    visit.picture("case-engine")
    root.locator("select").first.select_option("vllm-45238-1500")  # a simulated trace
    root.get_by_text("KV alone [tokens]").wait_for()
    visit.settle()
    visit.picture("case-trace")
    root.locator("select").first.select_option("fla-122")  # nothing to see, in words
    root.get_by_text("There is no tree to see here", exact=False).wait_for()
    visit.settle()
    visit.picture("case-note")
    root.locator("select").first.select_option("split-leaves-state-on-child")
    root.locator("pre", has_text="split-leaves-state-on-child").first.wait_for()
    visit.settle()
    visit.picture("case-other")

    root.get_by_role("button", name="Write report").click()
    root.get_by_text("it opens without a network").wait_for()
    offline.page.goto(f"file://{lab_home}/notebooks/out/case.html")
    assert offline.page.locator("[data-film] .frame:not([hidden]) svg").is_visible()
    offline.picture("case-report")
    assert visit.failed == visit.outside == offline.failed == offline.outside == []


def test_kernels(run_notebook, visit):
    """Recorded measurements are drawn; measuring here tells its progress and is stopped."""
    page = run_notebook("05_kernel_throughput.ipynb")
    root = page.locator(".depthchart-kernel-explorer")
    root.locator("img").wait_for()
    visit.picture("kernels")
    work = root.locator(".depthchart-work").first
    work.get_by_role("button", name="Measure here").click()
    work.get_by_text(re.compile(r"\d+ of \d+")).wait_for()
    before = root.locator("img").get_attribute("src")
    root.locator("select[multiple]").select_option(["ssd"])  # the explorer goes on while it measures
    page.wait_for_function(
        "([image, src]) => image.src !== src", arg=[root.locator("img").element_handle(), before]
    )
    visit.picture("kernels-measuring")
    work.get_by_role("button", name="Stop").click()
    work.get_by_text("stopped at").wait_for()
    assert work.get_by_role("button", name="Measure here").is_enabled()
    assert visit.failed == visit.outside == []
