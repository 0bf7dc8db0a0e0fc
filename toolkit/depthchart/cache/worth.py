"""What a cached state is worth: the work that it saves, for the memory that it takes.

The scale is free: work in units of one token's context-free work, memory in units of one KV token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthchart.cache.node import Node

if TYPE_CHECKING:
    from depthchart.models import Model

__all__ = ["Worth", "covered_from"]


@dataclass(frozen=True, slots=True)
class Worth:
    """``context_share``: work of attending to one token of context, over that of a token without context;
    ``state_tokens``: KV tokens that take as many bytes as one state. The defaults are round numbers of
    hybrid models of 30 to 80 billion parameters; ``Worth.of`` takes them from a catalogue entry."""

    context_share: float = 1e-5
    state_tokens: float = 1024.0

    @classmethod
    def of(cls, model: Model, context: int = 8192) -> Worth:
        """The figures of a catalogue model; raises ValueError where the catalogue cannot tell them."""
        base, more = model.flops_per_token(0).total, model.flops_per_token(context).total
        return cls((more - base) / context / base, model.state_in_kv_tokens)

    def work(self, start: int, end: int) -> float:
        """Work of running the tokens ``[start, end)``."""
        return (end - start) * (1.0 + self.context_share * (start + end) / 2)

    def memory(self, node: Node) -> float:
        """Memory that goes with a node's state: the state, and the KV of a leaf."""
        return self.state_tokens + (node.tokens if node.is_leaf else 0)

    def work_per_memory(self, node: Node) -> float:
        """Work that is lost with the node's state, per memory that is won (Marconi's FLOP efficiency)."""
        return self.work(covered_from(node), node.end) / self.memory(node)


def covered_from(node: Node) -> int:
    """Where a text that ends at the node would resume if the node's state were gone, in tokens."""
    above = node.parent
    while above is not None and above.state is None:
        above = above.parent
    return 0 if above is None else above.end
