"""Notebooks exported for readers without a kernel: what widgets last showed is in the file, and nothing is fetched."""

from html.parser import HTMLParser

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from depthchart.cli import main
from depthchart.static_widgets import export_notebook, static_widgets

CELLS = [
    "from depthchart.widgets import case_explorer\ne = case_explorer(rule='prefix_relative')\ne",
    "e.strict.value = False\ne.slider.value = 2",
    "import ipywidgets as w\nw.VBox([w.IntText(7, description='<n>'), w.Button(description='press'), w.HTML('a <i>b</i>'), "
    "w.Checkbox(True, description='on'), w.HTML('gone', layout=w.Layout(display='none'))])",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A notebook that was run, its explorer moved after it was shown, and saved with its widgets' state."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [new_markdown_cell("# Title"), *map(new_code_cell, CELLS)]
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120, store_widget_state=True).execute()
    path = tmp_path_factory.mktemp("export") / "moved.ipynb"
    nbformat.write(notebook, path)
    return path


def test_the_last_state_is_shown(saved, tmp_path):
    text = export_notebook(saved, tmp_path / "x.html").read_text()
    assert "64 too many" in text  # checks off: set after the explorer was shown
    assert "step 1 · no nodes" in text
    assert "under: <b>rule prefix_relative</b>" in text
    assert "stop where an invariant breaks: <b>no</b>" in text
    assert "data:image/svg+xml;base64," in text
    assert "&lt;n&gt;: <b>7</b>" in text
    assert "a <i>b</i>" in text
    assert "on: <b>yes</b>" in text
    assert text.count("gone") == 1  # in the code that made it, and nowhere else
    assert "report to" not in text


def test_nothing_is_fetched(saved, tmp_path):
    class Addresses(HTMLParser):
        found = ()

        def handle_starttag(self, tag, attrs):
            self.found += tuple(
                v for k, v in attrs if k in ("src", "href") and not v.startswith(("#", "data:"))
            )

    text = export_notebook(saved, tmp_path / "x.html").read_text()
    parser = Addresses()
    parser.feed(text)
    assert parser.found == ()
    assert "import(" not in text
    assert "widget-view" not in text


def test_without_saved_state_the_other_representations_stay(saved):
    notebook = nbformat.read(saved, as_version=4)
    notebook.metadata.pop("widgets")
    (shown,) = static_widgets(notebook)["cells"][1]["outputs"]
    assert "image/svg+xml" in shown["data"]
    assert "application/vnd.jupyter.widget-view+json" not in shown["data"]


def test_the_notebook_itself_is_left_alone(saved):
    notebook = nbformat.read(saved, as_version=4)
    before = nbformat.writes(notebook)
    static_widgets(notebook)
    assert nbformat.writes(notebook) == before


def test_the_command(saved, tmp_path, capsys):
    assert main(["export", str(saved), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "moved.html")
    (tmp_path / "broken.ipynb").write_text("{")
    assert main(["export", str(tmp_path / "broken.ipynb"), "--out", str(tmp_path)]) == 2
    assert "cannot be read as a notebook" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "none.ipynb"), "--out", str(tmp_path)]) == 2
