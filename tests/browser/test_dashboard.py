"""The same notebook as a dashboard: Voilà shows the explorer without code, and its slider works."""

import shutil
import subprocess
import sys

import pytest
from tests.browser.conftest import ROOT, _await, _environment, _free_port, click_spot

pytestmark = pytest.mark.browser


@pytest.fixture
def dashboard(tmp_path):
    """Address of a Voilà that serves 10_time_travel.ipynb with few requests."""
    text = (ROOT / "notebooks" / "10_time_travel.ipynb").read_text()
    assert "requests = 150" in text
    (tmp_path / "dashboard.ipynb").write_text(text.replace("requests = 150", "requests = 40"))
    port, log = _free_port(), (tmp_path / "log.txt").open("w+")
    words = ["dashboard.ipynb", "--template=depthchart", "--theme=light"]
    words += ["--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    command = [sys.executable, "-m", "voila", *words]
    server = subprocess.Popen(command, env=_environment(tmp_path), cwd=tmp_path, stdout=log, stderr=log)
    try:
        _await(f"http://127.0.0.1:{port}/voila/static/", server, tmp_path / "log.txt", anything=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=15)
        log.close()
        shutil.rmtree(tmp_path / "jupyter_runtime_dir", ignore_errors=True)


def test_dashboard(dashboard, visit):
    page = visit.page
    page.route(
        lambda url: not url.startswith(dashboard), lambda route: route.abort()
    )  # no network but this server
    page.goto(dashboard)
    root = page.locator(".depthchart-tree-explorer")
    root.locator("img").wait_for()
    head = root.locator(".depthchart-tree b").first
    head.wait_for()
    assert page.get_by_text("import tree_explorer").count() == 0  # no code
    assert page.get_by_role("heading", name="10 Time travel").is_visible()
    visit.picture("dashboard")
    key = click_spot(visit, root.locator(".depthchart-clickable"), "1")
    root.get_by_text(f"Node {key}: what happened to it", exact=False).wait_for()
    visit.picture("dashboard-node")
    before = head.inner_text()
    root.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    root.get_by_text("no nodes").wait_for()
    assert head.inner_text() != before
    assert visit.failed == []
    assert visit.outside == []  # no icon font, no script: the page works where there is no network
