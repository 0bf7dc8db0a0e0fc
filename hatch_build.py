"""Build hook: a standard wheel carries the project's ``data/`` as ``depthchart/data``.

An editable install must not: hatchling would copy the files into site-packages, where they go
stale under our package's name. There `depthchart.datafiles` finds the project's own ``data/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DataInWheel(BuildHookInterface[BuilderConfig]):
    """Adds ``data/`` to standard wheels, and to nothing else."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Map ``data/`` into the wheel unless ``version`` (hatchling's word) is ``"editable"``."""
        if version == "editable":
            return
        data = Path(self.root, "data")
        if not data.is_dir():
            raise FileNotFoundError(f"{data} is missing: a wheel without it can replay nothing")
        build_data["force_include"][str(data)] = "depthchart/data"
