"""From logits to the next token: greedy, or seeded so that it depends on nothing but request and position."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """``temperature`` 0 is greedy; ``top_k`` 0 keeps all tokens. A seeded token is a function of (seed, request,
    position, logits): neither the batch it was in nor a retraction changes it."""

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0; nearest legal: 0")

    def pick(self, logits: Tensor, request: str, position: int) -> int:
        """The token of one row ``logits`` [vocab] for the text position ``position``."""
        if self.temperature == 0:
            return int(logits.argmax())
        scores = logits.double().cpu() / self.temperature
        if 0 < self.top_k < len(scores):
            least = scores.topk(self.top_k).values[-1]
            scores = scores.masked_fill(scores < least, -torch.inf)
        # The largest of scores plus Gumbel noise is a sample of their softmax.
        noise = torch.rand(len(scores), dtype=torch.float64, generator=self._dice(request, position))
        return int((scores - noise.clamp(min=1e-300).log().neg().log()).argmax())

    def _dice(self, request: str, position: int) -> torch.Generator:
        name = f"{self.seed}/{position}/{request}".encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
