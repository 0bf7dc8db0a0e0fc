"""Reports of runs: one whole offline file with everything in it; the browser test opens it."""

import re
import sys
from html.parser import HTMLParser

import pandas as pd
import pytest

from depthchart import Geometry, load_trace
from depthchart.columns import NODES, REQUESTS, STEPS
from depthchart.report import Page, report_runs
from depthchart.report.runs import FILM_FRAMES
from depthchart.simulate import simulate

WIDE = Geometry(64, dcp_size=8, chunk_width=64)


def simulated(rule="prefix_relative", strict=False, limit=150):
    return simulate(
        load_trace("agentic", limit=limit), WIDE, rule, kv_tokens=65_536, state_slots=48, strict=strict
    )


@pytest.fixture(scope="module")
def run():
    return simulated()


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    told = []
    path = run.report(
        folder / "r.html", data=folder / "data", advance=lambda done, total: told.append((done, total))
    )
    return path, path.read_text(), folder / "data", told


class Reader(HTMLParser):
    """Tags, ids and addresses, with their nesting checked."""

    VOID = frozenset({"meta", "input", "br", "wbr", "img", "link", "hr"})

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_is_one_whole_offline_page(report):
    path, text, _, _ = report
    page = Reader(text)
    assert [a for a in page.addresses if a and not a.startswith(("#", "data:"))] == []
    assert "@import" not in text
    assert not re.search(r"url\((?!#|['\"]?data:)", text.replace("url(&quot;", "url("))
    assert len(page.ids) == len(set(page.ids))
    assert {a[1:] for a in page.addresses if a and a.startswith("#")} <= set(page.ids)
    assert "default-src 'none'" in text  # a browser would refuse to fetch anything
    assert {file.name for file in path.parent.iterdir()} == {"r.html", "data"}


def test_it_says_everything(report, run):
    text = report[1]
    for words in (
        "Summary", "What broke", "Schedule and reuse", "The tree through time", "Checkpoints", "Requests", "To repeat it",
        "Provenance", "MisplacedStateError", f"{run.summary()['reused_tokens']:,}", run.provenance["commit"],
        run.assumptions, "load_trace(&#x27;agentic&#x27;).head(150)", "strict=False", "--no-strict",
    ):  # fmt: skip
        assert words in text
    assert text.count('class="frame"') in (FILM_FRAMES, FILM_FRAMES + 1)
    assert text.count("hidden>") == text.count('class="frame"') - 1  # one is shown without any script


def test_the_film_begins_where_an_invariant_broke(report):
    text = report[1]
    (shown,) = re.findall(r'<div class="frame" data-label="([^"]*)">', text)
    assert "1 misplaced state" in shown


def test_progress_counts_every_picture(report):
    _, text, _, told = report
    total = text.count("<figure") - 1 + text.count('class="frame"')
    assert told == [(done, total) for done in range(1, total + 1)]


def test_stopping_leaves_no_file(run, tmp_path):
    class Stop(Exception): ...

    def advance(done, total):
        raise Stop

    with pytest.raises(Stop):
        run.report(tmp_path / "r.html", advance=advance)
    with pytest.raises(Stop):
        run.report(tmp_path / "r.pdf", advance=advance)
    assert list(tmp_path.iterdir()) == []


def test_data_of_every_figure(report, run):
    data = {path.name: pd.read_csv(path) for path in report[2].iterdir()}
    assert sorted(data) == [
        "figure-1-steps.csv", "figure-2-requests.csv", "figure-3-hits.csv", "figure-4-checkpoints.csv", "figure-4-nodes.csv",
        "figure-5-nodes.csv",
    ]  # fmt: skip
    assert tuple(data["figure-1-steps.csv"].columns) == STEPS
    assert len(data["figure-1-steps.csv"]) == len(run.records)
    assert tuple(data["figure-2-requests.csv"].columns) == REQUESTS
    assert data["figure-2-requests.csv"]["reused_tokens"].sum() == run.summary()["reused_tokens"]
    hits = data["figure-3-hits.csv"]
    assert (hits["kv_hit_tokens"] - hits["reused_tokens"]).equals(hits["lost_tokens"])
    assert set(NODES) < set(data["figure-4-nodes.csv"].columns)
    assert len(data["figure-5-nodes.csv"]) == len(run.nodes())


def test_parquet_needs_pyarrow(run, tmp_path, monkeypatch):
    import depthchart.report.data as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs pyarrow"):
        run.report(tmp_path / "r.html", data=tmp_path / "data", data_format="parquet")
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_the_same(tmp_path):
    steps = pd.DataFrame({"step": [1, 2], "time_s": [0.5, 1.0]})
    page = Page("t").figure(_empty(), "c", {"steps": steps})
    page.write(tmp_path / "p.html", data=tmp_path / "data", data_format="parquet")
    assert pd.read_parquet(tmp_path / "data" / "figure-1-steps.parquet").equals(steps)


def _empty():
    from depthchart.charts.style import figure

    return figure(3, 2)


def test_a_strict_run_tells_where_it_stopped(tmp_path):
    run = simulated(strict=True)
    text = run.report(tmp_path / "r.html").read_text()
    assert f"Strict mode stopped in step {run.fault.step:,}" in text
    assert f"stopped at {run.fault.time_s:,.2f} s: MisplacedStateError" in text


def test_a_sound_run_says_so_and_has_no_faults_section(tmp_path):
    text = simulated("absolute", strict=True, limit=12).report(tmp_path / "r.html").read_text()
    assert "complete, every invariant held" in text
    assert "What broke" not in text


def test_a_run_of_nothing(tmp_path):
    from depthchart.traces import Trace

    empty = simulate(Trace("nothing", ()), WIDE, kv_tokens=4096, state_slots=8)
    text = empty.report(tmp_path / "r.html").read_text()
    Reader(text)
    assert "0 nodes" in text
    assert empty.report(tmp_path / "r.pdf").stat().st_size > 1000


def test_two_runs_side_by_side(run, tmp_path):
    path = report_runs(
        {"relative": run, "<absolute>": simulated("absolute", limit=12)}, tmp_path / "two.html", title="A & B"
    )
    text = path.read_text()
    Reader(text)
    for words in (
        "A &amp; B",
        "Side by side",
        "The tree through time: relative",
        "Requests: &lt;absolute&gt;",
    ):
        assert words in text


def test_an_unknown_format_or_no_run(run, tmp_path):
    with pytest.raises(ValueError, match="format='docx': must be one of html, pdf"):
        run.report(tmp_path / "r.docx", format="docx")
    with pytest.raises(ValueError, match="at least one run"):
        report_runs({}, tmp_path / "r.html")


def test_a_huge_figure_becomes_a_picture_of_pixels(monkeypatch):
    import depthchart.report.html as module

    monkeypatch.setattr(module, "HUGE_SVG", 10)
    text = Page("t").figure(_empty(), "c").render()
    assert "data:image/png;base64," in text
    assert "<svg" not in text


def test_text_from_elsewhere_is_escaped():
    page = Page("<i>t</i>", "<b>lead</b>").section("<u>").table([("<x>", "y"), ("</script>", "&")])
    page.listing(["<script>alert(1)</script>"], "<s>").figure(_empty(), "<caption>")
    text = page.render()
    assert "<script>alert" not in text
    assert "<x>" not in text
    assert text.count("<script>") == 1


def test_the_report_imports_no_widgets(tmp_path):
    import subprocess

    code = (
        "import sys, depthchart.report, depthchart.run\n"
        "assert 'ipywidgets' not in sys.modules and 'IPython' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**__import__("os").environ, "PYTHONPATH": "toolkit"}
    )
