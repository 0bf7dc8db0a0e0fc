"""Every notebook runs headless with small parameters, and no error hides inside a widget."""

import re
import tempfile
from functools import cache
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "notebooks" / "index.ipynb"
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if path != INDEX)
SMALL = {  # added after the parameters cell
    "00_quickstart": "requests = 12",
    "01_checkpoint_geometry": "tokens = 3",
    "02_trace_sweep": "requests, kv_tokens, state_slots = 25, [16384, 32768], [8, 24]",
    "03_wrong_state": "output_tokens, turns = 8, 3",
    "10_time_travel": "requests = 12",
    "06_policy_lab": "requests = 25",
    "07_dcp": "output_tokens, processes = 4, 2",
    "09_reports": "requests = 12",
    "04_chunked_scan": "tokens, chunk_widths, resumed = 70, [16, 64], 40",
}
WIDGETS = "application/vnd.jupyter.widget-state+json"


def run(notebook, folder="."):
    """Execute in place; a cell that fails raises CellExecutionError with its traceback."""
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        store_widget_state=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return notebook


@cache
def executed(path):
    """A notebook of ours, run once with its small parameters."""
    notebook = nbformat.read(path, as_version=4)
    if path.stem in SMALL:
        notebook.cells.insert(parameters(notebook)[0] + 1, new_code_cell(SMALL[path.stem]))
    with tempfile.TemporaryDirectory() as folder:  # what a notebook writes is thrown away
        return run(notebook, folder)


def hidden_errors(notebook):
    """What an Output widget swallowed; a callback's error shows nowhere else."""
    models = notebook.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {}).values()
    outputs = [out for model in models for out in model["state"].get("outputs", [])]
    alerts = [str(m["state"].get("value", "")) for m in models if m["model_name"] == "HTMLModel"]
    return [o for o in outputs if o.get("output_type") == "error"] + [
        a for a in alerts if 'role="alert"' in a
    ]


def parameters(notebook):
    return [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = executed(path)
    assert hidden_errors(notebook) == []
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert [out for out in shown if out.output_type == "stream"] == []  # no warnings, no prints


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_thin_and_clean(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), (
        "commit without outputs (nbstripout)"
    )
    assert len(parameters(notebook)) == 1, "parameters belong in one tagged cell"
    assert notebook.cells[0].cell_type == "markdown"
    assert "?" in notebook.cells[0].source, "open with the question"
    logic = [cell for cell in code if not cell.source.startswith("@rule(")]  # a user's rule belongs in a cell
    assert not any(line.startswith(("def ", "class ")) for cell in logic for line in cell.source.splitlines())


def test_quickstart_shows_a_picture_for_each_part():
    notebook = executed(ROOT / "notebooks" / "00_quickstart.ipynb")
    kinds = [set(out.get("data", {})) for cell in notebook.cells for out in cell.get("outputs", [])]
    pictures = [kind for kind in kinds if "image/svg+xml" in kind]
    assert len(pictures) == 4  # before, after, the explorer, a whole tree
    assert sum("application/vnd.jupyter.widget-view+json" in kind for kind in kinds) == 1
    svg = next(
        out.data["image/svg+xml"]
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if "image/svg+xml" in out.data
    )
    assert "has read 576 (+64)" in str(svg)


def test_the_index_names_every_notebook_in_order_and_its_links_lead_somewhere():
    cells = nbformat.read(INDEX, as_version=4).cells
    assert {cell.cell_type for cell in cells} == {"markdown"}
    text = "\n".join(cell.source for cell in cells)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if link.endswith(".ipynb")] == [path.name for path in NOTEBOOKS]
    assert all((ROOT / "notebooks" / link).is_file() for link in links)


@pytest.mark.parametrize(
    ("name", "view", "words"),
    [
        ("10_time_travel", "The tree in step", "Node 1 [0, "),
        ("08_recorded_bugs", "The tree in step", "sglang-39115-absolute"),
        ("05_kernel_throughput", "chunk width", "gated_delta"),
        ("09_reports", "<svg", "schedule.json"),
    ],
)
def test_what_the_others_show(name, view, words):
    notebook = executed(ROOT / "notebooks" / f"{name}.ipynb")
    data = [out.data for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    assert any(view in str(shown.get("image/svg+xml", "")) for shown in data)
    assert any(words in str(shown.get("text/plain", "")) for shown in data)


def test_wrong_state_shows_the_tokens_counted_twice():
    notebook = executed(ROOT / "notebooks" / "03_wrong_state.ipynb")
    outputs = [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]
    pictures = [str(data["image/svg+xml"]) for data in outputs if "image/svg+xml" in data]
    assert len(pictures) == 4
    assert "64 tokens read twice" in pictures[0]
    assert "first changed token" in pictures[0]
    assert "128 tokens read twice" in pictures[2]


@pytest.mark.parametrize(("name", "pictures"), [("05_kernel_throughput", 1), ("04_chunked_scan", 2)])
def test_kernels_show_pictures_and_tables(name, pictures):
    notebook = executed(ROOT / "notebooks" / f"{name}.ipynb")
    kinds = [set(out.get("data", {})) for cell in notebook.cells for out in cell.get("outputs", [])]
    assert sum("image/svg+xml" in kind for kind in kinds) >= pictures
    assert any("text/html" in kind for kind in kinds)


def test_dcp_shows_equal_answers():
    notebook = executed(ROOT / "notebooks" / "07_dcp.ipynb")
    tables = [
        out.data["text/html"]
        for c in notebook.cells
        for out in c.get("outputs", [])
        if "text/html" in out.data
    ]
    compared = next(table for table in tables if "processes" in table)
    assert "False" not in compared
    assert compared.count("True") == 3


def test_an_error_in_an_output_widget_is_found():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        new_code_cell("import ipywidgets as w\nout = w.Output()\nwith out:\n    1 / 0\nout"),
    ]
    (error,) = hidden_errors(run(notebook))
    assert error["ename"] == "ZeroDivisionError"
    assert new_output("error").output_type == error["output_type"]
