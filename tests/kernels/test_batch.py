"""Bad plans and bad inputs are refused before anything is computed, in words that name the way out."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from kernel_support import POISON, random_call

import depthchart_kernels as dk

CU = [0, 5, 5, 9]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"cu_seqlens": [1, 5]}, "cu_seqlens must start with 0"),
        ({"cu_seqlens": []}, "cu_seqlens must start with 0"),
        ({"cu_seqlens": [0, 5, 4]}, "entry 2 is 4 after 5; an empty sequence repeats 5"),
        ({"cu_seqlens": [0.0, 5.0]}, "cu_seqlens must be a one-dimensional list of whole numbers"),
        ({"initial_slots": [0, 1]}, "initial_slots must have 3 entries, one a sequence, got 2"),
        ({"initial_slots": [0, -2, 1]}, r"initial_slots\[1\] is -2; a slot is 0 or more, or −1"),
        ({"final_slots": [3, 3, -1]}, "slot 3 would be written twice, by sequence 0 and by sequence 1"),
        ({"final_slots": [3, -1, -1], "snapshots": [(2, 1, 3)]}, "slot 3 would be written twice"),
        ({"snapshots": [(0, 1, 3), (2, 1, 3)]}, "slot 3 would be written twice"),
        (
            {"initial_slots": [7, 8, -1], "final_slots": [8, -1, -1]},
            "slot 8 is the initial state of sequence 1",
        ),
        (
            {"initial_slots": [7, 8, -1], "snapshots": [(2, 0, 7)]},
            "slot 7 is the initial state of sequence 0",
        ),
        (
            {"initial_slots": [7, 7, -1], "final_slots": [7, -1, -1]},
            "slot 7 is the initial state of sequence 1",
        ),
        ({"snapshots": [(3, 0, 1)]}, "names sequence 3; legal are 0 to 2"),
        (
            {"snapshots": [(0, 6, 1)]},
            "depth 6 of sequence 0, which has 5 tokens .* legal are 0 to 5, the nearest is 5",
        ),
        ({"snapshots": [(0, -1, 1)]}, "the nearest is 0"),
        ({"snapshots": [(0, 1, -1)]}, "a snapshot needs a slot of 0 or more"),
        ({"snapshots": [(0, 1)]}, "snapshots must be triples"),
    ],
)
def test_bad_plan_is_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        dk.make_batch(**{"cu_seqlens": CU} | plan)


def test_legal_plans():
    batch = dk.make_batch(
        torch.tensor(CU, dtype=torch.int32),
        initial_slots=np.array([4, 4, -1]),
        final_slots=[-1, 6, 7],
        snapshots=[(2, 4, 1), (0, 5, 2), (2, 0, 3)],
    )
    assert (batch.tokens, batch.sequences, batch.highest_slot) == (9, 3, 7)
    assert batch.snapshot_sequences.tolist() == [0, 2, 2]
    assert batch.snapshot_depths.tolist() == [5, 0, 4]
    assert batch.snapshot_starts.tolist() == [0, 1, 1, 3]
    own = dk.make_batch([0, 3], initial_slots=[2], final_slots=[2])
    assert own.touches_states
    assert not dk.make_batch([0]).touches_states


@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"impl": "cuda"}, "impl is 'cuda'; legal are auto, reference, chunked, triton"),
        ({"chunk_width": 48}, "chunk_width is 48; legal are 16, 32, 64, 128, 256, the nearest is 32"),
        ({"pool": None}, "pool is None, but"),
        ({"pool": torch.zeros(9, 4, 24, 15)}, r"pool must have shape \[slots, 4, "),
        ({"cu_seqlens": [0, 3]}, "cu_seqlens ends at 3, but the inputs hold 7 tokens"),
        ({"batch": dk.make_batch([0, 7])}, "batch already holds cu_seqlens"),
        ({"final_slots": [100]}, "slot 100 is named, but pool has"),
    ],
)
def test_bad_call_is_refused_and_writes_nothing(op, options, words):
    call = random_call(op, [7], snapshots=[(0, 3)], initial=False)
    pool = call.pool()
    impl = {"impl": "reference"} | options
    given = options.get("pool", pool)
    rest = {name: value for name, value in impl.items() if name not in ("impl", "chunk_width", "pool")}
    with pytest.raises(ValueError, match=words):
        getattr(dk, op)(
            *call.tensors.values(),
            **dict(call.plan, pool=given, impl=impl["impl"], chunk_width=impl.get("chunk_width", 64)) | rest,
        )
    assert bool((pool == POISON).all())


@pytest.mark.parametrize(
    ("op", "name", "shape", "words"),
    [
        ("gated_delta", "k", (7, 2, 8), r"k must have shape \[7, 2, 16\]"),
        ("gated_delta", "v", (7, 3, 24), "v has 3 heads, which is no multiple of the 2 query/key heads"),
        ("gated_delta", "g", (7, 4, 16), r"g must have shape \[tokens, value_heads\]"),
        ("kda", "g", (7, 4), r"g must have shape \[tokens, value_heads, key_dim\]"),
        ("kda", "beta", (7, 2), r"beta must have shape \[7, 4\]"),
        ("ssd", "dt", (7, 2), r"dt must have shape \[7, 4\]"),
        ("ssd", "b", (7, 3, 16), "c must have shape"),
    ],
)
def test_bad_shapes_are_refused(op, name, shape, words):
    call = random_call(op, [7])
    call.tensors[name] = torch.zeros(*shape)
    with pytest.raises(ValueError, match=words):
        call.run("reference")


def test_import_leaves_triton_alone():
    code = "import sys, depthchart_kernels; print('triton' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
