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
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from depthchart.datafiles import data_path

__all__ = ["KernelTable", "Shape"]

COLUMNS = (
    "hardware",
    "kind",
    "key_heads",
    "value_heads",
    "key_dim",
    "value_dim",
    "batch",
    "tokens",
    "seconds",
)
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
    """Measured points by shape. ``name`` says where they come from; ``sources`` may say more for each shape."""

    def __init__(
        self,
        points: Sequence[tuple[Shape, int, int, float]],
        name: str = "",
        sources: Mapping[Shape, str] | None = None,
    ) -> None:
        self.name = name
        self._sources = dict(sources or {})
        self._brackets: dict[Shape, tuple[Shape, ...]] = {}
        grids: dict[Shape, dict[int, dict[int, float]]] = {}
        for shape, batch, tokens, seconds in points:
            grids.setdefault(shape, {}).setdefault(batch, {})[tokens] = seconds
        self._curves = {
            shape: [(batch, sorted(curve.items())) for batch, curve in sorted(grid.items())]
            for shape, grid in grids.items()
        }

    @classmethod
    def read(cls, path: str | Path) -> KernelTable:
        """Read a CSV; a bad line raises ValueError with its number and reason."""
        path = Path(path)
        points: list[tuple[Shape, int, int, float]] = []
        sources: dict[Shape, str] = {}
        for number, row in enumerate(_rows(path), start=2):
            try:
                point = _point(row)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            points.append(point)
            sources[point[0]] = row.get("source") or ""
        return cls(points, path.name, sources)

    @classmethod
    def bundled(cls) -> KernelTable:
        """The table in ``data/``: gated delta net and KDA on H200 and B200, SGLang's Triton kernels."""
        return cls.read(data_path(BUNDLED))

    @property
    def shapes(self) -> list[Shape]:
        return list(self._curves)

    def bracket(self, shape: Shape) -> tuple[Shape, ...]:
        """The measured shapes that answer for ``shape``: itself; or the next smaller and larger one that differ in
        the number of heads alone, with as many value heads to a key head; or none."""
        if shape not in self._brackets:
            self._brackets[shape] = self._find(shape)
        return self._brackets[shape]

    def source(self, shape: Shape) -> str:
        """In words, what answers for ``shape``."""
        near = self.bracket(shape)
        said = {source: None for s in near if (source := self._sources.get(s))}
        between = f"between {near[0].value_heads} and {near[1].value_heads} heads; " if len(near) == 2 else ""
        return f"{self.name}: {between}{'; '.join(said) or 'no source given'}"

    def seconds(self, shape: Shape, batch: int, tokens: float) -> float:
        """Seconds for ``batch`` sequences of ``tokens`` tokens: straight lines in the logarithms between measured
        points; below them the nearest point, above them in proportion to the tokens. Raises ValueError where
        nothing answers for the shape."""
        near = self.bracket(shape)
        if not near:
            raise ValueError(f"shape={shape}: was not measured, nor were fewer and more heads of its kind")
        times = [_in(self._curves[s], batch, tokens) for s in near]
        if len(near) == 1:
            return times[0]
        return _between(near[0].value_heads, times[0], near[1].value_heads, times[1], shape.value_heads)

    def _find(self, shape: Shape) -> tuple[Shape, ...]:
        if shape in self._curves:
            return (shape,)
        alike = [s for s in self._curves if _family(s) == _family(shape)]
        less = [s for s in alike if s.value_heads < shape.value_heads]
        more = [s for s in alike if s.value_heads > shape.value_heads]
        heads = attrgetter("value_heads")
        return (max(less, key=heads), min(more, key=heads)) if less and more else ()


# --- helpers ----------------------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or [])]
    if missing:
        raise ValueError(
            f"{path}: lacks the columns {', '.join(missing)}; a kernel table has {', '.join(COLUMNS)}"
        )
    yield from reader


def _point(row: dict[str, str]) -> tuple[Shape, int, int, float]:
    key_heads, value_heads, key_dim, value_dim, batch, tokens = (int(row[column]) for column in COLUMNS[2:8])
    seconds = float(row["seconds"])
    if min(batch, tokens) < 1 or not 0 < seconds < float("inf"):
        raise ValueError(f"batch={batch}, tokens={tokens}, seconds={seconds}: must all be above 0")
    shape = Shape(row["hardware"], row["kind"], key_heads, value_heads, key_dim, value_dim)
    return shape, batch, tokens, seconds


def _family(shape: Shape) -> tuple[object, ...]:
    ratio = shape.value_heads / max(shape.key_heads, 1)
    return shape.hardware, shape.kind, ratio, shape.key_dim, shape.value_dim


def _in(curves: list[tuple[int, list[tuple[int, float]]]], batch: int, tokens: float) -> float:
    at = bisect_left(curves, batch, key=lambda curve: curve[0])
    if at == len(curves):  # more sequences than measured: the same tokens in the largest batch, in proportion
        largest, curve = curves[-1]
        return _on(curve, tokens) * batch / largest
    upper = _on(curves[at][1], tokens)
    if at == 0 or curves[at][0] == batch:
        return upper
    return _between(curves[at - 1][0], _on(curves[at - 1][1], tokens), curves[at][0], upper, batch)


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
