"""The charts of the scan kernels: what they draw, and what they refuse."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from depthchart.charts.scans import resume_chart, roofline_chart, snapshot_error_chart
from depthchart.datafiles import data_path

sys.path.insert(0, str(Path(__file__).parent))
from test_checkpoint_chart import assert_text_is_clear, words


def speeds(ops=("gated_delta", "ssd"), widths=(16, 64), snapshots=(0,), lengths=(512,)):
    """1e9 FLOPs and 1e7 bytes in 0.1 s under 1e11 FLOP/s and 1e9 bytes/s: a tenth of the roofline."""
    made = [
        {
            "op": op,
            "impl": "chunked",
            "chunk_width": width,
            "length": length,
            "batch": 1,
            "dtype": "fp32",
            "snapshots": marks,
            "best_s": 0.1,
            "tokens_per_s": 10.0 * length,
            "flops": 1e9,
            "bytes": 1e7,
            "roofline_share": 0.1,
            "matmul_flops_per_s": 1e11,
            "copy_bytes_per_s": 1e9,
        }
        for op in ops
        for width in widths
        for marks in snapshots
        for length in lengths
    ]
    return pd.DataFrame([*made, made[0] | {"impl": "reference", "tokens_per_s": 1.0}])


def test_roofline_puts_each_width_at_its_rate():
    fig = roofline_chart(speeds())
    (ax,) = fig.axes
    roof, points = ax.lines[:2]
    assert max(roof.get_ydata()) == pytest.approx(100)  # GFLOP/s
    x, y = roof.get_data()
    assert np.interp(70, x, y) == pytest.approx(70, rel=0.01)  # 70 FLOPs a byte at 1e9 bytes/s
    assert points.get_xdata().tolist() == pytest.approx([100, 100])
    assert points.get_ydata().tolist() == pytest.approx([10, 10])
    assert "matmul 100 GFLOP/s, copy 1.0 GB/s" in words(fig)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_recorded_table_is_drawn(theme):
    table = pd.read_csv(data_path("kernels", "cpu.csv"))
    some = table[table["length"] == table["length"].max()]
    assert roofline_chart(some, title="recorded", theme=theme).axes


def test_errors_by_depth_mark_the_chunk_grid():
    depths = np.arange(1, 41)
    frame = pd.DataFrame(
        {"op": "ssd", "chunk_width": 16, "depth_tokens": depths, "error": 0.0, "on_grid": depths % 16 == 0}
    )
    fig = snapshot_error_chart(frame, title="ssd")
    line, ends, promised = fig.axes[0].lines
    assert len(line.get_xdata()) == 40
    assert min(line.get_ydata()) > 0  # nought has no place on a log axis
    assert ends.get_xdata().tolist() == [16, 32]
    assert promised.get_ydata()[0] == 5e-6
    assert_text_is_clear(fig)


def test_resumes_are_named_by_their_shift():
    frame = pd.DataFrame(
        [
            {"op": "ssd", "shift_tokens": s, "token": t, "error": 0.1}
            for s in (0, 64, -64, 1)
            for t in range(5)
        ]
    )
    fig = resume_chart(frame)
    shown = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert shown == ["right depth", "64 tokens too many", "64 tokens too few", "1 token too many"]
    assert_text_is_clear(fig)


@pytest.mark.parametrize(
    ("draw", "frame", "message"),
    [
        (roofline_chart, pd.DataFrame({"op": ["ssd"]}), "lacks the columns impl, chunk_width"),
        (roofline_chart, speeds().iloc[-1:], "no row to draw"),
        (roofline_chart, speeds().iloc[:0], "no row to draw"),
        (resume_chart, pd.DataFrame(columns=["op", "shift_tokens", "token", "error"]), "0 shifts"),
    ],
    ids=["columns", "reference", "empty", "shifts"],
)
def test_what_cannot_be_drawn(draw, frame, message):
    with pytest.raises(ValueError, match=message):
        draw(frame)
