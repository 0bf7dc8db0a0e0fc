"""Wheel, editable and source distributions: both packages import, and data/ is found, in each.

Builds without network: the fresh environments see the test run's own packages through a ``.pth``
line (a plain ``sys.path`` entry, so an editable depthchart installed there is not seen).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, depthchart, depthchart_kernels
from depthchart.datafiles import data_path
print(json.dumps([depthchart.__file__, depthchart_kernels.__file__, str(data_path())]))
"""


def call(*argv: str | Path, cwd: Path = ROOT) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DEPTHCHART_DATA", "VIRTUAL_ENV")}
    shown = subprocess.run([*map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def build(target: str, source: Path, out: Path) -> Path:
    call(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (made,) = out.iterdir()
    return made


TEMPLATE = "share/jupyter/voila/templates/depthchart"


def fresh_venv(folder: Path, *install: str | Path) -> Path:
    """A new environment with ``install`` in it and nothing fetched; returns its python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    call(python, *pip, *install)
    return python


def probe(python: Path, cwd: Path) -> list[Path]:
    return [Path(found) for found in json.loads(call(python, "-c", PROBE, cwd=cwd))]


def files_below(folder: Path) -> dict[str, bytes]:
    """Content of every file below ``folder``, by relative path; caches left out."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def tracked() -> set[str]:
    return set(call("git", "ls-files").split())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_wheel_install(wheel, tmp_path):
    python = fresh_venv(tmp_path / "venv", wheel)
    toolkit, kernels, data = probe(python, tmp_path)
    assert toolkit.is_relative_to(tmp_path / "venv")
    assert kernels.is_relative_to(tmp_path / "venv")
    assert data == toolkit.parent / "data"
    assert files_below(ROOT / "data")
    assert files_below(data) == files_below(ROOT / "data")


@pytest.mark.skipif(not (ROOT / "toolkit/depthchart/cli.py").is_file(), reason="no command line yet")
def test_wheel_command(wheel, tmp_path):
    fresh_venv(tmp_path / "venv", wheel)
    assert "usage: depthchart" in call(tmp_path / "venv" / "bin" / "depthchart", "--help", cwd=tmp_path)


def test_wheel_holds_both_packages_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"depthchart/py.typed", "depthchart_kernels/py.typed"} <= names
    shared = {name for name in names if name.startswith("depthchart-0.1.0.data/")}
    rest = {name.split("/")[0] for name in names - shared}
    assert rest == {"depthchart", "depthchart_kernels", "depthchart-0.1.0.dist-info"}
    place = f"depthchart-0.1.0.data/data/{TEMPLATE}"
    assert shared == {f"{place}/conf.json", f"{place}/index.html.j2"}


def test_editable_install_leaves_no_copy(tmp_path):
    python = fresh_venv(tmp_path / "venv", "--editable", ROOT)
    toolkit, kernels, data = probe(python, tmp_path)
    assert toolkit == ROOT / "toolkit/depthchart/__init__.py"
    assert kernels == ROOT / "kernels/depthchart_kernels/__init__.py"
    assert data == ROOT / "data"
    template = tmp_path / "venv" / TEMPLATE  # where Voilà looks for it
    assert (template / "index.html.j2").is_file()
    found = [path for path in (tmp_path / "venv").rglob("depthchart*") if path.is_dir() and path.suffix != ".dist-info"]
    assert found == [template]


def test_source_distribution_is_complete(wheel, tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of files to compare with")
    archive = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    source = tmp_path / "depthchart-0.1.0"
    assert tracked() - set(files_below(source)) == set()
    again = build("wheel", source, tmp_path / "again")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
