"""Figures of sweeps and of hits: what they show, read off their artists; the numbers are by hand."""

import pandas as pd
import pytest

from depthchart.charts.hits import hit_chart
from depthchart.charts.spots import spots
from depthchart.charts.style import to_svg
from depthchart.charts.sweep_lines import sweep_lines
from depthchart.charts.sweeps import heat_map, pareto

ROWS = [
    # page, pool, engine, reuse
    (16, 1000, "a", 0.10),
    (16, 2000, "a", 0.30),
    (64, 1000, "a", 0.20),
    (64, 2000, "a", 0.40),
    (16, 1000, "b", 0.50),
    (16, 2000, "b", 0.70),
    (64, 1000, "b", 0.60),
]


@pytest.fixture
def frame():
    made = pd.DataFrame(ROWS, columns=["page_size", "kv_tokens", "preset", "reuse"])
    return made.assign(status="ok")


def test_lines_are_means_with_the_range_as_a_band(frame):
    drawn = sweep_lines(frame, "page_size", group="preset")
    a, b = drawn.axes[0].get_lines()
    assert a.get_ydata().tolist() == pytest.approx([0.2, 0.3])
    assert b.get_ydata().tolist() == pytest.approx([0.6, 0.6])
    band = drawn.axes[0].collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.1, 0.4))


def test_a_panel_for_each_value_of_a_third_setting_on_one_scale(frame):
    drawn = sweep_lines(frame, "page_size", group="preset", panels="kv_tokens")
    small, large = drawn.axes[:2]
    assert [ax.get_title(loc="left") for ax in (small, large)] == [
        "KV pool (tokens) 1k",
        "KV pool (tokens) 2k",
    ]
    assert [line.get_ydata().tolist() for line in small.get_lines()] == [[0.1, 0.2], [0.5, 0.6]]
    assert [line.get_ydata().tolist() for line in large.get_lines()] == [[0.3, 0.4], [0.7]]
    assert small.get_ylim() == large.get_ylim()


def test_more_lines_than_can_be_told_apart_are_refused(frame):
    many = pd.concat([frame.assign(preset=f"p{i}") for i in range(7)])
    with pytest.raises(ValueError, match="at most 6 lines"):
        sweep_lines(many, "page_size", group="preset")
    with pytest.raises(ValueError, match="no row that worked"):
        sweep_lines(frame.assign(status="failed"), "page_size")
    with pytest.raises(ValueError, match="lacks the columns pagesize"):
        sweep_lines(frame, "pagesize")


def test_the_cells_of_a_heat_map_name_their_rows(frame):
    drawn = heat_map(frame, "kv_tokens", "page_size")
    to_svg(drawn)
    found = {spot.key: spot for spot in spots(drawn)}
    assert set(found) == {"0,4", "1,5", "2,6", "3"}
    assert "mean of 2 configurations" in found["0,4"].tip
    assert "30%" in found["0,4"].tip
    # page 16 is below page 64, pool 1000 left of pool 2000; cells touch and do not overlap
    assert found["0,4"].top == pytest.approx(found["2,6"].bottom)
    assert found["0,4"].right == pytest.approx(found["1,5"].left)
    assert found["0,4"].left < found["0,4"].right
    assert found["0,4"].top < found["0,4"].bottom


def test_panels_of_a_heat_map_have_cells_of_their_own(frame):
    drawn = heat_map(frame, "kv_tokens", "page_size", panels="preset")
    to_svg(drawn)
    assert {spot.key for spot in spots(drawn)} == {str(at) for at in range(7)}


def test_points_of_the_front_name_their_row(frame):
    drawn = pareto(frame, "kv_tokens", group="preset")
    to_svg(drawn)
    found = {spot.key: spot for spot in spots(drawn)}
    assert set(found) == {str(at) for at in range(7)}
    assert found["5"].top < found["0"].top  # 70 % is higher up than 10 %
    assert found["5"].left > found["0"].left
    assert found["5"].tip.startswith("b: KV pool (tokens) 2k")


def test_histograms_of_h_c_and_what_is_lost():
    requests = pd.DataFrame(
        {
            "kv_hit_tokens": pd.array([0, 100, 200, 300, None], dtype="Int64"),
            "reused_tokens": pd.array([0, 0, 200, 100, None], dtype="Int64"),
            "lost_tokens": pd.array([0, 100, 0, 200, None], dtype="Int64"),
        }
    )
    drawn = hit_chart(requests)
    titles = [ax.get_title(loc="left") for ax in drawn.axes]
    assert [title.split("\n")[1] for title in titles] == [
        "0 in 1 of 4; median of the others 200",
        "0 in 2 of 4; median of the others 150",
        "0 in 2 of 4; median of the others 150",
    ]
    counts = [sum(patch.get_height() for patch in ax.patches) for ax in drawn.axes]
    assert counts == [3, 2, 2]
    assert len({ax.get_xlim() for ax in drawn.axes}) == 1  # one scale
    assert drawn._suptitle.get_text() == "Hits of 4 requests"
    assert hit_chart(requests.iloc[:0]).axes[0].get_title(loc="left").endswith("no request")


def test_one_call_chooses_the_theme_of_every_chart(frame):
    from depthchart.charts import use_theme

    try:
        use_theme("dark")
        assert "#14181d" in to_svg(sweep_lines(frame, "page_size"))
        assert "#14181d" not in to_svg(sweep_lines(frame, "page_size", theme="light"))
    finally:
        use_theme("light")
    assert "#14181d" not in to_svg(sweep_lines(frame, "page_size"))
    with pytest.raises(ValueError, match="theme='drak': must be one of light, dark; nearest: 'dark'"):
        use_theme("drak")


def test_the_environment_chooses_the_theme_until_a_call_does(frame, monkeypatch):
    from depthchart.charts import style, use_theme

    monkeypatch.setattr(style, "_chosen", "")
    assert "#14181d" not in to_svg(sweep_lines(frame, "page_size"))
    monkeypatch.setenv("DEPTHCHART_THEME", "dark")
    assert "#14181d" in to_svg(sweep_lines(frame, "page_size"))
    use_theme("light")
    assert "#14181d" not in to_svg(sweep_lines(frame, "page_size"))
    monkeypatch.setattr(style, "_chosen", "")
    monkeypatch.setenv("DEPTHCHART_THEME", "drak")
    with pytest.raises(ValueError, match="DEPTHCHART_THEME='drak': must be one of light, dark; nearest: 'dark'"):
        sweep_lines(frame, "page_size")
