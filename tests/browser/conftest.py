"""A JupyterLab on a free port with fresh settings, and a headless chromium: nothing is fetched from elsewhere."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "out" / "screenshots"  # git ignores out/
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
IDLE = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
# Where the parts of a clickable picture lie: its front end keeps them on its element for all who look.
SPOTS = "node => node.spots"
HAS_SPOT = "([node, key]) => (node.spots || []).some(spot => spot[0] === key || spot[0].split(',')[0] === key)"
# Lab asks whether it may fetch news, in a box that covers the lower right corner.
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}


@pytest.fixture(scope="session")
def chromium():
    """Path of Debian's chromium. A browser test that skips proves nothing, so its absence is an error."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("chromium is not installed: apt-get install chromium fonts-dejavu-core", pytrace=False)
    return found


@pytest.fixture(scope="session")
def lab_home(tmp_path_factory):
    """The folder that JupyterLab serves: a copy of notebooks/ (Lab writes outputs back)."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    return home


@pytest.fixture(scope="session")
def lab(lab_home):
    """Address of a JupyterLab that serves ``lab_home``."""
    home = lab_home
    quiet = home / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
    port = _free_port()
    log = (home / "log.txt").open("w+")
    server = subprocess.Popen(_command(port, home), env=_environment(home), cwd=home, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, server, home / "log.txt")
        yield url
    finally:
        server.terminate()
        server.wait(timeout=15)
        log.close()


@dataclass
class Visit:
    """A browser page, and what went wrong while it was open."""

    page: object
    failed: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the kernel has done all it was asked for, and has told so."""
        self.page.wait_for_function(IDLE)

    def picture(self, name: str) -> None:
        """Keep a screenshot for somebody to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=False)


def click_spot(visit, picture, key):
    """Really click the part of a picture whose key begins so, where the widget's own model says that it lies; gives its
    key. The pointer rests there first, and what is under it is outlined."""
    node = picture.element_handle()
    visit.page.wait_for_function(HAS_SPOT, arg=[node, key])  # a picture comes after the words above it
    spot = next(s for s in picture.evaluate(SPOTS) if key in (s[0], s[0].split(",")[0]))
    image = picture.locator("img")
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    x = box["x"] + box["width"] * (spot[1] + spot[3]) / 2
    y = box["y"] + box["height"] * (spot[2] + spot[4]) / 2
    visit.page.mouse.move(x, y)
    picture.locator(".depthchart-over:not([hidden])").wait_for()
    assert image.get_attribute("title") == spot[5]
    visit.page.mouse.click(x, y)
    return spot[0]


@pytest.fixture(scope="session")
def browser(chromium):
    """One chromium for all tests; each opens pages with settings of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """A fresh page of 1280 × 1500 pixels; what it asks for from elsewhere than this machine is noted."""
    context = browser.new_context(viewport={"width": 1280, "height": 1500})
    page = context.new_page()
    page.set_default_timeout(45_000)
    seen = Visit(page)
    page.on("pageerror", lambda error: seen.failed.append(str(error)))
    _note_requests(page, seen, ("http://127.0.0.1", "data:", "blob:"))
    yield seen
    context.close()


@pytest.fixture
def offline(browser):
    """A page whose browser has no network: whatever a file asks for from elsewhere is noted and fails."""
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(20_000)
    seen = Visit(page)
    page.on("pageerror", lambda error: seen.failed.append(str(error)))
    page.on("console", lambda said: said.type == "error" and seen.failed.append(said.text))
    _note_requests(page, seen, ("file:", "data:", "blob:"))
    yield seen
    context.close()


def _note_requests(page, seen, allowed):
    page.on("request", lambda r: r.url.startswith(allowed) or seen.outside.append(r.url))


@pytest.fixture
def run_notebook(lab, visit):
    """Call with a notebook's file name: opens it alone, runs all its cells and gives the page."""

    def run(name):
        visit.page.goto(f"{lab}/doc/tree/notebooks/{name}?reset")
        visit.settle()
        visit.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        visit.settle()
        return visit.page

    return run


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _environment(home):
    folders = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "IPYTHONDIR",
    )
    ours = {name: str(home / name.lower()) for name in folders} | {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings")
    }
    paths = [str(ROOT / "toolkit"), str(ROOT / "kernels")]
    templates = str(
        ROOT / "toolkit" / "depthchart" / "jupyter"
    )  # also where this checkout is not what is installed
    return os.environ | ours | {"PYTHONPATH": os.pathsep.join(paths), "JUPYTER_PATH": templates}


def _command(port, home):
    return [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}",
        "--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True",
        "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip


def _await(url, server, log, seconds=60, anything=False):
    """Until the server answers (with ``anything``: even that there is no such page); fails at once, with its log,
    where it has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url if anything else f"{url}/api/status", timeout=2):
                return
        except urllib.error.HTTPError:
            if anything:
                return
            time.sleep(0.2)
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"The server did not start:\n{log.read_text()[-3000:]}", pytrace=False)
