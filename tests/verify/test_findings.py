"""The counterexamples that docs/findings.md speaks of: each still breaks, and breaks as it says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from depthchart.cases import find_script, replay
from depthchart.cases.expect import mismatches
from depthchart.datafiles import data_path
from depthchart.presets import preset
from depthchart.verify import Bounds, verify

FILES = sorted(data_path("findings").glob("*.json"))
DOC = (Path(__file__).resolve().parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
SMALL = Bounds(tokens=3, tokens_together=2)
PAGE, POOL, DCP = (
    {"dcp_size": (1,), "index_pool": (1,)},
    {"dcp_size": (1,), "index_pool": (2, 3)},
    {"dcp_size": (2, 3), "index_pool": (1,)},
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_script_breaks_as_it_says(path):
    script = find_script(str(path))
    result = replay(script)
    assert mismatches(result, script.expect) == []
    assert result["violations"], "a finding must break something"
    assert path.stem in DOC or path.stem.removeprefix("absolute-decode-interval") in DOC


@pytest.mark.parametrize(
    "path", [path for path in FILES if "interval" not in path.stem], ids=lambda path: path.stem
)
def test_the_absolute_rule_survives_it(path):
    script = find_script(str(path)).under(rule="absolute")
    assert replay(script)["violations"] == []


@pytest.mark.parametrize(
    ("rule", "geometries", "cuts", "sound"),
    [
        ("dcp_gated", POOL, "page", False),
        ("dcp_gated", DCP, "page", True),
        ("dcp_gated", PAGE, "page", True),
        ("absolute", POOL, "any", True),
        ("prefix_relative", POOL, "page", False),
        ("prefix_relative", DCP, "page", False),
        ("chunk_grid", DCP, "page", False),
        ("prefix_relative", PAGE, "page", True),
        ("marconi", POOL, "any", True),
        ("vllm_align", POOL, "any", True),
    ],
)
def test_the_table_in_small(rule, geometries, cuts, sound):
    report = verify(rule, replace(SMALL, **geometries, cuts=cuts))
    assert report.complete
    assert report.sound == sound


@pytest.mark.parametrize(
    ("name", "geometries", "sound"),
    [
        ("sglang", POOL, False),
        ("sglang", DCP, True),
        ("sglang-39115", POOL, True),
        ("sglang-35412", DCP, False),
        ("sglang-2025-12", DCP, False),
        ("vllm-align", POOL, True),
        ("vllm-junction", POOL, True),
        ("vllm-all", DCP, True),
        ("vllm-align-before-51113", DCP, False),
        ("llamacpp@2,1", POOL, True),
        ("depthchart", POOL, True),
    ],
)
def test_the_table_of_presets_in_small(name, geometries, sound):
    report = verify(preset(name), replace(SMALL, **geometries, cuts="page"))
    assert report.complete
    assert report.sound == sound
    if not sound:
        script = report.smallest.scaled(64).script
        assert script["preset"] == name
        assert replay(script)["violations"]


def test_the_document_names_files_that_exist():
    named = set(re.findall(r"`((?:chunk-grid|prefix-relative|dcp-gated|absolute-decode)[a-z-]+)`", DOC))
    assert named
    assert named <= {path.stem for path in FILES}


def test_scripts_are_like_those_of_the_search():
    """The committed script of the first finding is what the search gives, 64 times as long."""
    bounds = replace(SMALL, **POOL, cuts="page")
    found = verify("dcp_gated", bounds).smallest.scaled(64)
    kept = json.loads((data_path("findings") / "dcp-gated-pool.json").read_text())
    assert kept["steps"] == found.script["steps"]
    assert kept["geometry"] == found.script["geometry"]
