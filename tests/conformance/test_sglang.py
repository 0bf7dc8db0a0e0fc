"""SGLang 0.5.23's recorded behaviour: depth decisions, tree scripts, whole lifecycles.

Differences that are right are listed in docs/conformance.md and in ``DIFFERENCES`` below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from depthchart import RULES, Geometry
from depthchart.datafiles import data_path

sys.path.insert(0, str(Path(__file__).parent))
from sglang_record import Record

DEPTHS = [json.loads(line) for line in data_path("conformance", "sglang", "depth.jsonl").read_text().splitlines()]
TREES = json.loads(data_path("conformance", "sglang", "tree_scripts.json").read_text())
LIVES = json.loads(data_path("conformance", "sglang", "lifecycles.json").read_text())

# Where SGLang fails half-way or frees a page twice in silence, ours refuses and leaves the books as they were:
# script -> {operation number: our error}. After it the script's own record no longer applies.
BETTER = {
    "free_shared_page": {1: "PageSharedError"},
    "free_shared_page_two_calls": {2: "DoubleFreeError"},
    "free_row_gap_in_page": {1: "PageSharedError"},
    "free_dcp_kernel_page": {1: "PageSharedError"},
    "free_page_1": {2: "DoubleFreeError"},
}


def test_depth_decisions():
    wrong = []
    for row in DEPTHS:
        if row.get("error"):
            with pytest.raises(ValueError, match="must divide"):
                Geometry(row["page_size"], row["dcp_size"], row["model_chunk"])
            continue
        geometry = Geometry(row["page_size"], row["dcp_size"], row["model_chunk"])
        assert (geometry.tree_page, geometry.cache_chunk, geometry.checkpoint_grid) == (
            row["tree_page"],
            row["cache_chunk"],
            row["grid"],
        )
        rule, end = RULES["dcp_gated"], row["prefix_len"] + row["extend_len"]
        decision = rule(geometry, row["prefix_len"], end, row["branching_seqlen"])
        depth = decision.depth if decision.donate else None
        stored = None if depth is None else rule.stored_depth(geometry, row["prefix_len"], end, depth)
        if (decision.donate, depth, stored) != (row["mask"], row["tracked_depth"], row["kernel_depth"]):
            wrong.append((row, decision))
    assert not wrong, f"{len(wrong)} of {len(DEPTHS)} differ, first: {wrong[0]}"
    assert len(DEPTHS) > 1000


@pytest.mark.parametrize("script", TREES + LIVES, ids=lambda script: script["name"])
def test_script(script):
    record = Record(script["config"])
    assert (script["tree_page"], script["grid"], script["decode_grid"]) == (
        record.geometry.tree_page,
        record.geometry.checkpoint_grid,
        record.geometry.track_grid,
    )
    for number, step in enumerate(script["trace"]):
        if error := BETTER.get(script["name"], {}).get(number):
            before = record.counts()
            assert record.run(step["op"]) == {"error": error}
            assert record.counts() == before, "a refused free must change nothing"
            return
        result = record.run(step["op"])
        where = f"operation {number}: {step['op']}"
        want = dict(step["result"])
        if isinstance(want.get("decision"), dict):
            want["decision"] = {key: want["decision"][key] for key in result["decision"]}
        assert result == want, where
        assert record.counts() == (step["kv"], step["states"]), where
        nodes = [
            (n["start"], n["end"], n["state"], n["kv_lock"], n["state_lock"], n.get("state_holds_depth"))
            for n in step.get("nodes", [])
        ]
        assert record.nodes() == sorted(nodes, key=str), where
        if "problems" not in step and not record.locks and not record.rows:
            assert not record.violations(), where
