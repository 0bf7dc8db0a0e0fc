"""What happened, as typed values. Every table and figure is derived from a run's events.

Tree events come from the radix tree and are enough to redraw it at any moment; request events come
from the lifecycle and the scheduler. Depths and lengths are in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias


class NodeAdded(NamedTuple):
    node_id: int
    parent_id: int
    start: int
    end: int
    request: str
    namespace: str


class NodeSplit(NamedTuple):
    """``node_id`` keeps its end and its state; ``upper_id`` is new and takes the tokens above ``at``."""

    node_id: int
    upper_id: int
    at: int


class NodeRemoved(NamedTuple):
    node_id: int
    tokens: int
    why: str


class StateFiled(NamedTuple):
    """A state that has consumed ``state_depth`` tokens now hangs on the node that ends at ``end``; ``fits``
    where they are exactly the tokens of the node's path."""

    node_id: int
    end: int
    state_depth: int
    fits: bool


class StateDropped(NamedTuple):
    node_id: int
    why: str


class Locked(NamedTuple):
    """The path down to the node is locked, and its state too where ``state`` is true."""

    node_id: int
    state: bool


class Unlocked(NamedTuple):
    node_id: int
    state: bool


class Arrived(NamedTuple):
    """``arrival_s``: when it came; its entry's time is when the scheduler first looked, between two steps."""

    request: str
    prompt_tokens: int
    session: str
    arrival_s: float


class Matched(NamedTuple):
    """``kv_tokens``: what the KV alone matched (H), down to node ``kv_node_id``; ``tokens``: with a state at its end
    (C), at node ``node_id`` (0: the root, nothing matched)."""

    request: str
    tokens: int
    kv_tokens: int
    branch: int | None
    node_id: int
    kv_node_id: int = 0


class Admitted(NamedTuple):
    request: str
    prefix: int


class AdmissionRefused(NamedTuple):
    request: str
    reason: str


class Rejected(NamedTuple):
    """The request could never fit, whatever else runs."""

    request: str
    reason: str


class Extended(NamedTuple):
    """One prefill step ran the tokens ``[prefix, end)``; ``wanted`` is the depth that the rule chose."""

    request: str
    prefix: int
    end: int
    wanted: int | None
    donate: bool
    reason: str


class Tracked(NamedTuple):
    """The executor wrote a state, asked for at ``wanted``, that has really consumed ``depth`` tokens (by its
    shadow tag), for a later donation."""

    request: str
    kind: str
    prefix: int
    end: int
    wanted: int
    depth: int


class Donated(NamedTuple):
    """A state that has consumed ``depth`` tokens went to the node that ends at ``node_end``; ``fits`` as in
    StateFiled."""

    request: str
    node_id: int
    wanted: int
    depth: int
    node_end: int
    fits: bool


class NotDonated(NamedTuple):
    """A tracked state went no further; ``outcome`` is ``"refused"`` or ``"superseded"``."""

    request: str
    wanted: int
    depth: int
    outcome: str
    reason: str


class FirstToken(NamedTuple):
    request: str


class Finished(NamedTuple):
    request: str
    tokens: int
    output_tokens: int


class Freed(NamedTuple):
    request: str
    segments: tuple[tuple[int, int], ...]


class Aborted(NamedTuple):
    request: str
    tokens: int


class Retracted(NamedTuple):
    request: str
    tokens: int


class Violation(NamedTuple):
    """A broken invariant that was recorded instead of raised (strict mode off)."""

    kind: str
    message: str
    request: str


Event: TypeAlias = (
    NodeAdded | NodeSplit | NodeRemoved | StateFiled | StateDropped | Locked | Unlocked
    | Arrived | Matched | Admitted | AdmissionRefused | Rejected | Extended | Tracked | Donated | NotDonated
    | FirstToken | Finished | Freed | Aborted | Retracted | Violation
)  # fmt: skip
Emit: TypeAlias = Callable[[Any], None]


class Entry(NamedTuple):
    """An event with the step and the time (seconds) at which it happened."""

    time_s: float
    step: int
    event: Any


class EventLog:
    """The events of a run in order. ``step`` and ``time_s`` are set by whoever drives the run."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.step = 0
        self.time_s = 0.0

    def __call__(self, event: Event) -> None:
        self.entries.append(Entry(self.time_s, self.step, event))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def of(self, *kinds: type) -> list[Any]:
        """The events of the given kinds, in order."""
        return [entry.event for entry in self.entries if isinstance(entry.event, kinds)]


class EventStream(EventLog):
    """Hands every entry on and keeps none."""

    def __init__(self, tell: Callable[[Entry], object]) -> None:
        super().__init__()
        self._tell = tell

    def __call__(self, event: Event) -> None:
        self._tell(Entry(self.time_s, self.step, event))


def ignore(event: Event) -> None:
    """An event sink that keeps nothing."""
