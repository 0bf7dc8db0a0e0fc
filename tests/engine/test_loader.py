"""The layer-wise loader, in real processes over gloo: who reads, in what order, and that nobody waits for ever."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from depthchart.engine.layer_store import LayerStore, as_layer  # noqa: E402
from depthchart.engine.loader import LayerLoader, LoadPlan  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LAYERS, TOKENS, LATENT = 6, 40, 24
BYTES = LAYERS * TOKENS * LATENT * 4


@pytest.fixture
def folder(tmp_path):
    store = LayerStore(tmp_path)
    for seed, key in enumerate(("prefix", "other")):
        dice = torch.Generator().manual_seed(seed)
        store.save(key, [torch.randn(TOKENS, 1, LATENT, generator=dice) for _ in range(LAYERS)])
    return tmp_path


def run(scenario, folder, ranks):
    """The last words of every rank; [] of one that died. Nobody may take longer than half a minute."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "kernels")]),
        "OMP_NUM_THREADS": "1",
    }
    script = str(Path(__file__).parent / "loader_rank.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, scenario, str(folder), str(rank), str(ranks)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = []
    try:
        for process in started:
            out, err = process.communicate(timeout=90)
            assert process.returncode in (0, 9), err[-2000:]
            said.append([json.loads(line) for line in out.splitlines()])
    finally:
        for process in started:
            process.kill()
    return said


def truth(folder, key="prefix"):
    store = LayerStore(folder)
    return [
        as_layer(store.read(key, at), stored).double().sum().item()
        for at, stored in enumerate(store.layers(key))
    ]


def kinds(events):
    return [(kind, layer) for kind, layer, _, _ in events]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_layer_is_read_once_and_broadcast(folder, ranks):
    said = run("one-read", folder, ranks)
    first = [lines[0] for lines in said]
    assert [rank["bytes_read"] for rank in first] == [BYTES, *[0] * (ranks - 1)]  # 1 ×
    assert all(rank["sums"] == truth(folder) for rank in first)
    assert all(rank["shapes"] == [[TOKENS, 1, LATENT]] * LAYERS for rank in first)
    for rank in first:
        ready = [layer for kind, layer in kinds(rank["events"]) if kind == "ready"]
        assert ready == list(range(LAYERS))
    for rank in first[1:]:
        assert kinds(rank["events"]) == [(k, layer) for layer in range(LAYERS) for k in ("received", "ready")]
    # the same loader loads again
    assert all(lines[1]["second"] == pytest.approx(sum(truth(folder, "other"))) for lines in said)
    assert [lines[1]["bytes_read"] for lines in said] == [2 * BYTES, *[0] * (ranks - 1)]


def test_without_deduplication_every_rank_reads(folder):
    said = run("every-rank-reads", folder, 2)
    assert [lines[0]["bytes_read"] for lines in said] == [BYTES, BYTES]  # ranks ×
    for lines in said:
        assert lines[0]["sums"] == truth(folder)
        assert kinds(lines[0]["events"]) == [(k, layer) for layer in range(LAYERS) for k in ("read", "ready")]


@pytest.mark.slow
def test_the_next_layer_is_read_while_one_is_broadcast(folder):
    """A receiver that is slow holds the broadcast up; the reader has begun the next layer long before it ends."""
    (reader,), _ = run("slow-receiver", folder, 2)
    began = {layer: start for kind, layer, start, _ in reader["events"] if kind == "read"}
    sent = {layer: end for kind, layer, _, end in reader["events"] if kind == "sent"}
    assert all(began[layer + 1] < sent[layer] for layer in range(1, LAYERS - 1))


def test_a_reader_that_fails_tells_everybody(folder):
    said = run("reader-fails", folder, 2)
    for (rank,) in said:
        assert rank["kind"] == "LoadFailed"
        assert rank["error"] == "rank 0 failed at layer 2: disk on fire"
        assert len(rank["sums"]) == 2
        assert rank["waited_s"] < 3, "told, not timed out"
        assert rank["again"] == "", "the ranks are still in step: another load begins well"


def test_a_reader_that_dies_leaves_nobody_waiting(folder):
    said = run("reader-dies", folder, 2)
    assert said[0] == []
    for (rank,) in said[1:]:
        assert rank["kind"] == "LoadFailed"
        assert "lost the other ranks at layer" in rank["error"]
        assert "this loader is broken" in rank["again"]
        assert rank["waited_s"] < 20


@pytest.mark.slow
def test_a_reader_that_hangs_is_given_up(folder):
    said = run("reader-hangs", folder, 2)
    ((waiting,),) = said[1:]
    assert waiting["kind"] == "LoadFailed"
    assert "took longer than 3 s" in waiting["error"]
    assert waiting["waited_s"] < 20


def test_a_late_rank_with_another_plan_is_refused_by_all(folder):
    said = run("late-and-mismatched", folder, 3)
    for (rank,) in said:
        assert rank["kind"] == "PlanMismatch"
        assert f"rank 2 plans [load 0: {LAYERS} layers, {BYTES} bytes of 'other', read once]" in rank["error"]
        assert rank["error"].endswith("nothing was loaded")
        assert (rank["bytes_read"], rank["sums"]) == (0, [])


@pytest.mark.slow
def test_a_rank_that_is_too_late_finds_the_others_gone(folder):
    said = run("too-late", folder, 2)
    for (rank,) in said:
        assert rank["kind"] == "LoadFailed"
        assert "lost the other ranks before the first layer" in rank["error"]
        assert rank["bytes_read"] == 0


# --- the store --------------------------------------------------------------------------------------------


def test_store_keeps_dtype_and_shape(tmp_path):
    store = LayerStore(tmp_path)
    layers = [torch.arange(6.0).view(2, 3).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.int8)]
    store.save("a", layers)
    stored = store.layers("a")
    assert [layer.nbytes for layer in stored] == [24, 12, 6]
    for at, layer in enumerate(layers):
        assert torch.equal(as_layer(store.read("a", at), stored[at]), layer)
    assert store.bytes_read == 42


def test_a_damaged_store(tmp_path):
    store = LayerStore(tmp_path)
    path = store.save("a", [torch.zeros(10), torch.zeros(10)])
    path.write_bytes(path.read_bytes()[:-8])
    store.read("a", 0)
    with pytest.raises(OSError, match="layer 1 has 32 of 40 bytes; the file is damaged"):
        store.read("a", 1)
    with pytest.raises(FileNotFoundError, match="key='b': is not stored; there are a"):
        store.layers("b")
    with pytest.raises(ValueError, match=r"key='\.\./a': must be a plain file name"):
        store.read("../a", 0)
    with pytest.raises(ValueError, match=r"layers\[0\] is torch.float64"):
        store.save("c", [torch.zeros(1, dtype=torch.float64)])


def test_plans_that_differ_have_other_digests(tmp_path):
    store = LayerStore(tmp_path)
    store.save("a", [torch.zeros(4)])
    store.save("b", [torch.zeros(5)])
    plans = [
        LoadPlan("a", store.layers("a"), True, 0),
        LoadPlan("a", store.layers("b"), True, 0),
        LoadPlan("a", store.layers("a"), False, 0),
        LoadPlan("a", store.layers("a"), True, 1),
        LoadPlan("b", store.layers("a"), True, 0),
    ]
    assert len({plan.digest for plan in plans}) == len(plans)


def test_a_timeout_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="timeout_s=0: must be a positive number of seconds"):
        LayerLoader(LayerStore(tmp_path), timeout_s=0)
