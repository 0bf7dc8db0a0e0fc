"""What a small hybrid model looks like: its blocks in order, and the sizes of each kind of block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from depthchart.errors import one_of

__all__ = ["ATTENTION", "BLOCKS", "PRESETS", "RECURRENT", "ModelConfig", "preset"]

ATTENTION: Final = ("gqa", "mla")
RECURRENT: Final = ("mamba2", "gdn", "kda")
BLOCKS: Final = (*ATTENTION, *RECURRENT, "mlp")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a model. Blocks are residual: x + block(norm(x)).

    Parameters
    ----------
    pattern: the blocks in order, each one of ``BLOCKS``.
    vocab, width, mlp_width: tokens known, channels of the residual stream, channels inside an MLP.
    heads, kv_heads, head_dim: query heads, key/value heads (GQA only) and size of one head.
    rope_dim: channels of a head that rotate with the position; 0 means no positions (Kimi-Linear, Nemotron-H).
    latent_dim: channels of the latent that MLA caches a token, besides its ``rope_dim`` rotating ones.
    state_heads, key_heads: heads that hold a recurrent state, and the groups that share keys (B and C in Mamba-2).
    key_dim, value_dim: the two sides of one head's state (N and P in Mamba-2).
    conv_width: tokens seen by the short convolution before a scan.
    half_lives: shortest and longest memory of the recurrent heads, in tokens, at the mean gate.
    seed: of the random weights.

    Raises ValueError naming the argument, its value and the nearest legal one.
    """

    name: str
    pattern: tuple[str, ...]
    vocab: int = 512
    width: int = 64
    mlp_width: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    rope_dim: int = 0
    latent_dim: int = 24
    state_heads: int = 4
    key_heads: int = 2
    key_dim: int = 16
    value_dim: int = 24
    conv_width: int = 4
    half_lives: tuple[float, float] = (4.0, 2000.0)
    seed: int = 0

    def __post_init__(self) -> None:
        for at, block in enumerate(self.pattern):
            one_of(f"pattern[{at}]", block, BLOCKS)
        if not self.pattern:
            raise ValueError("pattern=(): must have at least one block; nearest legal: ('mlp',)")
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("rope_dim", "seed") else 2 if field.name == "conv_width" else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{field.name}={value}: must be at least {least}; nearest legal: {least}")
        for name, groups in (("heads", "kv_heads"), ("state_heads", "key_heads")):
            _check_groups(name, getattr(self, name), groups, getattr(self, groups))
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(
                f"rope_dim={self.rope_dim}: must be even and at most head_dim={self.head_dim}; "
                f"nearest legal: {min(self.rope_dim, self.head_dim) // 2 * 2}"
            )

    @property
    def attention_layers(self) -> tuple[str, ...]:
        """The attention blocks, in order."""
        return tuple(block for block in self.pattern if block in ATTENTION)

    @property
    def recurrent_layers(self) -> tuple[str, ...]:
        """The recurrent blocks, in order."""
        return tuple(block for block in self.pattern if block in RECURRENT)

    def conv_channels(self, block: str) -> int:
        """Channels that a recurrent block convolves before its scan."""
        keys, values = self.key_heads * self.key_dim, self.state_heads * self.value_dim
        return 2 * keys + values

    def state_shape(self, block: str) -> tuple[int, int, int]:
        """One token depth's state of a recurrent block: [heads, key, value], in Mamba-2 [heads, P, N]."""
        sides = (self.value_dim, self.key_dim) if block == "mamba2" else (self.key_dim, self.value_dim)
        return (self.state_heads, *sides)

    def kv_shape(self, block: str) -> tuple[int, int]:
        """What an attention block caches a token: [heads, channels], keys and values side by side."""
        if block == "mla":
            return 1, self.latent_dim + self.rope_dim
        return self.kv_heads, 2 * self.head_dim

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that all attention blocks together cache a token."""
        shapes = (self.kv_shape(block) for block in self.attention_layers)
        return sum(heads * channels for heads, channels in shapes)


def preset(name: str, **changes: Any) -> ModelConfig:
    """A scaled-down layer pattern by name (``PRESETS``), with some fields changed.

    Raises ValueError for an unknown name, giving the nearest one.
    """
    return replace(PRESETS[one_of("preset", name, PRESETS)], **changes)


def _check_groups(name: str, heads: int, groups_name: str, groups: int) -> None:
    if heads % groups:
        nearest = max(1, round(heads / groups)) * groups
        raise ValueError(
            f"{name}={heads}: must be a multiple of {groups_name}={groups}; nearest legal: {nearest}"
        )


def _with_mlps(*mixers: str) -> tuple[str, ...]:
    return tuple(block for mixer in mixers for block in (mixer, "mlp"))


# Ratios and kinds of the named models; sizes are ours.
PRESETS: Final[Mapping[str, ModelConfig]] = {
    "kimi-linear": ModelConfig("kimi-linear", _with_mlps("kda", "kda", "kda", "mla"), key_heads=4),
    "qwen3-next": ModelConfig("qwen3-next", _with_mlps("gdn", "gdn", "gdn", "gqa"), rope_dim=8),
    "nemotron-h": ModelConfig(
        "nemotron-h", ("mamba2", "mlp", "mamba2", "mlp", "mamba2", "gqa", "mlp", "mamba2", "mlp"), key_heads=1
    ),
    "all-kinds": ModelConfig("all-kinds", ("kda", "mla", "gdn", "mlp", "mamba2", "gqa"), rope_dim=8),
}
