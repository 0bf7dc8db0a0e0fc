"""The device mirror: rows and batches as tensors, by hand."""

import pytest

torch = pytest.importorskip("torch")

from depthchart.cache.memory import Memory  # noqa: E402
from depthchart.device import RowTable, batch_tensors  # noqa: E402
from depthchart.errors import PoolExhausted  # noqa: E402
from depthchart.geometry import Geometry  # noqa: E402
from depthchart.scheduler.executor import Batch  # noqa: E402
from depthchart.scheduler.lifecycle import Lifecycle  # noqa: E402
from depthchart.tokens import Text  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_mirrored(device):
    table = RowTable(rows=2, row_tokens=10, page=4, device=device)
    assert table.pages.shape == (2, 3)
    row = table.update("a", [7])
    assert table.update("a", [7, 3]) == row
    assert table.pages[row].tolist() == [7, 3, -1]
    table.update("a", [7, 5, 1])  # a page was replaced by the tree's own
    assert table.pages[row].tolist() == [7, 5, 1]
    table.update("a", [7])
    assert table.pages[row].tolist() == [7, -1, -1]
    other = table.update("b", [2, 4])
    assert {row, other} == {0, 1}
    where = torch.tensor([row, other, other], device=device)
    slots = table.token_slots(where, torch.tensor([3, 0, 6], device=device))
    assert slots.tolist() == [7 * 4 + 3, 2 * 4 + 0, 4 * 4 + 2]
    table.release("a")
    assert table.free_rows == 1
    assert table.pages[row].tolist() == [-1, -1, -1]


def test_rows_run_out():
    table = RowTable(rows=1, row_tokens=8, page=4)
    table.update("a", [0])
    with pytest.raises(PoolExhausted, match="request 'b': all 1 rows are taken"):
        table.update("b", [1])
    with pytest.raises(PoolExhausted, match="request 'a': 3 pages; a row holds 2"):
        table.update("a", [0, 1, 2])
    assert table.pages.tolist() == [[0, -1]]
    with pytest.raises(ValueError, match="request='b': has no row; rows: a"):
        table.release("b")


@pytest.mark.parametrize("name", ["rows", "row_tokens", "page"])
def test_bad_sizes(name):
    with pytest.raises(ValueError, match=f"{name}=0: must be positive; nearest legal: 1"):
        RowTable(**{"rows": 1, "row_tokens": 1, "page": 1, name: 0})


def test_a_batch_of_one_prefill_and_one_decode():
    """Page 4, chunk 4. Request a has run [0, 8) and now decodes token 8; b extends [0, 6) with a snapshot at 4."""
    memory = Memory(Geometry(4, chunk_width=4, track_interval=4), 64, 8)
    life = Lifecycle(memory, "absolute")
    a = life.begin("a", Text(memory.index, [(1, 0, 9)]))
    life.commit_extend(life.plan_extend(a, 8))
    b = life.begin("b", Text(memory.index, [(2, 0, 6)]))
    extend, decode = life.plan_extend(b, 6), life.plan_decode(a)
    table = RowTable(rows=4, row_tokens=64, page=4)
    batch = batch_tensors(Batch(0, life.take_copies(), (extend,), (decode,), frozenset()), table)

    assert batch.starts.tolist() == [0, 8]
    assert batch.ends.tolist() == [6, 9]
    assert batch.cu_seqlens.tolist() == [0, 6, 7]
    assert batch.from_zero.tolist() == [True, False]
    assert batch.working.tolist() == [b.working, a.working]
    expected = [b.row[j // 4] * 4 + j % 4 for j in range(6)] + [a.row[2] * 4]
    assert batch.kv_slots.tolist() == expected
    assert batch.snapshots.tolist() == [[0, 4, extend.snapshots[0].slot]]
    assert batch.copies.shape == (0, 2)


def test_a_matched_state_is_copied_first_and_a_decode_checkpoint_is_a_snapshot():
    memory = Memory(Geometry(4, chunk_width=4, track_interval=4), 64, 12)
    life = Lifecycle(memory, "absolute")
    a = life.begin("a", Text(memory.index, [(1, 0, 8)]))
    life.commit_extend(life.plan_extend(a, 8))
    life.finish(a)
    b = life.begin("b", Text(memory.index, [(1, 0, 12)]))
    assert b.computed == 8
    node_state = b.lock.state
    copies = life.take_copies()
    life.commit_extend(life.plan_extend(b, 11))
    step = life.plan_decode(b)  # token 11 completes 12, which lies on the track grid of 4
    batch = batch_tensors(Batch(0, copies, (), (step,), frozenset()), RowTable(2, 64, 4))
    assert batch.copies.tolist() == [[node_state, b.working]]
    assert batch.snapshots.tolist() == [[0, 1, step.snapshot.slot]]
    assert batch.from_zero.tolist() == [False]
