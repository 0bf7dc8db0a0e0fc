"""Decode steps: equal to a scan of one token, in place, with tracked copies and padding rows."""

import numpy as np
import pytest
import torch
from kernel_support import BF16, FP32, POISON, error, random_call

import depthchart_kernels as dk

ROWS = 5
SLOTS, TRACK = [3, -1, 0, 7, 9], [4, -1, -1, 8, -1]


def step(call, pool, impl, slots, track=None):
    options = {} if call.op == "ssd" else {"scale": call.scale}
    return getattr(dk, f"{call.op}_step")(*call.tensors.values(), pool, slots, track, impl=impl, **options)


@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
@pytest.mark.parametrize(("impl", "limit"), [("reference", 1e-12), ("chunked", FP32)])
def test_step_is_a_scan_of_one_token(op, impl, limit):
    call = random_call(op, [1] * ROWS)
    kind = torch.float64 if impl == "reference" else torch.float32
    states = torch.randn(ROWS, *call.initial.shape[1:], dtype=torch.float64)
    pool = torch.full([12, *call.initial.shape[1:]], POISON, dtype=kind)
    for s, slot in enumerate(SLOTS):
        if slot >= 0:
            pool[slot] = states[s].to(kind)
    wide = torch.cat([states, torch.zeros_like(states)])
    options = {} if op == "ssd" else {"scale": call.scale}
    want = getattr(dk, op)(
        *call.tensors.values(), cu_seqlens=range(ROWS + 1), pool=wide, initial_slots=range(ROWS),
        final_slots=range(ROWS), impl="reference", **options,
    )  # fmt: skip
    got = step(call, pool, impl, SLOTS, TRACK)
    live = [0, 2, 3, 4]
    assert error(got[live], want[live]) < limit
    assert bool((got[1] == 0).all())
    for row in live:
        assert error(pool[SLOTS[row]], wide[row], 0) < limit
        if TRACK[row] >= 0:
            assert torch.equal(pool[TRACK[row]], pool[SLOTS[row]])
    assert bool((pool[[1, 2, 5, 6, 10, 11]] == POISON).all())


@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_decoding_goes_on_where_prefill_stopped(op):
    """A mixed batch: row 0 decodes, row 1 is prefilled; tokens of row 0 were scanned before."""
    call = random_call(op, [40], initial=False)
    whole, pool = call.run("reference", pool=call.pool(torch.float64))
    final = int(call.plan["final_slots"][0])
    mixed = torch.full([4, *call.initial.shape[1:]], POISON)
    cut = {name: value[:39] if value.shape[0] == 40 else value for name, value in call.tensors.items()}
    getattr(dk, op)(*cut.values(), pool=mixed, final_slots=[1], chunk_width=16)
    last = {name: value[39:] if value.shape[0] == 40 else value for name, value in call.tensors.items()}
    call.tensors = last
    got = step(call, mixed, "chunked", dk.make_step([1], [3]))
    assert error(got, whole[39:]) < FP32
    assert error(mixed[3], pool[final], 0) < FP32


def test_convolution_step_and_bf16_pool():
    x, weight = torch.randn(3, 6), torch.randn(6, 4)
    pool = torch.randn(5, 6, 3).bfloat16()
    before = pool.clone()
    got = dk.causal_conv1d_step(x, weight, None, pool, [0, 4, -1], [1, -1, -1])
    inputs = torch.cat([before[0].float(), x[0][:, None]], dim=1)
    assert error(got[:1], torch.nn.functional.silu((inputs * weight).sum(1))[None]) < BF16
    assert torch.equal(pool[1], pool[0])
    assert torch.equal(pool[0, :, :2], before[0, :, 1:])
    assert torch.equal(pool[[2, 3]], before[[2, 3]])
    assert bool((got[2] == 0).all())


@pytest.mark.parametrize(
    ("slots", "track", "words"),
    [
        ([0, 0], None, "slot 0 would be written twice"),
        ([0, 1], [1, -1], "slot 1 would be written twice"),
        ([0, 1], [2, 2], "slot 2 would be written twice"),
        ([0, -1], [-1, 3], r"track_slots\[1\] is 3, but row 1 is padding"),
        ([0, -3], None, r"slots\[1\] is -3"),
        ([0, 50], None, "slot 50 is named, but pool has"),
        ([0], None, "slots has 1 entries, but the inputs hold 2 rows"),
    ],
)
def test_bad_step_is_refused(slots, track, words):
    call = random_call("gated_delta", [1, 1])
    pool = torch.full([6, *call.initial.shape[1:]], POISON)
    with pytest.raises(ValueError, match=words):
        step(call, pool, "reference", np.array(slots), track)
    assert bool((pool == POISON).all())
