"""The PDF: numbered pages of one size, vector figures, real text."""

import re
import zlib

import pytest

from depthchart import Geometry, load_trace
from depthchart.charts.style import figure
from depthchart.report import Page
from depthchart.report.columns import column_widths
from depthchart.simulate import simulate


def streams(raw):
    """All streams of a PDF, unpacked where they are packed."""
    found = []
    for match in re.finditer(rb"stream\r?\n(.*?)endstream", raw, re.S):
        try:
            found.append(zlib.decompress(match[1]))
        except zlib.error:
            found.append(match[1])
    return b"\n".join(found)


def pages(raw):
    return re.findall(rb"/Type /Page\b[^s]", raw)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    run = simulate(
        load_trace("agentic", limit=60),
        Geometry(64, dcp_size=8),
        "absolute",
        kv_tokens=65_536,
        state_slots=48,
    )
    path = tmp_path_factory.mktemp("pdf") / "r.pdf"
    assert run.report(path) == path
    return path.read_bytes()


def test_pages_are_a4_in_landscape(raw):
    sizes = {
        tuple(round(float(x)) for x in found.split())
        for found in re.findall(rb"/MediaBox \[ ?([\d. -]+?) ?\]", raw)
    }
    assert sizes == {(0, 0, 842, 595)}
    assert len(pages(raw)) >= 10


def test_figures_are_vectors(raw):
    assert raw.startswith(b"%PDF-")
    assert b"/Subtype /Image" not in raw
    assert streams(raw).count(b" l\n") > 500  # lines
    assert b"/FontFile2" in raw  # fonts are embedded


def test_the_same_report_gives_the_same_bytes(tmp_path):
    def write(name):
        page = Page("t", "lead").section("s", "prose").table([("a", "b"), ("1", "2")], (0,))
        return page.figure(figure(4, 2), "c").write(tmp_path / name).read_bytes()

    assert write("one.pdf") == write("two.pdf")


def test_a_long_table_goes_over_pages(tmp_path):
    rows = [("name", "value"), *((f"row {i}", str(i)) for i in range(250))]
    raw = Page("t").table(rows, (1,)).write(tmp_path / "t.pdf").read_bytes()
    assert 4 <= len(pages(raw)) <= 8


def test_the_format_follows_the_name_unless_told(tmp_path):
    assert Page("t").write(tmp_path / "x.PDF").read_bytes().startswith(b"%PDF")
    assert Page("t").write(tmp_path / "x.pdf", format="html").read_text().startswith("<!doctype html>")


def test_figures_are_left_as_they_were(tmp_path):
    drawing = figure(4, 2)
    drawing.text(0.5, 0.5, "own")
    Page("t").figure(drawing, "caption").write(tmp_path / "x.pdf")
    assert [text.get_text() for text in drawing.texts] == ["own"]


@pytest.mark.parametrize(
    ("rows", "room"),
    [
        ([("a", "b"), ("x" * 300, "y")], 400.0),
        ([tuple(f"column {i}" for i in range(13)), tuple("9,999" for _ in range(13))], 740.0),
        ([tuple("unbreakable" * 3 for _ in range(9)), tuple("1" for _ in range(9))], 300.0),
        ([("a",)], 100.0),
    ],
)
def test_columns_fit_their_room(rows, room):
    widths = column_widths(rows, 7.5, room)
    assert len(widths) == len(rows[0])
    assert sum(widths) <= room + 1e-6
    assert min(widths) > 0
