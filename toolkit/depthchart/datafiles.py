"""Finds the files of ``data/``: scripts, cases, small traces, the model catalogue, measured tables.

The one place that knows where ``data/`` lies. Three places are asked, in this order:

1. the folder that the environment variable ``DEPTHCHART_DATA`` names,
2. ``data/`` in the project above the package (a checkout, an editable install),
3. ``data/`` inside the installed package (a wheel).
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path, PurePath

ENVIRONMENT_VARIABLE = "DEPTHCHART_DATA"


def data_path(*parts: str) -> Path:
    """Return the first existing ``data/<parts...>``, a file or a folder.

    ``data_path("cases", "x.json")`` and ``data_path("cases/x.json")`` mean the same. Folders of
    different places are not merged. Without parts: the first place that exists.

    Raises
    ------
    ValueError
        ``parts`` leads out of ``data/``.
    FileNotFoundError
        No place has it; the message names what was looked for, where, and the nearest names there.
    """
    wanted = PurePath(*parts)
    if wanted.is_absolute() or ".." in wanted.parts:
        raise ValueError(f"parts={parts!r} leads out of data/: give a path below data/, without '..'")
    places = data_places()
    for place in places:
        if (place / wanted).exists():
            return place / wanted
    raise FileNotFoundError(_not_found(wanted, places))


def data_places() -> list[Path]:
    """Return the folders that `data_path` asks, first to last; only the first is checked to exist."""
    places = []
    if override := os.environ.get(ENVIRONMENT_VARIABLE):
        # A misspelt folder must not fall through to other data without a word.
        if not Path(override).is_dir():
            raise FileNotFoundError(
                f"{ENVIRONMENT_VARIABLE}={override!r} is not a folder: "
                "name one that is laid out like data/, or unset it"
            )
        places.append(Path(override).resolve())
    package = Path(__file__).resolve().parent
    project = package.parent.parent
    if (project / "toolkit" / "depthchart") == package and (project / "pyproject.toml").is_file():
        places.append(project / "data")
    places.append(package / "data")
    return places


def _not_found(wanted: PurePath, places: list[Path]) -> str:
    looked = "; ".join(str(place) for place in places)
    siblings = sorted({entry.name for place in places for entry in _listing((place / wanted).parent)})
    near = get_close_matches(wanted.name, siblings, n=3)
    hint = f"nearest: {', '.join(near)}" if near else f"there is: {', '.join(siblings) or 'nothing'}"
    return f"no {wanted.as_posix()!r} in data; looked in {looked}; {hint} ({ENVIRONMENT_VARIABLE} adds a place)"


def _listing(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
