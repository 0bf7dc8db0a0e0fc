"""The Triton backend without a GPU: interpreted in one process (the environment decides at import)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_support import CASES, random_call

HERE = Path(__file__).parent


def interpreted(*more):
    pytest.importorskip("triton")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    file = str(HERE / "interpreted.py")
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *more, file]
    shown = subprocess.run(argv, env=env, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout[-4000:] + shown.stderr[-2000:]


def test_kernels_interpreted():
    interpreted("-m", "not slow")


@pytest.mark.slow
def test_every_width_gate_and_size_interpreted():
    interpreted("-m", "slow")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels take CPU tensors")
@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_cpu_tensors_are_refused(op):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="needs CUDA tensors, got cpu; on CPU use 'chunked' or 'reference'"):
        random_call(op, [5]).run("triton", 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("dtype", "size", "split"),
    [(torch.bfloat16, size, split) for size in (128, 256) for split in (1, 2)]
    + [(torch.float32, 128, 1), (torch.float32, 128, 2)],
)
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_on_a_gpu(op, dtype, width, size, split, monkeypatch):
    from kernel_support import BF16, FP32, error

    from depthchart_kernels.triton import plan

    monkeypatch.setattr(plan, "choose_pieces", lambda *_: split)
    marks = [(0, 37), (0, 256), (0, 299), (3, 64)]
    call = random_call(op, [300, 0, 1, 65], k=size, v=128, snapshots=marks)
    want, right = call.run("reference", pool=call.pool(torch.float64))
    call.tensors = {name: x.cuda() for name, x in call.tensors.items()}
    got, pool = call.run("triton", width, dtype, pool=call.pool().cuda())
    limit = BF16 if dtype == torch.bfloat16 else FP32
    assert error(got.cpu(), want) <= limit
    for slot in range(call.slots):
        assert error(pool[slot].cpu(), right[slot], 0) <= limit


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_goldens_on_cuda(case, dtype, width):
    """Every recorded case on every configuration of the tuning table."""
    from kernel_support import BF16, FP32, error, golden

    call, (rows, output), finals, marks = golden(case)
    limit = BF16 if dtype == torch.bfloat16 else FP32
    call.tensors = {name: x.cuda() for name, x in call.tensors.items()}
    got, pool = call.run("triton", width, dtype, pool=call.pool().cuda())
    assert error(got.cpu()[rows], output) <= limit
    written = pool.cpu()
    for slots, states in ((call.plan["final_slots"], finals), (call.plan["snapshots"][:, 2], marks)):
        for slot, state in zip(slots, states, strict=True):
            assert error(written[slot], state, 0) <= limit
