"""Accelerators: peak rates, as data sheets give them. ``HARDWARE["h200"]`` reads ``data/hardware.csv``."""

from __future__ import annotations

from dataclasses import dataclass

from depthchart.catalogue import Catalogue

__all__ = ["HARDWARE", "Hardware"]

# An unsupported format is computed in the next wider one.
_WIDER = {
    "float4": "float8",
    "float8": "bfloat16",
    "int8": "float8",
    "float16": "bfloat16",
    "bfloat16": "float32",
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device: ``peak_flops`` [FLOP/s] by format without sparsity, ``memory_bytes_s`` and, in one direction,
    ``link_bytes_s`` [bytes/s], ``memory_bytes``. ``link_latency_s``: one collective step between devices.
    ``scan_chunk_s``: one step of the serial loop over 64-token chunks of a chunked scan."""

    name: str
    peak_flops: tuple[tuple[str, float], ...]
    memory_bytes_s: float
    memory_bytes: float
    link_bytes_s: float = 0.0
    link_latency_s: float = 0.0
    scan_chunk_s: float = 0.0
    source: str = ""
    url: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.peak_flops or any(rate <= 0 for _, rate in self.peak_flops):
            raise ValueError(
                f"peak_flops={self.peak_flops!r}: must hold at least one format with a rate above 0"
            )
        if self.memory_bytes_s <= 0:
            raise ValueError(f"memory_bytes_s={self.memory_bytes_s!r}: must be above 0")

    def peak(self, dtype: str) -> float:
        """FLOP/s for weights of ``dtype``; a format without units of its own runs in the next wider one."""
        rates, wanted = dict(self.peak_flops), dtype
        while wanted not in rates:
            if wanted not in _WIDER:
                raise ValueError(f"dtype={dtype!r}: {self.name} has rates for {', '.join(rates)}")
            wanted = _WIDER[wanted]
        return rates[wanted]


def _build(row: dict[str, str]) -> Hardware:
    columns = (("bfloat16", "bf16"), ("float8", "fp8"), ("float4", "fp4"), ("float32", "fp32"))
    rates = tuple(
        (dtype, float(row[f"{key}_tflops"]) * 1e12) for dtype, key in columns if row[f"{key}_tflops"]
    )
    return Hardware(
        row["name"],
        rates,
        float(row["memory_tb_s"]) * 1e12,
        float(row["memory_gb"]) * 1e9,
        float(row["link_gb_s"]) * 1e9,
        float(row["link_latency_us"]) * 1e-6,
        float(row["scan_chunk_us"]) * 1e-6,
        row["source"],
        row["url"],
        row["note"],
    )


HARDWARE = Catalogue("hardware", "hardware.csv", _build, lambda row: row["aliases"].split())
