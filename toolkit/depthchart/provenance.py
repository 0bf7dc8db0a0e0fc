"""Where a result comes from: versions, git commit, machine, time."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["provenance"]


def provenance() -> dict[str, str]:
    """Versions, git commit of the checkout (if it is one; ``+changes`` where files differ), device and time."""
    return {**_fixed(), "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")}


@lru_cache(maxsize=1)
def _fixed() -> dict[str, str]:
    from depthchart import __version__

    found = {
        "depthchart": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
    }
    found["device"] = f"{platform.machine()} CPU, {platform.system()}"
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():
        return "no checkout"
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return f"{head}+changes" if _git(here, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(where: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(where), *words], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
