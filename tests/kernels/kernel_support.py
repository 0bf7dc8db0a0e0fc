"""Inputs, goldens and the error measure that all kernel tests share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import depthchart_kernels as dk

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*_*.npz") if path.stem != "gates_activations")
POISON = 1e30
FP32, BF16 = 5e-6, 1e-2  # largest difference over largest magnitude, worst head


def error(got, want, head_dim=1):
    """Largest difference over largest magnitude, of the worst head; infinite where something is not finite."""
    got, want = got.detach().double().movedim(head_dim, 0), want.detach().double().movedim(head_dim, 0)
    assert got.shape == want.shape
    if got.numel() == 0:
        return 0.0
    if not torch.isfinite(got).all():
        return float("inf")
    got, want = got.flatten(1), want.flatten(1)
    size = want.abs().amax(1).clamp(min=1e-30)
    return float(((got - want).abs().amax(1) / size).max())


@dataclass
class Call:
    """One call of a scan: operator, tensors by name, plan, and a pool that is poisoned outside its initial slots."""

    op: str
    tensors: dict
    plan: dict
    initial: torch.Tensor  # [sequences, ...state]
    slots: int
    scale: float | None = None

    def pool(self, dtype=torch.float32):
        pool = torch.full([self.slots, *self.initial.shape[1:]], POISON, dtype=dtype)
        for s, slot in enumerate(self.plan["initial_slots"]):
            if slot >= 0:
                pool[slot] = self.initial[s].to(dtype)
        return pool

    def run(self, impl, width=64, dtype=None, pool=None, **changes):
        """(output, pool) of the call; ``dtype`` casts the operands that a model holds in its activation dtype."""
        tensors = dict(self.tensors)
        if dtype is not None:
            for name in ("q", "k", "v", "x", "b", "c"):
                if name in tensors:
                    tensors[name] = tensors[name].to(dtype)
        pool = self.pool() if pool is None else pool
        options = dict(self.plan, pool=pool, impl=impl, chunk_width=width) | changes
        if self.op != "ssd":
            options["scale"] = self.scale
        return getattr(dk, self.op)(*tensors.values(), **options), pool

    def check(self, impl, width, limit, dtype=None, against="reference"):
        """Outputs and every written slot agree with the reference; untouched slots keep their poison."""
        got, pool = self.run(impl, width, dtype)
        want, right = self.run(against, width, pool=self.pool(torch.float64))
        assert got.dtype == (dtype or want.dtype)
        assert error(got, want) <= limit, f"output off by {error(got, want):.2e}"
        for slot in range(self.slots):
            off = error(pool[slot], right[slot], 0)
            assert off <= limit, f"slot {slot} off by {off:.2e}"


NAMES = {"gdn": "gated_delta", "kda": "kda", "ssd": "ssd"}


def golden(case):
    """(call, wanted output rows, wanted finals, wanted snapshots) of a golden case; slots are shuffled."""
    file = np.load(GOLDEN / f"{case}.npz")
    meta = json.loads(str(file["meta"]))
    op = NAMES[meta["op"]]
    names = ("x", "dt", "A", "B", "C", "D") if op == "ssd" else ("q", "k", "v", "g", "beta")
    tensors = {name.lower(): torch.from_numpy(file[name]).float() for name in names}
    sequences, count = len(file["cu_seqlens"]) - 1, len(file["snapshot_seq"])
    slots = 2 * sequences + count + 3
    order = np.random.default_rng(0).permutation(slots)
    plan = {
        "cu_seqlens": file["cu_seqlens"],
        "initial_slots": order[:sequences],
        "final_slots": order[sequences : 2 * sequences],
        "snapshots": np.stack(
            [file["snapshot_seq"], file["snapshot_depth"], order[2 * sequences : 2 * sequences + count]],
            axis=1,
        ),
    }
    initial = torch.from_numpy(file["initial_state"]).float()
    call = Call(op, tensors, plan, initial, slots, meta["scale"])
    rows = torch.from_numpy(file["output_rows"]).long()
    return (
        call,
        (rows, torch.from_numpy(file["output"])),
        *(torch.from_numpy(file[name]) for name in ("final_state", "snapshot_state")),
    )


def unit(generator, *shape):
    x = torch.randn(*shape, generator=generator)
    return x / x.norm(dim=-1, keepdim=True)


def decay(generator, kind, *shape):
    """Log decays: mild, harsh (to −40 a token, −400 and more a chunk), erase (single −300 among mild), mixed, none."""
    u = torch.rand(*shape, generator=generator)
    if kind == "none":
        return torch.zeros(*shape)
    if kind == "harsh":
        return -40 * u**3
    g = -0.001 - 0.1 * u
    if kind == "erase":
        g = torch.where(
            torch.rand(*shape[:1], generator=generator).view(-1, *[1] * (len(shape) - 1)) < 0.06, -300.0, g
        )
    if kind == "mixed":
        g[..., ::3] = -30.0 - 10 * u[..., ::3]
    return g


def random_call(
    op,
    lengths,
    *,
    heads=2,
    value_heads=4,
    k=16,
    v=24,
    gate="mild",
    snapshots=(),
    seed=0,
    parallel=False,
    initial=True,
):
    """A random call with state for every second sequence, finals everywhere, and the asked (sequence, depth) snapshots."""
    r = torch.Generator().manual_seed(seed)
    total, n = sum(lengths), len(lengths)
    if op == "ssd":
        dt = torch.rand(total, value_heads, generator=r) * 0.5 + 0.01
        a = -torch.rand(value_heads, generator=r) * (4 if gate != "harsh" else 80) - 0.05
        if gate == "erase":
            dt = torch.where(torch.rand(total, 1, generator=r) < 0.05, 200.0, dt)
        if gate == "none":
            a = torch.full([value_heads], -1e-7)
        tensors = {"x": torch.randn(total, value_heads, v, generator=r), "dt": dt, "a": a}
        tensors |= {name: torch.randn(total, heads, k, generator=r) for name in ("b", "c")}
        tensors["d"] = torch.randn(value_heads, generator=r)
        shape = [n, value_heads, v, k]
    else:
        q, key = unit(r, total, heads, k), unit(r, total, heads, k)
        if parallel:
            base = unit(r, 1, heads, k)
            key = base + 0.1 * key
            key = key / key.norm(dim=-1, keepdim=True)
        size = (total, value_heads, k) if op == "kda" else (total, value_heads)
        beta = torch.rand(total, value_heads, generator=r)
        beta = 0.98 + 0.02 * beta if parallel else beta
        value = torch.randn(total, value_heads, v, generator=r)
        tensors = {"q": q, "k": key, "v": value, "g": decay(r, gate, *size), "beta": beta}
        shape = [n, value_heads, k, v]
    slots = 2 * n + len(snapshots) + 2
    order = np.random.default_rng(seed).permutation(slots)
    first = np.where((np.arange(n) % 2 == 0) & initial, order[:n], -1)
    plan = {
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "initial_slots": first,
        "final_slots": order[n : 2 * n],
        "snapshots": [(s, d, int(slot)) for (s, d), slot in zip(snapshots, order[2 * n :], strict=False)],
    }
    return Call(op, tensors, plan, torch.randn(*shape, generator=r), slots)
