"""Measured times of scan kernels, looked up between the measured points.

A table is a CSV (or .csv.gz) with the columns ``hardware, kind, key_heads, value_heads, key_dim, value_dim, batch,
tokens, seconds`` and, if you like, ``source``: seconds that one recurrent layer's prefill (convolution and scan) of
``batch`` sequences of ``tokens`` tokens takes on one device. Heads are those of the device, after any split.
"""

from __future__ import annotations

import csv
import gzip
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from depthchart.datafiles import data_path

__all__ = ["KernelTable", "Shape"]

COLUMNS = ("hardware", "kind", "key_heads", "value_heads", "key_dim", "value_dim", "batch", "tokens", "seconds")
BUNDLED = "kernels/scan_prefill.csv.gz"


class Shape(NamedTuple):
    """What must agree exactly with a measurement."""

    hardware: str
    kind: str
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


class KernelTable:
    """Measured points by shape. ``name`` and ``source`` say in words where they come from."""

    def __init__(self, points: Sequence[tuple[Shape, int, int, float]], name: str = "", source: str = "") -> None:
        self.name, self.source = name, source
        grids: dict[Shape, dict[int, dict[int, float]]] = {}
        for shape, batch, tokens, seconds in points:
            grids.setdefault(shape, {}).setdefault(batch, {})[tokens] = seconds
        self._curves = {
            shape: [(batch, sorted(curve.items())) for batch, curve in sorted(grid.items())] for shape, grid in grids.items()
        }

    @classmethod
    def read(cls, path: str | Path) -> KernelTable:
        """Read a CSV; a bad line raises ValueError with its number and reason."""
        path = Path(path)
        points, sources = [], dict[str, None]()
        for number, row in enumerate(_rows(path), start=2):
            try:
                whole = [int(row[column]) for column in COLUMNS[2:8]]
                shape = Shape(row["hardware"], row["kind"], whole[0], whole[1], whole[2], whole[3])
                seconds = float(row["seconds"])
                if min(whole[4], whole[5]) < 1 or not 0 < seconds < float("inf"):
                    raise ValueError(f"batch={whole[4]}, tokens={whole[5]}, seconds={seconds}: must all be above 0")
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            points.append((shape, whole[4], whole[5], seconds))
            sources[row.get("source") or ""] = None
        return cls(points, path.name, "; ".join(source for source in sources if source))

    @classmethod
    def bundled(cls) -> KernelTable:
        """The table in ``data/``: gated delta net and KDA on H200 and B200, SGLang's Triton kernels."""
        return cls.read(data_path(BUNDLED))

    @property
    def shapes(self) -> list[Shape]:
        return list(self._curves)

    def __contains__(self, shape: object) -> bool:
        return shape in self._curves

    def seconds(self, shape: Shape, batch: int, tokens: float) -> float:
        """Seconds for ``batch`` sequences of ``tokens`` tokens: straight lines in the logarithms between measured
        points; below them the nearest point, above them in proportion to the tokens. Raises KeyError where the
        shape was not measured."""
        curves = self._curves[shape]
        at = bisect_left(curves, batch, key=lambda curve: curve[0])
        if at == len(curves):  # more sequences than measured: the same tokens in the largest batch, in proportion
            largest, curve = curves[-1]
            return _on(curve, tokens) * batch / largest
        upper = _on(curves[at][1], tokens)
        if at == 0 or curves[at][0] == batch:
            return upper
        lower = _on(curves[at - 1][1], tokens)
        return _between(curves[at - 1][0], lower, curves[at][0], upper, batch)


# --- helpers ----------------------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or [])]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; a kernel table has {', '.join(COLUMNS)}")
    yield from reader


def _on(curve: list[tuple[int, float]], tokens: float) -> float:
    at = bisect_left(curve, tokens, key=lambda point: point[0])
    if at == 0:
        return curve[0][1]
    if at == len(curve):
        return curve[-1][1] * tokens / curve[-1][0]
    return _between(*curve[at - 1], *curve[at], tokens)


def _between(x0: float, y0: float, x1: float, y1: float, x: float) -> float:
    share = log(x / x0) / log(x1 / x0)
    return exp(log(y0) + share * (log(y1) - log(y0)))
