"""Imports point one way (DESIGN section 4): at run time, and by contracts that must bite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "triton", "pandas", "matplotlib", "ipywidgets", "IPython")
CONTROL_PATH = ("geometry", "depth", "tokens", "cache", "scheduler", "simulate", "traces", "models", "roofline")


def present(rooms: tuple[str, ...]) -> list[str]:
    package = ROOT / "toolkit" / "depthchart"
    return [room for room in rooms if (package / room).is_dir() or (package / f"{room}.py").is_file()]


@pytest.mark.parametrize("module", ["depthchart", *(f"depthchart.{room}" for room in present(CONTROL_PATH))])
def test_import_loads_nothing_heavy(module):
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "kernels")])}
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    loaded = set(json.loads(shown.stdout))
    assert module in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.fixture
def copy(tmp_path):
    """Both source roots and their configuration, to be spoilt."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("toolkit", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> tuple[int, str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "toolkit"), str(folder / "kernels")])}
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    argv = [sys.executable, "-c", code, "--no-cache"]
    shown = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return shown.returncode, shown.stdout + shown.stderr


def test_contracts_hold(copy):
    code, said = lint(copy)
    assert code == 0, said
    assert "5 kept, 0 broken" in said


def test_control_path_contract_bites_in_every_room(copy):
    rooms = present(CONTROL_PATH)
    for room in rooms:
        package = copy / "toolkit" / "depthchart"
        target = package / f"{room}.py" if (package / f"{room}.py").is_file() else package / room / "spoilt.py"
        with target.open("a") as file:
            file.write("\nimport torch\n")
    code, said = lint(copy)
    assert code == 1, said
    for room in rooms:
        assert f"depthchart.{room} is not allowed to import torch" in said


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("toolkit/depthchart/geometry.py", "import depthchart.depth", "Rooms import only rooms below them"),
        ("toolkit/depthchart/errors.py", "import pandas", "The control path needs numpy at most"),
        ("kernels/depthchart_kernels/spoilt.py", "import depthchart", "Kernels know nothing of the toolkit"),
        ("toolkit/depthchart/charts/spoilt.py", "import depthchart_kernels", "Only the engine calls kernels"),
        ("toolkit/depthchart/charts/spoilt.py", "import ipywidgets", "Only widgets import ipywidgets"),
        ("toolkit/depthchart/unheard_of.py", "", "Rooms import only rooms below them"),
    ],
)
def test_contract_bites(copy, file, line, contract):
    with (copy / file).open("a") as stream:
        stream.write(f"\n{line}\n")
    code, said = lint(copy)
    assert code == 1, said
    assert f"{contract} BROKEN" in said


def test_widgets_may_import_ipywidgets(copy):
    room = copy / "toolkit" / "depthchart" / "widgets"
    room.mkdir(exist_ok=True)
    (room / "__init__.py").touch()
    (room / "spoilt.py").write_text("import ipywidgets\n")
    code, said = lint(copy)
    assert code == 0, said
