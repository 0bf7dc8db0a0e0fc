"""How much one engine step computes: what a cost model turns into seconds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """One batch. ``prefill``: (tokens computed before, tokens run now) of each prefill row; ``decode``: tokens
    in each decode row's context, the new one included; ``state_copies``: whole-state copies besides."""

    prefill: tuple[tuple[int, int], ...] = ()
    decode: tuple[int, ...] = ()
    state_copies: int = 0

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prefill)
