"""The Triton backend without a GPU: interpreted in one process (the environment decides at import)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_support import random_call

HERE = Path(__file__).parent


def test_kernels_interpreted():
    pytest.importorskip("triton")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        str(HERE / "interpreted.py"),
    ]
    shown = subprocess.run(argv, env=env, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout[-4000:] + shown.stderr[-2000:]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels take CPU tensors")
@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_cpu_tensors_are_refused(op):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="needs CUDA tensors, got cpu; on CPU use 'chunked' or 'reference'"):
        random_call(op, [5]).run("triton", 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", ["gated_delta", "kda", "ssd"])
def test_on_a_gpu(op, dtype, width):
    from kernel_support import BF16, FP32, error

    if width == 128 and op != "gated_delta" and dtype == torch.bfloat16:
        pytest.skip("refused by name, see interpreted.py")
    call = random_call(op, [300, 0, 1, 65], k=128, v=128, snapshots=[(0, 37), (0, 256), (3, 64)])
    want, right = call.run("reference", pool=call.pool(torch.float64))
    call.tensors = {name: x.cuda() for name, x in call.tensors.items()}
    got, pool = call.run("triton", width, dtype, pool=call.pool().cuda())
    limit = BF16 if dtype == torch.bfloat16 else FP32
    assert error(got.cpu(), want) <= limit
    for slot in range(call.slots):
        assert error(pool[slot].cpu(), right[slot], 0) <= limit
