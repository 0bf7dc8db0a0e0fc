"""The tensors behind the books: KV pages of all attention layers, state slots of all recurrent layers.

The allocator and the state pool of ``depthchart.cache`` hand out numbers; here is what lies under them. KV pages are
interleaved over the DCP ranks: token slot s lies on rank s mod D, at place s // D, so that each rank holds page_size
tokens of every tree page.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depthchart.engine.config import ModelConfig
from depthchart_kernels import copy_states

__all__ = ["CHECKPOINT_DTYPES", "KVPool", "StatePools"]

CHECKPOINT_DTYPES = ("fp32", "bf16", "int8")


class KVPool:
    """``layers[i]``: [local ranks, pages, page / D, heads, channels], keys and values side by side, of attention layer i.

    ``tokens``, ``page``: token slots of the allocator, and of one tree page; ``ranks``: D; ``local``: the ranks whose
    share lies in this process.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokens: int,
        page: int,
        *,
        ranks: int = 1,
        local: Sequence[int] = (0,),
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        for name, value, unit, by in (("page", page, "ranks", ranks), ("tokens", tokens, "page", page)):
            if value % by or value < 1:
                raise ValueError(
                    f"{name}={value}: must be a multiple of {unit}={by}; nearest legal: {max(1, round(value / by)) * by}"
                )
        self.ranks, self.local = ranks, tuple(local)
        # Poisoned: a token that is read before it was written shows at once.
        self.layers = [
            torch.full(
                [len(self.local), tokens // page, page // ranks, *config.kv_shape(block)],
                float("nan"),
                dtype=dtype,
                device=device,
            )
            for block in config.attention_layers
        ]

    def write(self, layer: int, slots: Tensor, values: Tensor) -> None:
        """Store ``values`` [tokens, heads, channels] at the token ``slots`` [tokens] that lie on local ranks."""
        pool = self.layers[layer].flatten(1, 2)  # a view: page and offset make one place
        owner, place = slots % self.ranks, slots // self.ranks
        if len(self.local) == self.ranks:
            pool[owner, place] = values.to(pool.dtype)
            return
        for at, rank in enumerate(self.local):
            mine = owner == rank
            pool[at, place[mine]] = values[mine].to(pool.dtype)

    @property
    def rank_bytes(self) -> int:
        """Bytes of one rank's share, all layers."""
        return sum(layer[0].numel() * layer.element_size() for layer in self.layers)


class StatePools:
    """``states[i]`` [slots, *state shape] and ``windows[i]`` [slots, channels, conv_width - 1] of recurrent layer i.

    The scan computes on these in float32. With ``checkpoint_dtype`` other than "fp32", whatever a checkpoint slot
    holds is also packed (bf16, or int8 with one scale for each head and row of the state; the convolution window in
    bf16), and a later request's copy is made from the packed one, as engines do that keep checkpoints small. Working
    states are never packed.
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        *,
        checkpoint_dtype: str = "fp32",
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        if checkpoint_dtype not in CHECKPOINT_DTYPES:
            raise ValueError(
                f"checkpoint_dtype={checkpoint_dtype!r}: must be one of {', '.join(CHECKPOINT_DTYPES)}; nearest: 'fp32'"
            )
        self.slots, self.checkpoint_dtype = slots, checkpoint_dtype
        window = config.conv_width - 1
        self.states = [
            torch.full([slots, *config.state_shape(block)], float("nan"), dtype=dtype, device=device)
            for block in config.recurrent_layers
        ]
        self.windows = [
            torch.full([slots, config.conv_channels(block), window], float("nan"), dtype=dtype, device=device)
            for block in config.recurrent_layers
        ]
        packed = checkpoint_dtype != "fp32"
        self._packed_states = [_Packed(pool, checkpoint_dtype) for pool in self.states] if packed else []
        self._packed_windows = [_Packed(pool, "bf16") for pool in self.windows] if packed else []

    def copy(self, copies: Tensor) -> None:
        """Copy whole slots, ``copies`` [c, 2] of (source, target), all layers: checkpoint to working state."""
        if not len(copies):
            return
        source, target = copies[:, 0], copies[:, 1]
        if not self._packed_states:
            copy_states([*self.states, *self.windows], source, target)
            return
        for packed, pool in zip(
            [*self._packed_states, *self._packed_windows], [*self.states, *self.windows], strict=True
        ):
            pool[target] = packed.read(source)

    def pack(self, slots: Tensor) -> None:
        """Store the checkpoints that a step has written to ``slots`` [s] in their own dtype."""
        if not len(slots) or not self._packed_states:
            return
        for packed, pool in zip(
            [*self._packed_states, *self._packed_windows], [*self.states, *self.windows], strict=True
        ):
            packed.write(slots.long(), pool[slots.long()])

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one stored checkpoint, all layers, scales included."""
        if self._packed_states:
            return sum(packed.slot_bytes for packed in [*self._packed_states, *self._packed_windows])
        return sum(pool[0].numel() * pool.element_size() for pool in [*self.states, *self.windows])


class _Packed:
    """One pool's checkpoints in a smaller dtype."""

    def __init__(self, pool: Tensor, kind: str) -> None:
        self.kind = kind
        dtype = torch.int8 if kind == "int8" else torch.bfloat16
        self.values = torch.zeros(pool.shape, dtype=dtype, device=pool.device)
        scales = pool.shape[:-1] if kind == "int8" else (0,)
        self.scales = torch.zeros(scales, dtype=torch.float32, device=pool.device)
        self.dtype = pool.dtype

    def write(self, slots: Tensor, states: Tensor) -> None:
        if self.kind == "bf16":
            self.values[slots] = states.to(torch.bfloat16)
            return
        largest = states.abs().amax(-1).float()
        scale = torch.where(largest > 0, largest / 127, 1.0)
        self.scales[slots] = scale
        self.values[slots] = (states / scale[..., None]).round().clamp(-127, 127).to(torch.int8)

    def read(self, slots: Tensor) -> Tensor:
        values = self.values[slots].to(self.dtype)
        return values if self.kind == "bf16" else values * self.scales[slots][..., None].to(self.dtype)

    @property
    def slot_bytes(self) -> int:
        values = self.values[0].numel() * self.values.element_size()
        return values + (self.scales[0].numel() * 4 if self.kind == "int8" else 0)
