"""Other packages' scans that run on plain torch, called with the same inputs: what the bench compares with.

Only paths that a CPU can run: fla-core's and transformers' chunked forms and their token-by-token loops. None of them
takes packed sequences or writes snapshots, so they get sequences of equal length and hand back outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from torch import Tensor

__all__ = ["PEERS", "STEPS", "installed", "peer_call", "supports"]

STEPS = "-steps"  # ends the name of a token-by-token path
_DELTA = "transformers.models.qwen3_next.modeling_qwen3_next"
_KIMI = "transformers.models.kimi_linear.modeling_kimi_linear"
_PATHS = {  # (peer, operator): module, function
    ("fla-core", "gated_delta"): ("fla.ops.gated_delta_rule.naive", "naive_chunk_gated_delta_rule"),
    ("fla-core", "kda"): ("fla.ops.kda.naive", "naive_chunk_kda"),
    ("fla-core", "ssd"): ("fla.ops.simple_gla.naive", "naive_chunk_simple_gla"),
    ("fla-core-steps", "kda"): ("fla.ops.kda.naive", "naive_recurrent_kda"),
    ("transformers", "gated_delta"): (_DELTA, "torch_chunk_gated_delta_rule"),
    ("transformers", "kda"): (_KIMI, "chunk_kimi_delta_attention"),
    ("transformers-steps", "kda"): (_KIMI, "recurrent_kimi_delta_attention"),
}
PEERS = ("fla-core", "transformers")


def peer_call(
    peer: str, op: str, inputs: dict[str, Tensor], batch: int, chunk_width: int
) -> Callable[[], Tensor]:
    """A call of the peer's scan on ``batch`` sequences of equal length, packed as ours; it gives packed outputs.

    Raises ValueError where the peer has no such operator, or is not installed.
    """
    if not supports(peer, op):
        raise ValueError(f"{peer} has no {op} that plain torch can run; it has {', '.join(_ops(peer))}")
    if installed(peer) is None:
        raise ValueError(f"{peer} is not installed: pip install {peer.removesuffix(STEPS)}")
    module, name = _PATHS[peer, op]
    # the torch path itself: a wrapper may choose kernels that need a GPU
    function = inspect.unwrap(getattr(import_module(module), name))
    rows = {key: x.unflatten(0, (batch, -1)) for key, x in inputs.items() if key != "a"}
    width = {} if peer.endswith(STEPS) else {"chunk_size": chunk_width}
    if op == "ssd":
        return _ssd(function, rows, inputs["a"], chunk_width)
    state = {"initial_state": None, "output_final_state": True}
    given = [rows[key] for key in ("q", "k", "v", "g", "beta")]
    return lambda: function(*given, **width, **state)[0].flatten(0, 1)


def supports(peer: str, op: str) -> bool:
    """Whether the peer has the operator."""
    return (peer, op) in _PATHS


def installed(peer: str) -> str | None:
    """The installed version of the peer's package."""
    try:
        return version(peer.removesuffix(STEPS))
    except PackageNotFoundError:
        return None


def _ssd(
    function: Callable[..., tuple[Tensor, Tensor]], rows: dict[str, Tensor], a: Tensor, width: int
) -> Callable[[], Tensor]:
    """Mamba-2 as gated linear attention: q = C, k = B, v = dt · x, g = dt · A; what prepares these is timed, too."""
    heads = a.shape[0]

    def call() -> Tensor:
        k, q = (rows[key].expand(-1, -1, heads, -1) for key in ("b", "c"))
        v, g = rows["dt"][..., None] * rows["x"], rows["dt"] * a
        return function(q, k, v, g, chunk_size=width, scale=1.0, output_final_state=True)[0].flatten(0, 1)

    return call


def _ops(peer: str) -> list[str]:
    return [op for name, op in _PATHS if name == peer] or ["none"]
