"""Hit tokens against kvcache-simulator (PyPI, KVCache.AI): states ignored, least recently used blocks go.

Its rules, which the replay below follows on our tree: every block of a prompt is a page of its own, the partial last one
too, and counts with its tokens; replies are not cached; a match may cover the whole prompt; the path of the
running request is not evicted; hits count over the second half of the requests. Set DEPTHCHART_MOONCAKE to the conversation
trace (FAST25 release, .jsonl or .jsonl.gz) to compare it whole, at every budget that the peer reports.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from depthchart.cache.allocator import PageAllocator
from depthchart.cache.state_pool import StatePool
from depthchart.cache.tree import RadixTree
from depthchart.tokens import PrefixIndex, Text

pytestmark = pytest.mark.peer

BLOCK = 512


def replay(rows, blocks):
    """Hit tokens of the second half on a pool of so many blocks; a node per block, so that eviction goes by blocks."""
    index = PrefixIndex(BLOCK)
    allocator = PageAllocator(blocks * BLOCK, BLOCK)
    tree = RadixTree(allocator, StatePool(1), BLOCK, keep_tombstones=True)
    hits = 0
    for number, row in enumerate(rows):
        ids = Text(index, [(block, 0, BLOCK) for block in row["hash_ids"]]).ids(len(row["hash_ids"]) * BLOCK)
        found = tree.match(ids).kv_tokens // BLOCK
        if number >= len(rows) // 2:
            hits += min(found * BLOCK, row["input_length"])
        _put(tree, ids, found)
    return hits


def _put(tree, ids, found):
    """Add the missing blocks one by one, evicting one leaf at a time, never on the request's own path."""
    node = tree.root
    for page in ids[:found]:
        node = node.children[page]
    tree.lock(node)
    for page in ids[found:]:
        if not tree.allocator.free_tokens:
            tree.evict(kv_tokens=BLOCK)
        if not tree.allocator.free_tokens:
            break
        grown = tree._add(
            node, [page], tree.allocator.allocate(1), "", "", 0
        )  # insert would walk the path each time
        tree.lock(grown)
        tree.unlock(node)
        node = grown
    tree.unlock(node)


def synthetic(seed, count=400):
    """Rows in Mooncake's format: chained ids, sessions that grow, a shared first block, partial last blocks."""
    dice, fresh, sessions, rows = random.Random(seed), iter(range(1, 10**9)), [], []
    for _ in range(count):
        if sessions and dice.random() < 0.7:
            chain = dice.choice(sessions[-40:])
        else:
            chain = [0]
            sessions.append(chain)
        chain += [next(fresh) for _ in range(dice.randint(1, 6))]
        tail = dice.choice([[], [next(fresh)]])
        ids = chain + tail
        rows.append(
            {
                "hash_ids": list(ids),
                "input_length": len(ids) * BLOCK - (dice.randint(1, BLOCK - 1) if tail else 0),
            }
        )
        if dice.random() < 0.1:
            rows.append(rows[-1])
    return rows


def plan_of(rows):
    simulator = pytest.importorskip("kvcache_sim")
    assert simulator
    from kvcache_sim.plan import build_execution_plan
    from kvcache_sim.trace import parse_trace_lines

    trace = parse_trace_lines([json.dumps(row) for row in rows], block_size=BLOCK)
    return trace, build_execution_plan(trace, warmup_fraction=0.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks", [60, 100, 200, 400])
def test_synthetic_rows_to_the_token(seed, blocks):
    rows = synthetic(seed)
    _, plan = plan_of(rows)
    from kvcache_sim.policies import simulate_policy

    theirs = simulate_policy(plan, "lru", blocks)
    assert theirs.measurementMode == "fixed_window"
    assert replay(rows, blocks) == theirs.hitTokens > 0


@pytest.mark.skipif("DEPTHCHART_MOONCAKE" not in os.environ, reason="DEPTHCHART_MOONCAKE names no trace")
def test_mooncake_conversation_to_the_token_at_every_budget():
    path = Path(os.environ["DEPTHCHART_MOONCAKE"])
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    trace, _ = plan_of(rows)
    from kvcache_sim.simulator import run_sweep

    backend = "cpp" if shutil.which("c++") else "python"
    found = run_sweep(trace, model_id="kimi-k3", policies=["lru"], backend=backend)
    assert found["points"]
    for point in found["points"]:
        assert replay(rows, point["cacheBlocks"]) == point["results"]["lru"]["hitTokens"], point["gib"]
