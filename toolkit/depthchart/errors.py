"""Every error that depthchart raises on purpose, in one place.

Wrong arguments are ``ValueError``s with the offending name and value in the message; what is
listed here are the faults of a cache: broken invariants (DESIGN section 3) and exhausted pools.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DepthchartError(Exception):
    """Base of all faults that a run can meet."""


class InvariantError(DepthchartError):
    """A structure broke one of its invariants; the run can no longer be believed."""


class PageSharedError(InvariantError):
    """Two freed segments of one KV row share a page (sglang#37729, sglang#39115)."""


class SegmentError(InvariantError):
    """A freed segment is empty, descending, outside its row, or starts inside a page."""


class DoubleFreeError(InvariantError):
    """A page or a state slot that is already free was freed again."""


class MisplacedStateError(InvariantError):
    """A state was filed on a node whose path is not exactly the tokens that it consumed."""


class RuleError(DepthchartError):
    """A depth rule raised, or answered something that is not a usable decision."""


class PoolExhausted(DepthchartError):
    """A pool has no room left, even after evicting all that may be evicted."""


class ScriptError(ValueError):
    """A lifecycle script is malformed; the message names the step and the key."""


def one_of(name: str, value: str, legal: Iterable[str]) -> str:
    """``value``; raises ValueError, naming the argument, what is legal and the nearest of it, where it is not."""
    known = list(legal)
    if value in known:
        return value
    near = get_close_matches(str(value), known, n=1, cutoff=0.4)
    hint = f"; nearest: {near[0]!r}" if near else ""
    raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}{hint}")
