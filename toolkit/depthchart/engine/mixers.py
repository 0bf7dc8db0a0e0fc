"""The recurrent blocks: Mamba-2, gated delta net, Kimi delta attention; each with its short convolution.

Every block projects its input, convolves, computes its gates, runs its scan on the prefill rows and its step on the
decode rows, and projects back. State and convolution window live in pool slots and are cut at the same tokens, since
all operators share one plan. Letters: T packed tokens, C channels of the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

import depthchart_kernels as kernels
from depthchart.engine.config import ModelConfig
from depthchart.engine.norm import RMSNorm
from depthchart.engine.pools import StatePools
from depthchart.engine.step import StepPlan
from depthchart_kernels.checks import Backend

__all__ = ["GatedDelta", "KimiDelta", "Mamba2", "Recurrent"]

Operator = Callable[..., Tensor]


class Recurrent(nn.Module):
    """What the three have in common. ``layer``: its number among the recurrent layers; ``width``: of the scan's
    chunks; ``impl``: the kernels' backend."""

    kind = ""
    decay_bias: nn.Parameter

    def __init__(self, config: ModelConfig, layer: int, width: int, impl: Backend) -> None:
        super().__init__()
        self.config, self.layer, self.chunk_width, self.impl = config, layer, width, impl
        self.keys = config.key_heads * config.key_dim
        self.values = config.state_heads * config.value_dim
        channels = config.conv_channels(self.kind)
        self.mix = nn.Linear(config.width, channels, bias=False)
        self.gate = nn.Linear(config.width, self.values, bias=False)
        self.conv = nn.Parameter(torch.empty(channels, config.conv_width))
        # A wider eps: a first token whose query and key are nearly orthogonal would be blown up to unit size.
        self.norm = RMSNorm(config.value_dim, eps=1e-5)
        self.out = nn.Linear(self.values, config.width, bias=False)
        self.a_log = nn.Parameter(torch.empty(config.state_heads))

    def convolved(self, x: Tensor, plan: StepPlan, pools: StatePools) -> Tensor:
        """[T, channels] after the short convolution and its activation."""
        pool, weight = pools.windows[self.layer], self.conv

        def scan(x: Tensor) -> Tensor:
            return kernels.causal_conv1d(x, weight, batch=plan.scan, pool=pool, impl=self.impl)

        def step(x: Tensor) -> Tensor:
            return kernels.causal_conv1d_step(x, weight, None, pool, plan.decode, impl=self.impl)

        return _by_kind(plan, scan, step, self.mix(x))

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """[T, C] of the scan's output [T, heads, value_dim]: normalise a head, gate, project."""
        return self.out(self.norm(y).flatten(1) * silu(self.gate(x)))


class GatedDelta(Recurrent):
    """Gated delta net: one decay a head."""

    kind = "gdn"

    def __init__(self, config: ModelConfig, layer: int, width: int, impl: Backend) -> None:
        super().__init__(config, layer, width, impl)
        self.decay = nn.Linear(config.width, config.state_heads, bias=False)
        self.decay_bias = nn.Parameter(torch.empty(config.state_heads))
        self.beta = nn.Linear(config.width, config.state_heads, bias=False)

    def forward(self, x: Tensor, plan: StepPlan, pools: StatePools) -> Tensor:
        q, k, v = _delta_inputs(self, self.convolved(x, plan, pools))
        g = kernels.gated_delta_gate(self.decay(x), self.a_log, self.decay_bias)
        beta = kernels.beta_gate(self.beta(x))
        return self.gated(
            _delta(self, kernels.gated_delta, kernels.gated_delta_step, plan, pools)(q, k, v, g, beta), x
        )


class KimiDelta(Recurrent):
    """Kimi delta attention: one decay a channel."""

    kind = "kda"

    def __init__(self, config: ModelConfig, layer: int, width: int, impl: Backend) -> None:
        super().__init__(config, layer, width, impl)
        self.decay = nn.Linear(config.width, config.state_heads * config.key_dim, bias=False)
        self.decay_bias = nn.Parameter(torch.empty(config.state_heads, config.key_dim))
        self.beta = nn.Linear(config.width, config.state_heads, bias=False)

    def forward(self, x: Tensor, plan: StepPlan, pools: StatePools) -> Tensor:
        q, k, v = _delta_inputs(self, self.convolved(x, plan, pools))
        raw = self.decay(x).unflatten(1, (self.config.state_heads, self.config.key_dim))
        g = kernels.kda_gate(raw, self.a_log, self.decay_bias)
        beta = kernels.beta_gate(self.beta(x))
        return self.gated(_delta(self, kernels.kda, kernels.kda_step, plan, pools)(q, k, v, g, beta), x)


class Mamba2(Recurrent):
    """Mamba-2: one decay a head, from the step size."""

    kind = "mamba2"

    def __init__(self, config: ModelConfig, layer: int, width: int, impl: Backend) -> None:
        super().__init__(config, layer, width, impl)
        self.decay = nn.Linear(config.width, config.state_heads, bias=False)
        self.decay_bias = nn.Parameter(torch.empty(config.state_heads))
        self.skip = nn.Parameter(torch.empty(config.state_heads))

    def forward(self, x: Tensor, plan: StepPlan, pools: StatePools) -> Tensor:
        c = self.config
        read, write, value = self.convolved(x, plan, pools).split([self.keys, self.keys, self.values], dim=1)
        read, write = (z.unflatten(1, (c.key_heads, c.key_dim)) for z in (read, write))
        value = value.unflatten(1, (c.state_heads, c.value_dim))
        dt = kernels.ssd_gate(self.decay(x), self.decay_bias)
        a = -self.a_log.exp()
        pool = pools.states[self.layer]

        def scan(value: Tensor, dt: Tensor, write: Tensor, read: Tensor) -> Tensor:
            return kernels.ssd(
                value,
                dt,
                a,
                write,
                read,
                self.skip,
                batch=plan.scan,
                pool=pool,
                chunk_width=self.chunk_width,
                impl=self.impl,
            )

        def step(value: Tensor, dt: Tensor, write: Tensor, read: Tensor) -> Tensor:
            return kernels.ssd_step(value, dt, a, write, read, self.skip, pool, plan.decode, impl=self.impl)

        return self.gated(_by_kind(plan, scan, step, value, dt, write, read), x)


def _delta_inputs(block: Recurrent, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [T, key heads, key_dim] of unit length and v [T, heads, value_dim]."""
    c = block.config
    q, k, v = mixed.split([block.keys, block.keys, block.values], dim=1)
    q, k = (kernels.l2norm(z.unflatten(1, (c.key_heads, c.key_dim))) for z in (q, k))
    return q, k, v.unflatten(1, (c.state_heads, c.value_dim))


def _delta(block: Recurrent, scan: Operator, step: Operator, plan: StepPlan, pools: StatePools) -> Operator:
    pool = pools.states[block.layer]

    def on_prefill(*inputs: Tensor) -> Tensor:
        return scan(*inputs, batch=plan.scan, pool=pool, chunk_width=block.chunk_width, impl=block.impl)

    def on_decode(*inputs: Tensor) -> Tensor:
        return step(*inputs, pool, plan.decode, impl=block.impl)

    return lambda *inputs: _by_kind(plan, on_prefill, on_decode, *inputs)


def _by_kind(plan: StepPlan, scan: Operator, step: Operator, *inputs: Tensor) -> Tensor:
    """``scan`` on the tokens of prefill rows, ``step`` on those of decode rows, in one packed result."""
    at = plan.prefill_tokens
    if plan.decode is None:
        return scan(*inputs)
    if plan.scan is None:
        return step(*inputs)
    return torch.cat([scan(*(x[:at] for x in inputs)), step(*(x[at:] for x in inputs))])
