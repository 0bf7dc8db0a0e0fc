"""Measured kernels against the chunk width; the numbers are chosen so that every mark's place is plain."""

import pandas as pd
import pytest

from depthchart.charts.kernels import kernel_chart


def rows():
    """Throughput doubles with the width; the median round takes twice as long as the fastest."""
    cases = [(op, width, count) for op in ("kda", "ssd") for width in (16, 32, 64) for count in (0, 4)]
    table = [
        {
            "op": op, "impl": "chunked", "chunk_width": width, "length": 1000, "batch": 2, "dtype": "fp32",
            "snapshots": count, "median_s": 2 * 2000 / (100 * width), "tokens_per_s": 100 * width,
            "roofline_share": width / 100,
        }
        for op, width, count in cases
    ]  # fmt: skip
    table.append({**table[0], "impl": "reference", "tokens_per_s": 1.0})
    return pd.DataFrame(table)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_are_the_measurements(theme):
    speed, share = kernel_chart(rows(), theme=theme).axes
    assert len(speed.lines) == len(share.lines) == 4
    for line in speed.lines:
        assert line.get_xdata().tolist() == [16, 32, 64]
        assert line.get_ydata().tolist() == [1600, 3200, 6400]
    assert share.lines[0].get_ydata().tolist() == [0.16, 0.32, 0.64]
    lows = [segment[0][1] for segment in speed.collections[0].get_segments()]
    assert lows == [800, 1600, 3200]  # the median round


def test_units_and_names():
    fig = kernel_chart(rows())
    speed, share = fig.axes
    assert speed.get_ylabel() == "throughput (tokens/s)"
    assert share.get_xlabel() == "chunk width (tokens)"
    labels = [text.get_text() for text in speed.get_legend().get_texts()]
    assert labels == ["kda, 0 snapshots", "kda, 4 snapshots", "ssd, 0 snapshots", "ssd, 4 snapshots"]
    assert fig.get_suptitle() == "Scans of 2×1,000 tokens fp32"
    lines = {(line.get_color(), line.get_linestyle()) for line in speed.lines}
    assert len(lines) == 4


def test_missing_columns_and_nothing_to_show():
    with pytest.raises(ValueError, match="rows: lacks the columns tokens_per_s"):
        kernel_chart(rows().drop(columns="tokens_per_s"))
    assert kernel_chart(rows().head(0)).get_suptitle() == "No chunked kernels in this table"
