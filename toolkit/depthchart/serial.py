"""A trace served one request at a time, in the order of the trace: what the cache alone decides.

Nothing depends on timing, so two policies differ only by what they keep, and offline bounds hold for the very
same problem (``bounds``). It is the same lifecycle on the same memory; there is only no step loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from depthchart.cache.memory import Memory
from depthchart.depth import Rule
from depthchart.events import Donated, Emit, Matched, NodeRemoved, StateDropped, Violation
from depthchart.geometry import Geometry
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.planner import MIN_STATE_SLOTS
from depthchart.scheduler.sequence import Sequence
from depthchart.tokens import PrefixIndex, Text
from depthchart.traces.trace import TraceRequest

__all__ = ["Served", "Service", "serve", "serve_each"]


COUNTED = frozenset((Donated, NodeRemoved, StateDropped, Violation))


class Served(NamedTuple):
    """One request, in tokens: ``kv_tokens`` is what the KV alone matched (H), ``reused_tokens`` what was reused (C).
    ``wrong`` where the state taken over had read another text; ``fits`` is False where the pool can never hold it
    (then it was not run)."""

    request: str
    prompt_tokens: int
    kv_tokens: int
    reused_tokens: int
    wrong: bool
    fits: bool


class Service(NamedTuple):
    """All requests, and how often each kind of event happened (by the event's name)."""

    requests: tuple[Served, ...]
    counts: dict[str, int]

    @property
    def prompt_tokens(self) -> int:
        return sum(served.prompt_tokens for served in self.requests)

    @property
    def reused_tokens(self) -> int:
        """Rightly reused: what came from a state of another text does not count."""
        return sum(served.reused_tokens for served in self.requests if not served.wrong)

    @property
    def lost_tokens(self) -> int:
        """Found as KV and thrown away for want of a state (H - C)."""
        return sum(served.kv_tokens - served.reused_tokens for served in self.requests)

    @property
    def wrong_requests(self) -> int:
        return sum(served.wrong for served in self.requests)


def serve(
    trace: Iterable[TraceRequest],
    geometry: Geometry,
    rule: str | Rule,
    *,
    kv_tokens: int,
    state_slots: int,
    index: PrefixIndex | None = None,
    advance: Callable[[int], object] | None = None,
    watch: Emit | None = None,
    **policies: Any,
) -> Service:
    """Serve the requests one after another; ``policies`` are those of ``Memory`` (eviction, refresh, ...).

    A broken invariant is counted, not raised. ``advance(1)`` is called after each request, ``watch`` with
    every event. Raises ValueError for pools
    too small for any request.
    """
    counts: Counter[str] = Counter()
    pools: dict[str, Any] = {"kv_tokens": kv_tokens, "state_slots": state_slots, "index": index}
    served = []
    for one in serve_each(trace, geometry, rule, **pools, watch=watch, counts=counts, **policies):
        served.append(one)
        if advance is not None:
            advance(1)
    return Service(tuple(served), dict(counts))


def serve_each(
    trace: Iterable[TraceRequest],
    geometry: Geometry,
    rule: str | Rule,
    *,
    kv_tokens: int,
    state_slots: int,
    index: PrefixIndex | None = None,
    watch: Emit | None = None,
    counts: Counter[str] | None = None,
    **policies: Any,
) -> Iterator[Served]:
    """As ``serve``, one request after another, as they are asked for: ``trace`` may be a stream without end. Nothing is
    kept but the memory's own books, so the process stays as large as its live tree. ``counts`` is added to."""
    if state_slots < MIN_STATE_SLOTS:
        raise ValueError(
            f"state_slots={state_slots}: one request takes {MIN_STATE_SLOTS}; nearest legal: {MIN_STATE_SLOTS}"
        )
    counts = Counter() if counts is None else counts
    last: list[Matched] = []

    def emit(event: Any) -> None:
        kind = type(event)
        if kind is Matched:
            last.append(event)
        elif kind in COUNTED:
            counts[kind.__name__] += 1
        if watch is not None:
            watch(event)

    memory = Memory(geometry, kv_tokens, state_slots, index=index, emit=emit, **policies)
    life = Lifecycle(memory, rule, strict=False, emit=emit)
    for request in trace:
        text = Text(memory.index, request.prompt, request.extra_key or "")
        prompt, output = len(text), request.output_tokens
        if prompt + output > memory.allocator.total_tokens:
            yield Served(request.request_id, prompt, 0, 0, False, False)
        else:
            wrong = _serve_one(life, request, text, output)
            match = last.pop()
            yield Served(request.request_id, prompt, match.kv_tokens, match.tokens, wrong, True)
            memory.forget()


def _serve_one(life: Lifecycle, request: TraceRequest, text: Text, output: int) -> bool:
    """Run one request to its end; whether it took over a state of another text."""
    prompt = len(text)
    sequence = life.begin(request.request_id, text, prompt, request.priority)
    assert sequence is not None, "nothing else runs, so a slot is free or evictable"
    reused = sequence.computed
    wrong = bool(reused) and life.memory.states.tags[sequence.working or 0] != text.tag(reused)
    while sequence.computed < prompt:
        _extend(life, sequence, prompt)
        if sequence.computed < prompt or output > 1:
            life.checkpoint(sequence)
    if output > 1:
        text.append(request.output)
        _decode(life, sequence, prompt + output - 1)  # the last token's KV is never computed
    life.finish(sequence)
    return wrong


def _extend(life: Lifecycle, sequence: Sequence, prompt: int) -> None:
    geometry, prefix = life.geometry, sequence.computed
    reach = min(prefix + geometry.chunked_prefill_size, prompt)
    cut = life.rule.cut(geometry, prefix, reach, prompt, sequence.branch)
    plan = life.plan_extend(sequence, cut if cut > prefix else reach)
    life.take_copies()
    life.commit_extend(plan)


def _decode(life: Lifecycle, sequence: Sequence, end: int) -> None:
    while sequence.computed < end:
        room = life.decode_grid - sequence.computed % life.decode_grid
        life.commit_decode(life.plan_decode(sequence, min(room, end - sequence.computed)))
