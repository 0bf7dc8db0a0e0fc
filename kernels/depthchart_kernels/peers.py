"""Other packages' scans that run on plain torch, called with the same inputs: what the bench compares with.

Only paths that a CPU can run: chunked forms of fla-core, transformers and mamba-ssm and token-by-token loops of the first
two. None of them takes packed sequences or writes snapshots, so they get sequences of equal length, most of them of
whole chunks only, and hand back outputs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import Tensor

__all__ = ["PEERS", "STEPS", "installed", "paths", "peer_call", "supports"]

STEPS = "-steps"  # ends the name of a token-by-token path
MINIMAL = "-minimal"  # ends the name of a second chunked path
_DELTA = "transformers.models.qwen3_next.modeling_qwen3_next"
_KIMI = "transformers.models.kimi_linear.modeling_kimi_linear"
_MAMBA2 = "transformers.models.mamba2.modeling_mamba2"
_PATHS = {  # (peer, operator): module, function
    ("fla-core", "gated_delta"): ("fla.ops.gated_delta_rule.naive", "naive_chunk_gated_delta_rule"),
    ("fla-core", "kda"): ("fla.ops.kda.naive", "naive_chunk_kda"),
    ("fla-core", "ssd"): ("fla.ops.simple_gla.naive", "naive_chunk_simple_gla"),
    ("fla-core-steps", "kda"): ("fla.ops.kda.naive", "naive_recurrent_kda"),
    ("transformers", "gated_delta"): (_DELTA, "torch_chunk_gated_delta_rule"),
    ("transformers", "kda"): (_KIMI, "chunk_kimi_delta_attention"),
    ("transformers-steps", "kda"): (_KIMI, "recurrent_kimi_delta_attention"),
    ("transformers", "ssd"): (_MAMBA2, "mamba2_chunk_scan"),
    ("mamba-ssm", "ssd"): ("mamba_ssm.ops.triton.ssd_combined", "ssd_chunk_scan_combined_ref"),
    ("mamba-ssm-minimal", "ssd"): ("mamba_ssm.modules.ssd_minimal", "ssd_minimal_discrete"),
}
PEERS = ("fla-core", "transformers", "mamba-ssm")


def peer_call(
    peer: str, op: str, inputs: dict[str, Tensor], batch: int, chunk_width: int
) -> Callable[[], Tensor]:
    """A call of the peer's scan on ``batch`` sequences of equal length, packed as ours; it gives packed outputs.

    Raises ValueError where the peer has no such operator, or is not installed.
    """
    if not supports(peer, op):
        raise ValueError(f"{peer} has no {op} that plain torch can run; it has {', '.join(_ops(peer))}")
    if installed(peer) is None:
        raise ValueError(f"{peer} is not installed: pip install {_package(peer)}")
    module, name = _PATHS[peer, op]
    # the torch path itself: a wrapper may choose kernels that need a GPU
    function = inspect.unwrap(getattr(_load(module), name))
    rows = {key: x.unflatten(0, (batch, -1)) for key, x in inputs.items() if key != "a"}
    width = {} if peer.endswith(STEPS) else {"chunk_size": chunk_width}
    if op == "ssd":
        return _SSD[peer](function, rows, inputs["a"], chunk_width)
    state = {"initial_state": None, "output_final_state": True}
    given = [rows[key] for key in ("q", "k", "v", "g", "beta")]
    return lambda: function(*given, **width, **state)[0].flatten(0, 1)


def paths(peer: str, op: str) -> list[str]:
    """Names of all the ways in which plain torch runs the peer's operator."""
    return [name for name, its in _PATHS if its == op and _package(name) == peer]


def supports(peer: str, op: str) -> bool:
    """Whether the peer has the operator."""
    return (peer, op) in _PATHS


def installed(peer: str) -> str | None:
    """The installed version of the peer's package."""
    try:
        return version(_package(peer))
    except PackageNotFoundError:
        return None


def _package(peer: str) -> str:
    return peer.removesuffix(STEPS).removesuffix(MINIMAL)


def _load(module: str) -> ModuleType:
    """Import it; mamba-ssm imports at once a compiled extension that none of the paths here calls."""
    extension = "selective_scan_cuda"
    if module.startswith("mamba_ssm") and extension not in sys.modules and find_spec(extension) is None:
        sys.modules[extension] = ModuleType(extension)
    return import_module(module)


Scan = Callable[..., Any]
Rows = dict[str, Tensor]


def _gated(function: Scan, rows: Rows, a: Tensor, width: int) -> Callable[[], Tensor]:
    """Mamba-2 as gated linear attention: q = C, k = B, v = dt · x, g = dt · A; what prepares these is timed, too."""

    def call() -> Tensor:
        k, q = (_per_head(rows[key], a) for key in ("b", "c"))
        v, g = rows["dt"][..., None] * rows["x"], rows["dt"] * a
        return function(q, k, v, g, chunk_size=width, scale=1.0, output_final_state=True)[0].flatten(0, 1)

    return call


def _direct(function: Scan, rows: Rows, a: Tensor, width: int) -> Callable[[], Tensor]:
    """A scan with Mamba-2's own arguments; its output alone or before a state."""

    def call() -> Tensor:
        found = function(rows["x"], rows["dt"], a, rows["b"], rows["c"], width)
        output: Tensor = found if isinstance(found, Tensor) else found[0]
        return output.flatten(0, 1)

    return call


def _minimal(function: Scan, rows: Rows, a: Tensor, width: int) -> Callable[[], Tensor]:
    """A scan of dt · x and dt · A; what prepares these is timed, too."""

    def call() -> Tensor:
        b, c = (_per_head(rows[key], a) for key in ("b", "c"))
        x, g = rows["dt"][..., None] * rows["x"], rows["dt"] * a
        output: Tensor = function(x, g, b, c, width)[0]
        return output.flatten(0, 1)

    return call


_SSD = {
    "fla-core": _gated,
    "transformers": _direct,
    "mamba-ssm": _direct,
    "mamba-ssm-minimal": _minimal,
}


def _per_head(x: Tensor, a: Tensor) -> Tensor:
    """[batch, tokens, 1, N] as a view for every head."""
    return x.expand(-1, -1, a.shape[0], -1)


def _ops(peer: str) -> list[str]:
    return [op for name, op in _PATHS if name == peer] or ["none"]
