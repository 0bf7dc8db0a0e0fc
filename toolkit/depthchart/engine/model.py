"""A small hybrid language model with random weights: attention on KV pages, recurrences on state slots.

It computes; it decides nothing. What is read and written, and where, is in the plan of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from depthchart.engine.attention import attend
from depthchart.engine.config import ATTENTION, RECURRENT, ModelConfig
from depthchart.engine.mixers import GatedDelta, KimiDelta, Mamba2, Recurrent
from depthchart.engine.norm import RMSNorm, rotate
from depthchart.engine.pools import KVPool, StatePools
from depthchart.engine.ranks import Ranks
from depthchart.engine.step import StepPlan
from depthchart_kernels.checks import Backend

__all__ = ["HybridModel", "build_model"]


def build_model(
    config: ModelConfig,
    *,
    chunk_width: int = 64,
    impl: Backend = "auto",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> HybridModel:
    """The model of a configuration; equal configurations have equal weights, on any device.

    ``chunk_width``: tokens a chunk of the scans (16, 32, 64, 128 or 256); results do not depend on it beyond rounding.
    ``impl``: the kernels' backend; "auto" is Triton on CUDA and plain torch elsewhere.
    """
    model = HybridModel(config, chunk_width, impl)
    _fill(model)
    return model.requires_grad_(False).eval().to(device=device, dtype=dtype)


class HybridModel(nn.Module):
    """Residual blocks over an embedding whose transpose is the head."""

    def __init__(self, config: ModelConfig, chunk_width: int, impl: Backend) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab, config.width))
        self.norms = nn.ModuleList(RMSNorm(config.width) for _ in config.pattern)
        self.blocks = nn.ModuleList(_blocks(config, chunk_width, impl))
        self.last_norm = RMSNorm(config.width)

    def forward(self, plan: StepPlan, kv: KVPool, states: StatePools, ranks: Ranks) -> Tensor:
        """Hidden rows [T, width] of a step's tokens, after the last norm; KV and states are written in place."""
        states.copy(plan.copies)
        x = self.embedding[plan.tokens]
        for norm, block in zip(self.norms, self.blocks, strict=True):
            y = norm(x)
            if isinstance(block, Recurrent):
                x = x + block(y, plan, states)
            elif isinstance(block, MLP):
                x = x + block(y)
            else:
                x = x + block(y, plan, kv, ranks)
        states.pack(plan.written)
        return self.last_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, vocab] by the tied head, scaled to a spread of about one."""
        return hidden @ self.embedding.T * (self.config.width**-0.5 / EMBEDDING_SPREAD)


class MLP(nn.Module):
    """silu(gate) * up, projected back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.out = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.up(x) * silu(self.gate(x)))


class GroupedAttention(nn.Module):
    """Attention with fewer key/value heads than query heads; caches keys and values."""

    def __init__(self, config: ModelConfig, layer: int, impl: Backend) -> None:
        super().__init__()
        self.config, self.layer, self.impl = config, layer, impl
        h, g, k = config.heads, config.kv_heads, config.head_dim
        self.q = nn.Linear(config.width, h * k, bias=False)
        self.kv = nn.Linear(config.width, 2 * g * k, bias=False)
        self.out = nn.Linear(h * k, config.width, bias=False)

    def forward(self, x: Tensor, plan: StepPlan, kv: KVPool, ranks: Ranks) -> Tensor:
        c = self.config
        q = rotate(self.q(x).unflatten(1, (c.heads, c.head_dim)), plan.positions, c.rope_dim)
        keys, values = self.kv(x).unflatten(1, (2, c.kv_heads, c.head_dim)).unbind(1)
        keys = rotate(keys, plan.positions, c.rope_dim)
        kv.write(self.layer, plan.kv_slots, torch.cat([keys, values], dim=-1))
        parts = attend(plan.attention, q, kv.layers[self.layer], c.head_dim, c.head_dim**-0.5, self.impl)
        return self.out(ranks.merge(*parts).to(x.dtype).flatten(1))


class LatentAttention(nn.Module):
    """MLA-style attention: caches one latent a token, and a rotating part that all heads share.

    A head's key is ``up_k @ latent``; instead of expanding every cached token, the query is multiplied by ``up_k``
    and the result by ``up_v`` (the absorbed form).
    """

    def __init__(self, config: ModelConfig, layer: int, impl: Backend) -> None:
        super().__init__()
        self.config, self.layer, self.impl = config, layer, impl
        h, k, latent = config.heads, config.head_dim, config.latent_dim
        self.q = nn.Linear(config.width, h * (k + config.rope_dim), bias=False)
        self.down = nn.Linear(config.width, latent + config.rope_dim, bias=False)
        self.norm = RMSNorm(latent)
        self.up_k = nn.Parameter(torch.empty(h, k, latent))
        self.up_v = nn.Parameter(torch.empty(h, k, latent))
        self.out = nn.Linear(h * k, config.width, bias=False)

    def forward(self, x: Tensor, plan: StepPlan, kv: KVPool, ranks: Ranks) -> Tensor:
        c = self.config
        q = self.q(x).unflatten(1, (c.heads, c.head_dim + c.rope_dim))
        q, q_rope = q[..., : c.head_dim], rotate(q[..., c.head_dim :], plan.positions, c.rope_dim)
        latent, rope = self.down(x).split([c.latent_dim, c.rope_dim], dim=1)
        rope = rotate(rope[:, None], plan.positions, c.rope_dim)
        kv.write(self.layer, plan.kv_slots, torch.cat([self.norm(latent)[:, None], rope], dim=-1))
        wide = torch.cat([torch.einsum("thk,hkl->thl", q, self.up_k), q_rope], dim=-1)
        scale = (c.head_dim + c.rope_dim) ** -0.5
        parts = attend(plan.attention, wide, kv.layers[self.layer], c.latent_dim, scale, self.impl)
        return self.out(torch.einsum("thl,hkl->thk", ranks.merge(*parts).to(x.dtype), self.up_v).flatten(1))


def _blocks(config: ModelConfig, chunk_width: int, impl: Backend) -> Iterator[nn.Module]:
    recurrent = {"gdn": GatedDelta, "kda": KimiDelta, "mamba2": Mamba2}
    attention = {"gqa": GroupedAttention, "mla": LatentAttention}
    count = {"attention": 0, "recurrent": 0}
    for name in config.pattern:
        kind = "attention" if name in ATTENTION else "recurrent" if name in RECURRENT else ""
        if not kind:
            yield MLP(config)
            continue
        layer, count[kind] = count[kind], count[kind] + 1
        if kind == "attention":
            yield attention[name](config, layer, impl)
        else:
            yield recurrent[name](config, layer, chunk_width, impl)


# --- weights ----------------------------------------------------------------------------------------------

EMBEDDING_SPREAD = 0.15
"""Standard deviation of embeddings: low enough that the last token does not decide the next one by itself, as
it would under a tied head."""


@torch.no_grad()
def _fill(model: HybridModel) -> None:
    """Seeded weights: variance-keeping projections, gates whose memories span ``half_lives``."""
    draw = torch.Generator().manual_seed(model.config.seed)
    for name, weight in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("a_log", "decay_bias", "skip") or name.endswith("norm.weight") or "norms." in name:
            continue
        spread = EMBEDDING_SPREAD if name == "embedding" else weight.shape[-1] ** -0.5
        if ".decay." in name:
            spread *= 0.5  # gates that vary, but keep near their half-life
        weight.copy_(torch.randn(weight.shape, generator=draw) * spread)
    for block in model.blocks:
        if isinstance(block, Recurrent):
            _set_memory(block)


def _set_memory(block: Recurrent) -> None:
    """Decay rates so that head i forgets half in about its half-life, from the shortest to the longest."""
    config, heads = block.config, block.config.state_heads
    shortest, longest = config.half_lives
    lives = torch.logspace(math.log10(shortest), math.log10(longest), heads)
    # softplus(0) = ln 2, so at a mean gate of 0 the decay is exp(a_log)·ln 2 nats a token: a half-life of exp(-a_log).
    block.a_log.copy_(-lives.log())
    block.decay_bias.zero_()
    if isinstance(block, Mamba2):
        block.skip.fill_(1.0)
