"""Seconds that an engine step takes, from the amount of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from depthchart.scheduler.work import Work

__all__ = ["CostModel", "LinearCost"]


class CostModel(Protocol):
    """Turns the work of one step into seconds; ``assumptions`` are printed beside every result."""

    @property
    def assumptions(self) -> str: ...

    def step_s(self, work: Work) -> float: ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A step costs a fixed part, so much a prefill token, so much a decode row and so much a token of
    context that a row attends to. The defaults are round numbers for one large model on one node, not a
    measurement; times of different settings may be compared, not quoted."""

    base_s: float = 0.008
    prefill_token_s: float = 40e-6
    decode_row_s: float = 50e-6
    context_token_s: float = 2e-9
    state_copy_s: float = 20e-6

    @property
    def assumptions(self) -> str:
        return (
            f"linear time model (assumed, not measured): {self.base_s * 1e3:g} ms a step, "
            f"{self.prefill_token_s * 1e6:g} us a prefill token, {self.decode_row_s * 1e6:g} us a decode row, "
            f"{self.context_token_s * 1e9:g} ns a token of context and row, {self.state_copy_s * 1e6:g} us a state copy"
        )

    def step_s(self, work: Work) -> float:
        """Seconds of one step."""
        context = sum(work.decode) + sum(tokens * (before + tokens / 2) for before, tokens in work.prefill)
        return (
            self.base_s
            + work.prefill_tokens * self.prefill_token_s
            + len(work.decode) * self.decode_row_s
            + context * self.context_token_s
            + work.state_copies * self.state_copy_s
        )
