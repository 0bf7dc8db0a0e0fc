"""Seconds that an engine step takes, from the amount of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from depthchart.scheduler.work import Work

__all__ = ["CostModel", "LinearCost", "hit_value_s", "prefill_s"]


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


def prefill_s(cost: CostModel, tokens: int, before: int = 0, step_tokens: int = 8192) -> float:
    """Seconds to prefill ``tokens`` after ``before`` cached ones, alone on the machine, at most ``step_tokens`` a
    step."""
    if tokens < 0 or before < 0:
        name, value = ("tokens", tokens) if tokens < 0 else ("before", before)
        raise ValueError(f"{name}={value}: must be 0 or more; nearest: 0")
    if step_tokens < 1:
        raise ValueError(f"step_tokens={step_tokens}: must be at least 1; nearest: 1")
    cuts = range(before, before + tokens, step_tokens)
    return sum(cost.step_s(Work(((at, min(step_tokens, before + tokens - at)),))) for at in cuts)


def hit_value_s(cost: CostModel, prompt_tokens: int, hit_tokens: int, step_tokens: int = 8192) -> float:
    """Seconds that reusing the first ``hit_tokens`` of a prompt saves: the prefill of the whole prompt less the
    prefill of the rest and the copy of the matched state. At least the last token must run, so a hit is at most
    ``prompt_tokens`` - 1. Negative where the copy costs more than it saves."""
    if not 0 <= hit_tokens < max(prompt_tokens, 1):
        near = min(max(hit_tokens, 0), prompt_tokens - 1)
        raise ValueError(
            f"hit_tokens={hit_tokens}: must be 0 to prompt_tokens - 1 = {prompt_tokens - 1}; nearest: {near}"
        )
    if not hit_tokens:
        return 0.0
    first = min(step_tokens, prompt_tokens - hit_tokens)
    with_copy = cost.step_s(Work(((hit_tokens, first),), state_copies=1))
    rest = prefill_s(cost, prompt_tokens - hit_tokens - first, hit_tokens + first, step_tokens)
    return prefill_s(cost, prompt_tokens, 0, step_tokens) - with_copy - rest
