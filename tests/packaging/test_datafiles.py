"""`depthchart.datafiles`: which place is asked first, and what a failure says."""

from __future__ import annotations

from pathlib import Path

import pytest

from depthchart import datafiles
from depthchart.datafiles import data_path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A make-believe checkout: its package folder, with data/ neither above nor inside it yet."""
    monkeypatch.delenv("DEPTHCHART_DATA", raising=False)
    folder = tmp_path / "project" / "toolkit" / "depthchart"
    folder.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    monkeypatch.setattr(datafiles, "__file__", str(folder / "datafiles.py"))
    return folder


def put(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_places_are_asked_in_order(package, tmp_path, monkeypatch):
    inside = put(package / "data", "cases/x.json")
    assert data_path("cases", "x.json") == inside
    project = put(tmp_path / "project" / "data", "cases/x.json")
    assert data_path("cases", "x.json") == project
    override = put(tmp_path / "mine", "cases/x.json")
    monkeypatch.setenv("DEPTHCHART_DATA", str(tmp_path / "mine"))
    assert data_path("cases", "x.json") == override
    override.unlink()
    assert data_path("cases/x.json") == project


def test_folder_above_an_installed_package_is_not_asked(package, tmp_path):
    put(tmp_path / "project" / "data", "cases/x.json")
    (tmp_path / "project" / "pyproject.toml").unlink()
    with pytest.raises(FileNotFoundError):
        data_path("cases", "x.json")


def test_missing_file_names_itself_the_places_and_the_nearest(package, tmp_path):
    put(tmp_path / "project" / "data", "cases/sglang-39115.json")
    with pytest.raises(FileNotFoundError) as caught:
        data_path("cases", "sglang-39151.json")
    message = str(caught.value)
    for words in ("cases/sglang-39151.json", str(tmp_path / "project" / "data"), str(package / "data")):
        assert words in message
    assert "nearest: sglang-39115.json" in message
    assert "DEPTHCHART_DATA" in message


def test_misspelt_override_does_not_fall_through(package, tmp_path, monkeypatch):
    put(package / "data", "x.json")
    monkeypatch.setenv("DEPTHCHART_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"DEPTHCHART_DATA=.*typo.*is not a folder"):
        data_path("x.json")


@pytest.mark.parametrize("parts", [("..", "pyproject.toml"), ("/etc/passwd",), ("cases", "/x"), ("a/../../b",)])
def test_paths_out_of_data_are_refused(package, parts):
    with pytest.raises(ValueError, match="leads out of data/"):
        data_path(*parts)
