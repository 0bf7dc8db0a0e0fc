"""The report of a sweep's folder."""

import pytest

from depthchart import load_trace
from depthchart.cli import main
from depthchart.sweep import sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "s"
    sweep(
        load_trace("agentic", limit=8), out=out, workers=1, progress=False,
        page_size=[16, 48, 64], kv_tokens=[8192, 32_768], state_slots=[4, 24],
    )  # fmt: skip
    return out


def test_the_folder_of_a_sweep(folder, tmp_path, capsys):
    out = tmp_path / "r.html"
    assert main(["report", str(folder), "--out", str(out), "--data", str(tmp_path / "data")]) == 0
    text = out.read_text()
    for words in (
        "8 configurations of agentic, 8 requests",
        "Illegal combinations",
        "page_size=[16, 64]",
        "Provenance",
    ):
        assert words in text
    assert len((tmp_path / "data" / "figure-1-results.csv").read_text().splitlines()) == 9
    assert main(["report", str(folder), "--out", str(tmp_path / "r.pdf")]) == 0
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")


def test_what_is_wrong_is_told(folder, tmp_path, capsys):
    assert main(["report", str(folder), "agentic", "--out", str(tmp_path / "r.html")]) == 2
    assert "a sweep has a report of its own" in capsys.readouterr().err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sweep.json").write_text("{")
    assert main(["report", str(broken), "--out", str(tmp_path / "r.html")]) == 2
    assert "holds no whole sweep" in capsys.readouterr().err
