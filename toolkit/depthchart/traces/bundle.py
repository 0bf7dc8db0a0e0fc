"""The traces that ship in ``data/traces``: ``python -m depthchart.traces.bundle`` writes them anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from depthchart.datafiles import data_path, data_places
from depthchart.traces.neutral import write_trace
from depthchart.traces.synthesize import make
from depthchart.traces.trace import Trace

BUNDLED: dict[str, int] = {"agentic": 20260, "chat": 20261, "rag": 20262, "few_shot": 20263}
"""Generator name of each bundled trace (also its file's name) and its seed."""


def bundled_path(name: str) -> Path:
    """Where the bundled trace ``name`` lies; raises FileNotFoundError if it lies nowhere."""
    return data_path("traces", f"{name}.jsonl.gz")


def bundled_trace(name: str) -> Trace:
    """The bundled trace, generated, not read."""
    return make(name, BUNDLED[name])


def main(argv: list[str] | None = None) -> None:
    """Write every bundled trace and print what was written."""
    parser = argparse.ArgumentParser(
        prog="python -m depthchart.traces.bundle",
        description="Write the bundled traces anew, from their seeds; the same seeds give the same files.",
    )
    place = data_places()[0] / "traces"
    parser.add_argument("--out", type=Path, default=place, help=f"folder to write to (default: {place})")
    folder = parser.parse_args(argv).out
    for name in BUNDLED:
        trace = bundled_trace(name)
        print(f"{write_trace(trace, folder / f'{name}.jsonl.gz')}: {trace}")


if __name__ == "__main__":
    main()
