"""The specification against values that other implementations gave."""

import numpy as np
import pytest
import torch
from kernel_support import CASES, GOLDEN, POISON, error, golden
from torch.nn.functional import conv1d, silu

import depthchart_kernels as dk

DISTANCE = 6e-7  # how far the recorded paths lie from each other


@pytest.mark.parametrize("case", CASES)
def test_reference_gives_golden_values(case):
    call, (rows, output), finals, snapshots = golden(case)
    got, pool = call.run("reference")
    assert error(got[rows], output) < DISTANCE
    assert error(pool[torch.from_numpy(call.plan["final_slots"])], finals) < DISTANCE
    slots = torch.from_numpy(call.plan["snapshots"][:, 2])
    assert error(pool[slots], snapshots) < DISTANCE
    named = {*call.plan["initial_slots"], *call.plan["final_slots"], *slots.tolist()}
    rest = [slot for slot in range(call.slots) if slot not in named]
    assert rest
    assert bool((pool[rest] == POISON).all())


def test_gates_are_those_of_the_models():
    values = np.load(GOLDEN / "gates_activations.npz")
    file = {name: torch.from_numpy(values[name]) for name in values if name != "meta"}
    raw, a_log, bias = (file[name].float() for name in ("raw", "A_log", "bias"))
    assert error(dk.kda_gate(raw, a_log, bias), file["kda"]) < DISTANCE
    assert error(dk.kda_gate(raw, a_log, bias, lower_bound=-5.0), file["kda_lower_bound"]) < DISTANCE
    assert error(dk.gated_delta_gate(raw[..., 0], a_log, bias[:, 0]), file["gdn"]) < DISTANCE
    assert error(dk.l2norm(file["vec"].float()), file["l2norm"]) < DISTANCE
    assert bool((dk.l2norm(file["vec"].float())[0] == 0).all())


def test_gate_of_step_size_is_clamped_softplus():
    raw, bias = torch.tensor([[-50.0, 0.0, 30.0]]), torch.zeros(3)
    assert torch.allclose(
        dk.ssd_gate(raw, bias, 0.001, 10.0), torch.tensor([[0.001, np.log(2.0), 10.0]]).float()
    )
    assert torch.allclose(dk.beta_gate(torch.tensor([0.0])), torch.tensor([0.5]))
    with pytest.raises(ValueError, match="lower_bound is 5"):
        dk.kda_gate(torch.zeros(1, 1, 1), torch.zeros(1), torch.zeros(1, 1), lower_bound=5.0)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("activation", ["silu", None])
def test_convolution_against_torch(impl, width, activation):
    lengths, channels = [9, 0, 1, 2, 30], 6
    cu = np.concatenate([[0], np.cumsum(lengths)])
    x = torch.randn(cu[-1], channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight, bias = (
        torch.randn(channels, width, dtype=torch.float64),
        torch.randn(channels, dtype=torch.float64),
    )
    pool = torch.full([20, channels, width - 1], POISON, dtype=torch.float64)
    before = torch.randn(5, channels, width - 1, dtype=torch.float64)
    pool[:5] = before
    snapshots = [(0, 0, 10), (0, 1, 11), (0, 8, 12), (4, 30, 13), (4, 2, 14), (1, 0, 15), (2, 1, 16)]
    got = dk.causal_conv1d(
        x, weight, bias, activation, cu_seqlens=cu, pool=pool, initial_slots=[0, 1, 2, -1, 4], final_slots=[5, 6, 7, 8, 4],
        snapshots=snapshots, impl=impl,
    )  # fmt: skip
    before[3] = 0
    for s, slot in enumerate([5, 6, 7, 8, 4]):
        inputs = torch.cat([before[s], x[cu[s] : cu[s + 1]].T], dim=1)
        if lengths[s]:
            want = conv1d(inputs[None], weight[:, None], bias, groups=channels)[0].T
            want = silu(want) if activation else want
            assert error(got[cu[s] : cu[s + 1]], want) < 1e-12
        assert torch.equal(pool[slot], inputs[:, inputs.shape[1] - (width - 1) :])
        for of, depth, where in snapshots:
            if of == s:
                assert torch.equal(pool[where], inputs[:, depth : depth + width - 1])
    assert bool((pool[[9, 17, 18, 19]] == POISON).all())
