"""How far a prefill step may run: the token budget of the step, the room in the pool, the rule's cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from depthchart.depth import Rule
from depthchart.geometry import Geometry

__all__ = ["Cut", "PrefillBudget"]


class Cut(NamedTuple):
    """Where a new request's first prefill step ends (its prefix: not in this step), and why not further."""

    end: int
    reason: str


@dataclass(slots=True)
class PrefillBudget:
    """What one step may still prefill. ``step_tokens``: left of chunked_prefill_size; ``room_tokens``: free and
    evictable KV, less what running requests may still need."""

    rule: Rule
    geometry: Geometry
    step_tokens: int
    room_tokens: int

    def first_cut(
        self, prefix: int, prompt_tokens: int, max_new_tokens: int, branch: int | None = None
    ) -> Cut:
        """The end of a new request's first extend. It must fit with its whole output, and is not started where
        the budget leaves less than one cut grid of it."""
        extend = prompt_tokens - prefix
        if self._paged(extend + max_new_tokens) > self.room_tokens:
            return Cut(
                prefix, f"{extend} prompt and {max_new_tokens} output tokens do not fit in {self.room_tokens}"
            )
        if self.step_tokens < 1:
            return Cut(prefix, "the step's token budget is used up")
        end = self.rule.cut(
            self.geometry, prefix, min(prefix + self.step_tokens, prompt_tokens), prompt_tokens, branch
        )
        return Cut(
            end,
            "" if end > prefix else f"the step has {self.step_tokens} tokens left, less than one cut grid",
        )

    def next_cut(self, prefix: int, prompt_tokens: int, branch: int | None = None) -> int:
        """The end of a started request's next extend: it always moves on, off the cut grid if it must."""
        tokens = min(self.step_tokens, self.room_tokens)
        if tokens <= 0:
            tokens = self.step_tokens
        end = min(prefix + max(tokens, 1), prompt_tokens)
        cut = self.rule.cut(self.geometry, prefix, end, prompt_tokens, branch)
        return cut if cut > prefix else end

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self.geometry.tree_page) * self.geometry.tree_page
