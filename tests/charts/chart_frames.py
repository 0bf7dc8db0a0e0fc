"""Frames made by hand for the chart tests: the seed bug, an agentic tree, random trees.

Numbers of the seed bug come from sglang#39115: page 64, DCP 8, chunk 64, prefix 64, end 605.
"""

from __future__ import annotations

import random

import pandas as pd

from depthchart.columns import CHECKPOINTS, NODES, REQUESTS, STEPS
from depthchart.geometry import Geometry

SEED_GEOMETRY = Geometry(page_size=64, dcp_size=8, chunk_width=64)
_NULLABLE = (
    "state_depth_tokens",
    "depth_tokens",
    "node_end_tokens",
    "node_id",
    "end_tokens",
    "prefix_tokens",
)


def nodes_frame(rows: list[dict]) -> pd.DataFrame:
    default = {
        "parent_id": -1,
        "namespace": "",
        "state_depth_tokens": pd.NA,
        "status": "bare",
        "kv_locks": 0,
        "state_locks": 0,
        "request": "r0",
        "created_s": 0.0,
        "last_used_s": 0.0,
    }
    frame = pd.DataFrame([default | row for row in rows], columns=list(NODES))
    return frame.astype({"state_depth_tokens": "Int64", "created_s": float, "last_used_s": float})


def checkpoints_frame(rows: list[dict]) -> pd.DataFrame:
    default = {"step": 1, "time_s": 0.1, "kind": "prefill", "reason": ""}
    frame = pd.DataFrame([default | row for row in rows], columns=list(CHECKPOINTS))
    return frame.astype(dict.fromkeys(_NULLABLE, "Int64"))


def seed_bug(rule: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tree after the seed extend: under ``prefix_relative`` 576 is filed at 512."""
    depth = {"prefix_relative": 576, "absolute": 512}[rule]
    good = depth == 512
    nodes = nodes_frame(
        [
            {
                "node_id": 1,
                "start_tokens": 0,
                "end_tokens": 512,
                "state_depth_tokens": depth,
                "status": "state" if good else "misplaced",
                "request": "turn-1",
            }
        ]
    )
    checkpoints = checkpoints_frame(
        [
            {
                "request": "turn-1",
                "prefix_tokens": 0,
                "end_tokens": 64,
                "outcome": "refused",
                "step": 0,
                "reason": "the extend ends at 64, before the first tree page (512)",
            },
            {
                "request": "turn-1",
                "prefix_tokens": 64,
                "end_tokens": 605,
                "depth_tokens": depth,
                "state_depth_tokens": depth,
                "node_end_tokens": 512,
                "node_id": 1,
                "outcome": "donated" if good else "misplaced",
                "reason": "⌊605/512⌋·512 = 512" if good else "64 + ⌊541/512⌋·512 = 576, filed at 512",
            },
        ]
    )
    return nodes, checkpoints


def agentic_tree() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Twelve nodes of a coding agent: a shared system prompt, branches, tombstones, locks, a misplaced state."""

    def row(node, parent, start, end, status, **more):
        state = {"state": end, "misplaced": more.pop("depth", None)}.get(status, pd.NA)
        return {
            "node_id": node,
            "parent_id": parent,
            "start_tokens": start,
            "end_tokens": end,
            "status": status,
            "state_depth_tokens": state,
            "created_s": float(node),
            "last_used_s": float(node),
            **more,
        }

    nodes = nodes_frame(
        [
            row(1, -1, 0, 2048, "state", request="a1", kv_locks=3),
            row(2, 1, 2048, 3072, "tombstone", request="a1", kv_locks=1),
            row(3, 2, 3072, 4096, "tombstone", request="a1", kv_locks=1),
            row(4, 3, 4096, 6144, "state", request="a2", kv_locks=1, state_locks=1),
            row(5, 3, 4096, 5120, "state", request="a3"),
            row(6, 2, 3072, 5632, "misplaced", request="a4", depth=5696),
            row(7, 1, 2048, 2560, "bare", request="b1", kv_locks=2),
            row(8, 7, 2560, 5120, "state", request="b1", kv_locks=1, state_locks=1),
            row(9, 7, 2560, 3584, "tombstone", request="b2", kv_locks=1),
            row(10, 9, 3584, 7168, "state", request="b2", kv_locks=1, state_locks=1),
            row(11, 1, 2048, 3072, "state", request="c1"),
            row(12, 11, 3072, 4608, "bare", request="c2"),
        ]
    )
    checkpoints = checkpoints_frame(
        [
            {
                "request": "c2",
                "node_id": 12,
                "prefix_tokens": 3072,
                "end_tokens": 4700,
                "depth_tokens": 4608,
                "outcome": "refused",
                "reason": "the cap of 4 states on this path is reached",
            },
            {
                "request": "b2",
                "prefix_tokens": 7168,
                "end_tokens": 7390,
                "outcome": "refused",
                "reason": "no grid point inside the extend: the next one is 7,680",
            },
            {
                "request": "d1",
                "prefix_tokens": 0,
                "end_tokens": 420,
                "outcome": "refused",
                "reason": "the prompt is shorter than one tree page (512)",
            },
            {
                "request": "b1",
                "node_id": 8,
                "kind": "decode",
                "prefix_tokens": 5120,
                "end_tokens": 5700,
                "depth_tokens": 5632,
                "state_depth_tokens": 5632,
                "outcome": "superseded",
            },
        ]
    )
    return nodes, checkpoints


def random_tree(
    count: int, seed: int = 0, tree_page: int = 512, longest: int = 8, namespaces: tuple[str, ...] = ("",)
) -> pd.DataFrame:
    """``count`` nodes; every new one hangs below a random earlier one, or below the root."""
    rng = random.Random(seed)
    rows: list[dict] = []
    for node in range(count):
        parent = rng.choice(rows) if rows and rng.random() < 0.93 else None
        start = parent["end_tokens"] if parent else 0
        end = start + tree_page * rng.randint(1, longest)
        status = rng.choices(("state", "bare", "tombstone", "misplaced"), (50, 20, 25, 5))[0]
        rows.append(
            {
                "node_id": node,
                "parent_id": parent["node_id"] if parent else -1,
                "namespace": parent["namespace"] if parent else rng.choice(namespaces),
                "start_tokens": start,
                "end_tokens": end,
                "status": status,
                "state_depth_tokens": {"state": end, "misplaced": end + rng.choice((-64, 64, 448))}.get(
                    status, pd.NA
                ),
                "kv_locks": int(rng.random() < 0.1),
                "state_locks": int(status == "state" and rng.random() < 0.1),
                "request": f"r{node}",
                "created_s": float(node),
                "last_used_s": rng.random() * 100,
            }
        )
    return nodes_frame(rows)


def random_checkpoints(nodes: pd.DataFrame, count: int, seed: int = 0) -> pd.DataFrame:
    """Refused and superseded checkpoints beyond the ends of random nodes."""
    rng = random.Random(seed)
    reasons = ("no snapshot on the grid", "the extend is shorter than cache_chunk", "state already there")
    picked = nodes.sample(min(count, len(nodes)), random_state=seed)
    return checkpoints_frame(
        [
            {
                "request": row.request,
                "node_id": row.node_id,
                "prefix_tokens": row.end_tokens,
                "end_tokens": row.end_tokens + 300,
                "depth_tokens": row.end_tokens + 256 if rng.random() < 0.5 else pd.NA,
                "outcome": rng.choice(("refused", "refused", "superseded")),
                "reason": rng.choice(reasons),
            }
            for row in picked.itertuples()
        ]
    )


def steps_frame(count: int = 120, seed: int = 0) -> pd.DataFrame:
    """A run of ``count`` steps with tight pools (65,536 KV tokens, 48 state slots)."""
    rng = random.Random(seed)
    rows, time, free, slots, running = [], 0.0, 65_536, 48, 0
    for step in range(count):
        prefill = rng.choice((0, 0, 512, 2048, 4096, 8192))
        duration = 0.012 + prefill / 250_000
        running = max(0, min(24, running + rng.choice((-1, 0, 1, 1))))
        free = max(1024, free - prefill // 2 + rng.choice((0, 512, 2048)))
        slots = max(1, min(48, slots + rng.choice((-1, 0, 0, 1))))
        rows.append(
            {
                "step": step,
                "time_s": time,
                "duration_s": duration,
                "prefill_tokens": prefill,
                "prefill_rows": int(prefill > 0),
                "decode_rows": running,
                "waiting": rng.randint(0, 6),
                "running": running,
                "free_kv_tokens": free,
                "evictable_kv_tokens": (65_536 - free) // 2,
                "free_state_slots": slots,
                "evictable_state_slots": (48 - slots) // 2,
            }
        )
        time += duration
    return pd.DataFrame(rows, columns=list(STEPS))


def requests_frame(count: int = 24, seed: int = 0) -> pd.DataFrame:
    """``count`` requests of growing chats; the last one is still waiting."""
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        prompt = 700 + 350 * (index % 12) + rng.randint(0, 300)
        hit = min(prompt - 1, rng.choice((0, 512, 1024, 2048)))
        reused = hit if rng.random() < 0.6 else hit // 1024 * 512
        waiting = index == count - 1
        rows.append(
            {
                "request": f"r{index}",
                "session": f"s{index // 12}",
                "arrival_s": index * 0.4,
                "prompt_tokens": prompt,
                "output_tokens": 100,
                "kv_hit_tokens": pd.NA if waiting else hit,
                "reused_tokens": pd.NA if waiting else reused,
                "lost_tokens": pd.NA if waiting else hit - reused,
                "prefill_steps": 1,
                "retractions": 0,
                "status": "waiting" if waiting else "finished",
            }
        )
    frame = pd.DataFrame(rows, columns=list(REQUESTS))
    return frame.astype(dict.fromkeys(("kv_hit_tokens", "reused_tokens", "lost_tokens"), "Int64"))


def seed_rules() -> pd.DataFrame:
    """The seed extend [64, 605) under three rules and one that takes nothing."""
    rows = [
        ("chunk_grid", 576, True, False, "64 + ⌊541/64⌋·64 = 576; no 512-token page ends there"),
        ("prefix_relative", 576, True, False, "64 + ⌊541/512⌋·512 = 576; no 512-token page ends there"),
        (
            "absolute",
            512,
            True,
            True,
            "⌊605/512⌋·512 = 512 > 64, and (512 − 64) mod 64 = 0: the kernel has that snapshot",
        ),
        ("never", pd.NA, False, False, "this rule takes no checkpoint"),
    ]
    frame = pd.DataFrame(rows, columns=["rule", "depth_tokens", "donate", "nameable", "reason"])
    frame = frame.assign(prefix_tokens=64, end_tokens=605)
    return frame.astype({"depth_tokens": "Int64"})
