"""The data of a report's figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from depthchart.errors import one_of
from depthchart.files import whole_file
from depthchart.report.blocks import Block, Film, Picture

__all__ = ["DATA_FORMATS", "write_data"]

DATA_FORMATS = ("csv", "parquet")


def write_data(folder: Path, blocks: Sequence[Block], data_format: str = "csv") -> list[Path]:
    """One file for each frame of each figure, ``figure-3-requests.csv``; returns their paths.

    Raises ValueError for an unknown format, and for Parquet where pyarrow is not installed.
    """
    if one_of("data_format", data_format, DATA_FORMATS) == "parquet" and find_spec("pyarrow") is None:
        raise ValueError(
            "data_format='parquet': needs pyarrow (pip install 'depthchart[parquet]'); nearest legal: 'csv'"
        )
    written = []
    for block in blocks:
        if not isinstance(block, Picture | Film):
            continue
        for name, frame in block.data.items():
            path = folder / f"figure-{block.number}-{name}.{data_format}"
            with whole_file(path) as draft:
                frame.to_csv(draft, index=False) if data_format == "csv" else frame.to_parquet(
                    draft, index=False
                )
            written.append(path)
    return written
