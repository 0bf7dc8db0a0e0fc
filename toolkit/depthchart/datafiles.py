"""Where the bundled data files lie: the model catalogue, traces, scripts, measured tables."""

from __future__ import annotations

import os
from pathlib import Path


def data_path(*parts: str) -> Path:
    """Path of a bundled data file, e.g. ``data_path("traces", "agentic.jsonl.gz")``.

    Looks in the folder named by the environment variable ``DEPTHCHART_DATA``, else in ``data/`` of
    the repository. The file itself need not exist.
    """
    named = os.environ.get("DEPTHCHART_DATA")
    root = Path(named) if named else Path(__file__).resolve().parents[2] / "data"
    return root.joinpath(*parts)
