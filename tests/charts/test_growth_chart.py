"""Time and memory against requests; the numbers are chosen so that every mark's place is plain."""

import pandas as pd
import pytest

from depthchart.charts.growth import growth_chart

ROWS = pd.DataFrame({"requests": [1000, 100, 10], "cpu_s": [2.0, 0.3, 0.02], "peak_mib": [40.0, 38.0, 30.0]})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_are_the_measurements(theme):
    seconds, memory = growth_chart(ROWS, theme=theme).axes
    ideal, measured = (line.get_ydata() for line in seconds.lines)
    assert list(measured) == [0.02, 0.3, 2.0]
    assert list(ideal) == pytest.approx([0.02, 0.2, 2.0])  # 2 ms a request
    assert memory.lines[0].get_ydata().tolist() == [30.0, 38.0, 40.0]
    assert (seconds.get_xscale(), seconds.get_yscale(), memory.get_xscale()) == ("log", "log", "log")
    assert memory.get_ylim()[0] == 0


def test_units_and_missing_columns():
    seconds, memory = growth_chart(ROWS).axes
    assert (seconds.get_ylabel(), memory.get_ylabel()) == ("CPU time (s)", "largest resident memory (MiB)")
    with pytest.raises(ValueError, match="peak_mib"):
        growth_chart(ROWS.drop(columns="peak_mib"))
