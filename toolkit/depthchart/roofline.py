"""Seconds of a step from a model's work and a device's peak rates.

``Roofline.of("qwen3.5-27b", "h200", tp=2).step_s(work)``; formulas and sources: docs/cost.md. Each part of a step
takes the longer of its operations at a share of the peak rate and its bytes at a share of the bandwidth; the parts
follow one another. Times are seconds, sizes bytes, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from depthchart.errors import one_of
from depthchart.hardware import HARDWARE, Hardware
from depthchart.kernel_tables import KernelTable, Shape
from depthchart.models import DTYPE_BYTES, MODELS, Model, check_ranks
from depthchart.scheduler.work import Work

__all__ = ["SCAN_SHARES", "Efficiency", "Roofline", "StepTime"]

ACTIVATION_BYTES = 2  # activations travel between ranks in 16 bits
SCAN_CHUNK = 64  # tokens of the chunk whose step Hardware.scan_chunk_s times

# Share of the peak rate that a published kernel of each kind reached (docs/cost.md names shapes and devices).
SCAN_SHARES = {"gdn": 0.42, "kda": 0.09, "mamba2": 0.15, "lightning": 0.15, "mamba1": 0.1, "shortconv": 0.1}


class StepTime(NamedTuple):
    """Seconds of one step by part."""

    dense: float = 0.0
    prefill_attention: float = 0.0
    decode_attention: float = 0.0
    prefill_scan: float = 0.0
    decode_scan: float = 0.0
    communication: float = 0.0
    state_copies: float = 0.0
    overhead: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peak rates that are really reached (above 0, at most 1): ``dense`` and ``attention`` of the
    FLOP/s, ``bandwidth`` of the bytes/s, ``scan`` of the FLOP/s in a chunked scan (None: by kind, SCAN_SHARES);
    ``step_s``: seconds that every step costs besides (scheduler, sampling, launches)."""

    dense: float = 0.6
    attention: float = 0.5
    bandwidth: float = 0.8
    scan: float | None = None
    step_s: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("dense", "attention", "bandwidth", "scan"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                near = 1 if share > 1 else 0.1
                raise ValueError(f"{name}={share!r}: must be above 0 and at most 1; nearest: {near}")
        if self.step_s < 0:
            raise ValueError(f"step_s={self.step_s!r}: must be 0 or more seconds")


class _Rates(NamedTuple):
    """What does not change from step to step, of one rank."""

    dense_flops_s: float
    attention_flops_s: float
    scan_flops_s: float
    bytes_s: float
    weight_bytes_per_param: float
    kv_token: float  # bytes of one token on the rank
    state: float  # bytes of one checkpoint on the rank
    scan_flops: float  # of all recurrent layers, a prefill token
    scan_bytes: float
    scan_chunk: int
    scan_chunk_s: float  # of all recurrent layers
    step_scan_flops: float  # of all recurrent layers, a decode token
    shape: Shape
    measured: bool  # the table answers for the shape


@dataclass(frozen=True, slots=True)
class Roofline:
    """A CostModel: ``step_s(work)`` is an estimate from data-sheet rates, ``assumptions`` says on what it rests.

    ``tp`` tensor-parallel ranks, each on one ``hardware``, split weights, heads and states; ``dcp`` of them share
    each sequence's KV by tokens (dcp divides tp). ``weight_dtype``: a key of DTYPE_BYTES. ``chunk_width``: of the
    scan (default: the model's own). ``table``: measured scan times, used where they hold this model's shape.
    """

    model: Model
    hardware: Hardware
    tp: int = 1
    dcp: int = 1
    weight_dtype: str = "bfloat16"
    chunk_width: int | None = None
    efficiency: Efficiency = field(default_factory=Efficiency)
    table: KernelTable | None = None
    _rates: _Rates = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_ranks(self.tp, self.dcp)
        one_of("weight_dtype", self.weight_dtype, DTYPE_BYTES)
        if self.chunk_width is not None and self.chunk_width < 1:
            raise ValueError(f"chunk_width={self.chunk_width}: must be at least 1 token; nearest: 1")
        if self.tp > 1 and not self.hardware.link_bytes_s:
            raise ValueError(f"tp={self.tp}: {self.hardware.name} has no link between devices; nearest: 1")
        if self.tp > 1 and self.model.hidden_size is None:
            raise ValueError(
                f"tp={self.tp}: the hidden size of {self.model.name} is not known, and the traffic between ranks "
                "depends on it; pass dataclasses.replace(model, hidden_size=...), or tp=1"
            )
        object.__setattr__(self, "_rates", self._make_rates())

    @classmethod
    def of(
        cls,
        model: str | Model,
        hardware: str | Hardware,
        *,
        tp: int = 1,
        dcp: int = 1,
        weight_dtype: str = "bfloat16",
        chunk_width: int | None = None,
        efficiency: Efficiency | None = None,
        table: KernelTable | None = None,
    ) -> Roofline:
        """The same by names: of MODELS and HARDWARE."""
        return cls(
            MODELS[model] if isinstance(model, str) else model,
            HARDWARE[hardware] if isinstance(hardware, str) else hardware,
            tp,
            dcp,
            weight_dtype,
            chunk_width,
            efficiency or Efficiency(),
            table,
        )

    def step_s(self, work: Work) -> float:
        """Seconds of one step; a step without work takes none."""
        return self.parts(work).total

    def parts(self, work: Work) -> StepTime:
        """The same by part."""
        if not (work.prefill or work.decode or work.state_copies):
            return StepTime()
        tokens = work.prefill_tokens + len(work.decode)
        return StepTime(
            self._dense(tokens),
            self._prefill_attention(work.prefill),
            self._decode_attention(work.decode),
            self._prefill_scan(work.prefill),
            self._decode_scan(len(work.decode)),
            self._communication(tokens, len(work.decode)),
            2 * work.state_copies * self._rates.state / self._rates.bytes_s,
            self.efficiency.step_s,
        )

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights on each rank."""
        return self.model.params * self._rates.weight_bytes_per_param / self.tp

    @property
    def measured(self) -> bool:
        """Whether the table answers for this model's scan on this hardware, so that it is used."""
        return self._rates.measured

    @property
    def assumptions(self) -> str:
        """On what the times rest, in words: printed beside every result."""
        e, h, m = self.efficiency, self.hardware, self.model
        chunks = f"chunks of {self._rates.scan_chunk}" if m.chunk_width else "token by token"
        scan = f"scan {self._scan_share:.0%}, {chunks}"
        if self.measured and self.table is not None:
            scan = f"scan measured ({self.table.source(self._rates.shape)})"
        elif self.table is not None:
            scan += f" ({self.table.name} has no {m.recurrent_kind} of this shape on {h.name})"
        split = f"{self.tp} x {h.name}" + (f", KV shared by {self.dcp}" if self.dcp > 1 else "")
        said = [
            f"roofline (estimated, not measured): {m.name} on {split}, weights {self.weight_dtype}, "
            f"KV {m.kv_dtype}, states {m.state_dtype}",
            f"shares of the peak: dense {e.dense:.0%}, attention {e.attention:.0%}, memory {e.bandwidth:.0%}; {scan}",
            f"{e.step_s * 1e3:g} ms a step besides; parts follow one another; activations stay on chip",
        ]
        if m.active_params < m.params:
            said.append("experts drawn evenly, their weights split over the ranks")
        if self.weight_bytes > h.memory_bytes:
            need = self.weight_bytes / 1e9
            said.append(f"WEIGHTS DO NOT FIT: {need:,.0f} GB a device, it has {h.memory_bytes / 1e9:,.0f}")
        if m.grade not in ("", "A"):
            said.append(f"geometry of grade {m.grade}")
        return "; ".join(said)

    # --- parts --------------------------------------------------------------------------------------------

    def _dense(self, tokens: int) -> float:
        r, m = self._rates, self.model
        flops = 2 * m.active_params * tokens / self.tp
        loaded = m.touched_params(tokens) * r.weight_bytes_per_param / self.tp
        return max(flops / r.dense_flops_s, loaded / r.bytes_s)

    def _prefill_attention(self, rows: tuple[tuple[int, int], ...]) -> float:
        if not rows:
            return 0.0
        r, m = self._rates, self.model
        pairs = sum(m.attended(tokens, before) for before, tokens in rows)
        flops = m.attention_layers * 2 * m.q_heads * (m.qk_dim + m.v_dim) * pairs / self.tp
        moved = sum(before + tokens for before, tokens in rows) * r.kv_token
        return max(flops / r.attention_flops_s, moved / r.bytes_s)

    def _decode_attention(self, contexts: tuple[int, ...]) -> float:
        if not contexts:
            return 0.0
        r, m = self._rates, self.model
        top = m.attention_topk
        read = sum(min(context, top) for context in contexts) if top else sum(contexts)
        flops = m.attention_layers * 2 * m.q_heads * m.decode_width * read / self.tp
        return max(flops / r.attention_flops_s, read * r.kv_token / r.bytes_s)

    def _prefill_scan(self, rows: tuple[tuple[int, int], ...]) -> float:
        if not rows:
            return 0.0
        r = self._rates
        tokens = sum(row[1] for row in rows)
        states = 2 * r.state * len(rows) / r.bytes_s
        if self.table is not None and r.measured:
            return self.model.recurrent_layers * self.table.seconds(r.shape, len(rows), tokens / len(rows))
        longest = max(row[1] for row in rows)
        serial = ceil(longest / r.scan_chunk) * r.scan_chunk_s if r.scan_chunk_s else 0.0
        return max(tokens * r.scan_flops / r.scan_flops_s, tokens * r.scan_bytes / r.bytes_s + states, serial)

    def _decode_scan(self, rows: int) -> float:
        r = self._rates
        return rows * max(r.step_scan_flops / r.scan_flops_s, 2 * r.state / r.bytes_s)

    def _communication(self, tokens: int, decode_rows: int) -> float:
        if self.tp == 1:
            return 0.0
        h, m = self.hardware, self.model
        assert m.hidden_size is not None
        # two sums over the ranks a layer, each as reduce-scatter and all-gather
        moved = 2 * (self.tp - 1) / self.tp * tokens * m.hidden_size * ACTIVATION_BYTES
        seconds = 2 * m.layers * (moved / h.link_bytes_s + h.link_latency_s)
        if self.dcp > 1 and decode_rows:
            # queries are gathered and partial outputs merged within each group of dcp ranks
            moved = decode_rows * m.q_heads / self.tp * (self.dcp - 1) * m.decode_width * ACTIVATION_BYTES
            seconds += m.attention_layers * (moved / h.link_bytes_s + 2 * h.link_latency_s)
        return seconds

    # --- rates --------------------------------------------------------------------------------------------

    @property
    def _scan_share(self) -> float:
        return self.efficiency.scan or SCAN_SHARES[self.model.recurrent_kind]

    def _make_rates(self) -> _Rates:
        m, h, e = self.model, self.hardware, self.efficiency
        chunk = self.chunk_width or m.chunk_width or SCAN_CHUNK
        width = chunk if m.chunk_width else 0  # what has no chunk form runs token by token
        serial = m.recurrent_kind in ("gdn", "kda")  # only the delta rules' outputs wait for the state before
        layers = m.recurrent_layers / self.tp
        heads = max(m.key_heads // self.tp, 1), m.value_heads // self.tp
        shape = Shape(h.name, m.recurrent_kind, *heads, m.key_dim, m.value_dim)
        return _Rates(
            dense_flops_s=h.peak(self.weight_dtype) * e.dense,
            attention_flops_s=h.peak("bfloat16") * e.attention,
            scan_flops_s=h.peak("float32" if m.recurrent_kind == "mamba1" else "bfloat16") * self._scan_share,
            bytes_s=h.memory_bytes_s * e.bandwidth,
            weight_bytes_per_param=DTYPE_BYTES[self.weight_dtype],
            kv_token=m.rank_kv_bytes_per_token(self.tp, self.dcp),
            state=m.rank_state_bytes(self.tp),
            scan_flops=layers * m.scan_flops(width),
            scan_bytes=layers * m.scan_traffic(),
            scan_chunk=chunk,
            scan_chunk_s=m.recurrent_layers * h.scan_chunk_s * max(1.0, chunk / SCAN_CHUNK)
            if serial
            else 0.0,
            step_scan_flops=layers * m.scan_flops(0),
            shape=shape,
            measured=self.table is not None and bool(self.table.bracket(shape)),
        )
