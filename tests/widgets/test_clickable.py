"""Pictures and tables that can be clicked, without a browser: spots, keys, messages."""

import pytest

from depthchart.charts.spots import mark_spot, spots
from depthchart.charts.style import figure, to_svg
from depthchart.widgets.clickable import Picture, Rows


def test_spots_are_shares_of_the_picture_from_its_upper_left_corner():
    fig = figure(4, 2, layout="none")
    ax = fig.add_axes((0.25, 0.5, 0.5, 0.25))  # left, bottom, width, height
    ax.set(xlim=(0, 10), ylim=(0, 1))
    mark_spot(ax, "box", (0, 0, 10, 1), "all of it")
    mark_spot(ax, "point", (5, 0.5, 5, 0.5), "the middle", reach=7.2)  # a tenth of an inch
    to_svg(fig)
    box, point = spots(fig)
    assert box[1:5] == pytest.approx((0.25, 0.25, 0.75, 0.5))
    assert point[1:5] == pytest.approx((0.5 - 0.1 / 4, 0.375 - 0.1 / 2, 0.5 + 0.1 / 4, 0.375 + 0.1 / 2))
    assert (box.key, box.tip) == ("box", "all of it")


def test_a_message_of_the_front_end_tells_the_key():
    picture, heard = Picture(), []
    picture.on_click(heard.append)
    picture._hear(picture, {"click": "7"}, [])
    for nonsense in ({"click": 7}, {"other": "7"}, "7", None):
        picture._hear(picture, nonsense, [])
    assert heard == ["7"]


def test_rows_have_keys_and_escape_what_they_show():
    rows = Rows()
    rows.show([("name", "n"), ("<b>", 1), ("c", 2)], ["a<", "b"], numeric=(1,))
    assert rows.html.count("<tr data-key=") == 2
    assert 'data-key="a&lt;"' in rows.html
    assert "&lt;b&gt;" in rows.html
    assert rows.html.startswith("<table")
    assert rows.html.endswith("</table>")


def test_each_row_needs_a_key():
    with pytest.raises(ValueError, match="zip"):
        Rows().show([("name",), ("a",), ("b",)], ["1"])
