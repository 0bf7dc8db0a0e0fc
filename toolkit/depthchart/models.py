"""Hybrid models: how large their caches are, and how much a token costs them.

``MODELS["kimi-k3"]`` reads ``data/models.csv`` on first use; aliases and hub names find the same entry. Sizes are
bytes, work is floating-point operations (a multiply-add counts two), lengths are tokens. Formulas: docs/cost.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from depthchart.catalogue import Catalogue
from depthchart.errors import one_of

__all__ = ["DTYPE_BYTES", "MODELS", "Flops", "Model"]

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0, "float4": 0.5}
ATTENTION_KINDS = ("gqa", "mla")
RECURRENT_KINDS = ("gdn", "kda", "mamba2", "lightning", "mamba1", "shortconv")
_DELTA = ("gdn", "kda")


class Flops(NamedTuple):
    """Operations by part: all weights, attention between tokens, the recurrence (its convolution included)."""

    dense: float
    attention: float
    recurrent: float

    @property
    def total(self) -> float:
        return self.dense + self.attention + self.recurrent


@dataclass(frozen=True, slots=True)
class Model:
    """Geometry of one hybrid model.

    ``attention_kind``: ``gqa`` caches keys and values of ``kv_heads``; ``mla`` one latent of ``latent_dim`` and one
    rope part of ``rope_dim``. ``qk_dim`` and ``v_dim`` are sizes of one attention head. ``attention_topk``: a query
    reads at most so many cached tokens (0: all). ``key_dim`` and ``value_dim`` are the two sides of one head's
    state; for Mamba-2 the state size N and the head size P, with ``key_heads`` its groups; for Mamba-1 the state
    size and all inner channels, as one head. ``chunk_width``: the width of the model's usual scan kernel, None
    where nothing is scanned in chunks. Layers that are neither attention nor recurrent (expert or plain layers)
    count in ``layers`` alone; where both kinds work in parallel in one layer it counts in both.
    """

    name: str
    layers: int
    attention_layers: int
    attention_kind: str
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    recurrent_kind: str
    recurrent_layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    params: float
    active_params: float
    latent_dim: int = 0
    rope_dim: int = 0
    attention_topk: int = 0
    conv_kernel: int = 0
    conv_channels: int = 0
    chunk_width: int | None = 64
    hidden_size: int | None = None
    kv_dtype: str = "bfloat16"
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    family: str = ""
    grade: str = ""
    source: str = ""
    params_source: str = ""
    url: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        one_of("attention_kind", self.attention_kind, ATTENTION_KINDS)
        one_of("recurrent_kind", self.recurrent_kind, RECURRENT_KINDS)
        for name in ("kv_dtype", "state_dtype", "conv_dtype"):
            one_of(name, getattr(self, name), tuple(DTYPE_BYTES))
        if self.layers < max(self.attention_layers, self.recurrent_layers, 1):
            raise ValueError(
                f"layers={self.layers}: must be at least attention_layers={self.attention_layers} "
                f"and recurrent_layers={self.recurrent_layers}"
            )
        if not 0 < self.active_params <= self.params:
            raise ValueError(
                f"active_params={self.active_params!r}: must be above 0 and at most params={self.params!r}"
            )

    # --- bytes --------------------------------------------------------------------------------------------

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token over all attention layers."""
        return self.rank_kv_bytes_per_token()

    @property
    def state_bytes(self) -> int:
        """Bytes of one state checkpoint: recurrent states and convolution windows of all recurrent layers."""
        return self.recurrent_layers * self.layer_state_bytes

    @property
    def layer_state_bytes(self) -> int:
        """The same of one recurrent layer."""
        return self._layer_state_bytes(1)

    @property
    def state_in_kv_tokens(self) -> float:
        """So many tokens of KV are as large as one checkpoint."""
        return self.state_bytes / self.kv_bytes_per_token

    def attention_block_tokens(self, alignment: int = 16) -> int:
        """Tokens of an attention page that holds at least one recurrent layer's state, a multiple of
        ``alignment``: the block size that vLLM gives a hybrid model."""
        size = self.kv_bytes_per_token / self.attention_layers
        return int(-(-self.layer_state_bytes // (size * alignment))) * alignment

    def rank_kv_bytes_per_token(self, tp: int = 1, dcp: int = 1) -> float:
        """KV bytes that one rank stores for each token of a sequence, averaged over its tokens.

        ``tp`` ranks split the KV heads (each keeps at least one: heads are then held several times); ``dcp`` of
        them split a sequence's tokens instead. A latent has no heads to split.
        """
        check_ranks(tp, dcp)
        if self.attention_kind == "mla":
            layer: float = self.latent_dim + self.rope_dim
        else:
            layer = max(1.0, self.kv_heads * dcp / tp) * (self.qk_dim + self.v_dim)
        return self.attention_layers * layer * DTYPE_BYTES[self.kv_dtype] / dcp

    def rank_state_bytes(self, tp: int = 1) -> int:
        """Bytes of one checkpoint on one of ``tp`` ranks; they split the value heads."""
        heads = self.value_heads if self.value_heads > 1 else max(self.value_dim, self.conv_channels)
        if tp < 1 or heads % tp:
            legal = [n for n in range(1, heads + 1) if heads % n == 0]
            near = min(legal, key=lambda n: abs(n - tp))
            raise ValueError(f"tp={tp}: must divide the {heads} value heads of {self.name}; nearest: {near}")
        return self.recurrent_layers * self._layer_state_bytes(tp)

    def _layer_state_bytes(self, tp: int) -> int:
        state = self.value_heads * self.key_dim * self.value_dim * DTYPE_BYTES[self.state_dtype] / tp
        values = (
            self.value_heads * self.value_dim if self.recurrent_kind != "shortconv" else self.conv_channels
        )
        shared = max(
            self.conv_channels - values, 0
        )  # keys and queries, or B and C: by key heads, at least one each
        channels = (self.conv_channels - shared) / tp + shared / min(tp, max(self.key_heads, 1))
        window = max(self.conv_kernel - 1, 0) * channels * DTYPE_BYTES[self.conv_dtype]
        return round(state + window)

    # --- work ---------------------------------------------------------------------------------------------

    def flops_per_token(self, context: int = 0, chunk_width: int | None = None) -> Flops:
        """Operations of one prefill token that sees ``context`` tokens, itself included."""
        return self.prefill_flops(1, max(context - 1, 0), chunk_width)

    def prefill_flops(self, tokens: int, before: int = 0, chunk_width: int | None = None) -> Flops:
        """Operations of a prefill of ``tokens`` after ``before`` tokens that are cached."""
        return Flops(
            2.0 * self.active_params * tokens,
            self.attention_layers
            * 2.0
            * self.q_heads
            * (self.qk_dim + self.v_dim)
            * self.attended(tokens, before),
            self.recurrent_layers * self.scan_flops(chunk_width) * tokens,
        )

    def decode_flops(self, context: int) -> Flops:
        """Operations of one decode token that sees ``context`` tokens, itself included. A latent is attended to as
        it lies (each head's query is brought to its size), and the recurrence runs token by token."""
        return Flops(
            2.0 * self.active_params,
            self.attention_layers * 2.0 * self.q_heads * self.decode_width * self.attended(1, context - 1),
            self.recurrent_layers * self.scan_flops(0),
        )

    @property
    def decode_width(self) -> int:
        """Numbers that a decode query's head multiplies with each cached token: a key and a value, or the latent
        twice and its rope part once."""
        return (
            2 * self.latent_dim + self.rope_dim if self.attention_kind == "mla" else self.qk_dim + self.v_dim
        )

    def attended(self, tokens: int, before: int = 0) -> float:
        """Pairs of query and cached token in one layer: token i of ``tokens`` sees ``before`` + i, at most
        ``attention_topk`` of them."""
        top = self.attention_topk
        full = tokens if not top else min(max(top - before, 0), tokens)  # queries that still see everything
        return full * before + full * (full + 1) / 2 + (tokens - full) * top

    def scan_flops(self, chunk_width: int | None = None) -> float:
        """Operations a token and recurrent layer. ``chunk_width`` None: the model's own; 0: token by token."""
        width = (self.chunk_width or 0) if chunk_width is None else chunk_width
        key, value, heads = self.key_dim, self.value_dim, self.value_heads
        conv = 2.0 * self.conv_kernel * self.conv_channels
        if self.recurrent_kind in _DELTA:
            return conv + heads * (6 * key * value + 4 * width * (key + value) + 2 / 3 * width**2)
        if self.recurrent_kind == "mamba2":
            return conv + heads * (4 * key * value + 2 * width * value) + 2 * width * key * self.key_heads
        if self.recurrent_kind == "lightning":
            return conv + heads * (4 * key * value + 2 * width * (key + value))
        if self.recurrent_kind == "mamba1":
            return conv + heads * 6 * key * value
        return conv

    def scan_traffic(self) -> float:
        """Bytes a token and recurrent layer that a fully fused scan must read and write besides the state: its
        inputs and outputs in 16 bits, gates in 32 (KDA's gate a channel in 16)."""
        key, value, heads = self.key_dim, self.value_dim, self.value_heads
        keys = self.key_heads * key
        if self.recurrent_kind == "gdn":
            return 4.0 * keys + heads * (4 * value + 8)
        if self.recurrent_kind == "kda":
            return 4.0 * keys + heads * (4 * value + 4 + 2 * key)
        if self.recurrent_kind == "mamba2":
            return heads * (4.0 * value + 4) + 8 * keys
        if self.recurrent_kind == "lightning":
            return 4.0 * keys + heads * 4 * value
        if self.recurrent_kind == "mamba1":
            return heads * (6.0 * value + 4 * key)
        return 8.0 * self.conv_channels

    def touched_params(self, tokens: int) -> float:
        """Parameters that a batch of ``tokens`` reads. One token reads ``active_params``; every further one misses
        what is left with chance 1 - active/params, as if experts were drawn evenly."""
        share = self.active_params / self.params
        return self.params * (1.0 - (1.0 - share) ** max(tokens, 0))


# --- helpers ----------------------------------------------------------------------------------------------


def check_ranks(tp: int, dcp: int) -> None:
    """Raise ValueError unless ``dcp`` divides ``tp`` and both are positive."""
    if tp < 1:
        raise ValueError(f"tp={tp}: must be at least 1")
    if dcp < 1 or tp % dcp:
        near = min((n for n in range(1, tp + 1) if tp % n == 0), key=lambda n: abs(n - dcp))
        raise ValueError(f"dcp={dcp}: must divide tp={tp}; nearest: {near}")


_WORDS = {"name", "attention_kind", "recurrent_kind", "kv_dtype", "state_dtype", "conv_dtype"}
_WORDS |= {"family", "grade", "source", "params_source", "url", "note"}


def _build(row: dict[str, str]) -> Model:
    values: dict[str, object] = {
        field.name: row[field.name] if field.name in _WORDS else int(row[field.name])
        for field in fields(Model)
        if field.name not in ("params", "active_params")
    }
    values["params"] = float(row["params_billion"]) * 1e9
    values["active_params"] = float(row["active_billion"]) * 1e9
    for name in ("chunk_width", "hidden_size"):  # an empty answer is written 0 in the file
        values[name] = values[name] or None
    return Model(**values)  # type: ignore[arg-type]


def _names(row: dict[str, str]) -> list[str]:
    return [*row["aliases"].split(), row["url"]]


MODELS = Catalogue("model", "models.csv", _build, _names)
