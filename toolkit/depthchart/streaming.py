"""A trace without end through scheduler and cache: totals as it goes, memory as large as the live tree.

``simulate`` keeps every event of a trace that it knows whole; ``stream`` takes requests from an iterator as their time
comes, and hands on what happens. It is the same scheduler on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from depthchart.cache.memory import Memory
from depthchart.cost import CostModel, LinearCost
from depthchart.depth import Rule
from depthchart.errors import one_of
from depthchart.events import (
    Arrived,
    Entry,
    EventStream,
    Finished,
    FirstToken,
    Matched,
    Rejected,
    Retracted,
    Violation,
)
from depthchart.geometry import Geometry
from depthchart.scheduler.loop import Scheduler, StepRecord
from depthchart.scheduler.reserve import OutputReserve
from depthchart.simulate import SimulatedExecutor
from depthchart.traces.trace import TraceRequest

__all__ = ["StreamArrivals", "Totals", "stream"]

StreamArrivals = Literal["causal", "trace"]
Due: TypeAlias = tuple[float, int, TraceRequest]  # when, its place in the stream, the request


@dataclass(slots=True)
class Totals:
    """Sums over a stream; tokens as in ``columns.REQUESTS``, times in seconds. ``reused_tokens`` (C) and
    ``kv_hit_tokens`` (H) are those of each request's first admission."""

    requests: int = 0
    finished: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    kv_hit_tokens: int = 0
    reused_tokens: int = 0
    retractions: int = 0
    violations: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    first_tokens: int = 0
    first_token_wait_s: float = 0.0
    _waiting: dict[str, float] = field(default_factory=dict)  # arrival, until the first token
    _matched: set[str] = field(default_factory=set)  # of those that have not ended

    @property
    def ttft_mean_s(self) -> float | None:
        """Mean time from arrival to the first token; None where no token came."""
        return self.first_token_wait_s / self.first_tokens if self.first_tokens else None

    def __call__(self, entry: Entry) -> None:
        """Count an event."""
        match entry.event:
            case Arrived(request, prompt, _, arrival_s):
                self.requests += 1
                self.prompt_tokens += prompt
                self._waiting[request] = arrival_s
            case Matched(request, tokens, kv_tokens) if request not in self._matched:
                self._matched.add(request)
                self.reused_tokens += tokens
                self.kv_hit_tokens += kv_tokens
            case FirstToken(request):
                self.first_tokens += 1
                self.first_token_wait_s += entry.time_s - self._waiting.pop(request)
            case Finished(request, _, output):
                self.finished += 1
                self.output_tokens += output
                self._end(request)
            case Rejected(request):
                self.rejected += 1
                self._end(request)
            case Retracted():
                self.retractions += 1
            case Violation():
                self.violations += 1

    def _end(self, request: str) -> None:
        self._waiting.pop(request, None)
        self._matched.discard(request)


def stream(
    requests: Iterable[TraceRequest],
    geometry: Geometry,
    rule: str | Rule = "absolute",
    *,
    kv_tokens: int,
    state_slots: int,
    cost: CostModel | None = None,
    arrivals: StreamArrivals = "causal",
    policy: str = "fcfs",
    mixed: bool = False,
    max_running: int = 256,
    reserve: OutputReserve | None = None,
    seed: int = 0,
    tell: Callable[[Entry], object] | None = None,
    record: Callable[[StepRecord], object] | None = None,
    **policies: Any,
) -> Totals:
    """Run requests to the end of their iterator; nothing of a request is kept once it has ended.

    Args:
        requests: in order of arrival; with ``arrivals="causal"`` a request that comes ``after`` one still on its way
            waits for it.
        geometry: page, DCP size, chunk width, budgets.
        rule: a depth rule or its name.
        kv_tokens: KV pool in tokens.
        state_slots: state pool in slots.
        cost: seconds of a step (default: ``LinearCost``).
        arrivals: as in ``simulate``; "closed" needs the whole trace and is left to it.
        policy: order of admission.
        mixed: decode rows share steps with prefill rows.
        max_running: most requests that run at the same time.
        reserve: output set aside at admission.
        seed: of the random queue policy.
        tell: told every event with its time, for instance to write it to a file.
        record: told every step.
        policies: those of ``Memory`` (eviction, state_eviction, worth, …).

    A broken invariant is counted, not raised. Raises ValueError for settings that cannot work.
    """
    one_of("arrivals", arrivals, get_args(StreamArrivals))
    totals = Totals()

    def fold(entry: Entry) -> None:
        totals(entry)
        if tell is not None:
            tell(entry)

    log = EventStream(fold)
    memory = Memory(geometry, kv_tokens, state_slots, emit=log, **policies)
    executor = SimulatedExecutor(LinearCost() if cost is None else cost, ())
    loop: dict[str, Any] = {"policy": policy, "mixed": mixed, "max_running": max_running, "reserve": reserve}
    scheduler = Scheduler(memory, executor, rule, **loop, seed=seed, strict=False, log=log, keep_done=False)
    for step in _steps(scheduler, executor, _Arrivals(iter(requests), arrivals == "causal")):
        totals.steps += 1
        totals.simulated_s = step.time_s + step.duration_s
        if record is not None:
            record(step)
    return totals


class _Arrivals:
    """Requests as their time comes; those that follow one still on its way wait for it."""

    def __init__(self, requests: Iterator[TraceRequest], causal: bool) -> None:
        self._requests, self._causal = enumerate(requests), causal
        self._next = next(self._requests, None)
        self._alive: set[str] = set()
        self._followers: dict[str, list[tuple[int, TraceRequest]]] = {}

    @property
    def next_s(self) -> float | None:
        """When the next request comes by its own clock; None where there is none."""
        return None if self._next is None else self._next[1].arrival_s

    def due(self, now_s: float) -> Iterator[Due]:
        while self._next is not None and self._next[1].arrival_s <= now_s:
            (at, request), self._next = self._next, next(self._requests, None)
            self._alive.add(request.request_id)
            if self._causal and request.after in self._alive and request.after is not None:
                self._followers.setdefault(request.after, []).append((at, request))
            else:
                yield request.arrival_s, at, request

    def finished(self, name: str, now_s: float) -> Iterator[Due]:
        self._alive.discard(name)
        for at, request in self._followers.pop(name, ()):
            yield now_s, at, request


def _steps(scheduler: Scheduler, executor: SimulatedExecutor, arrivals: _Arrivals) -> Iterator[StepRecord]:
    freed: list[Due] = []
    while freed or arrivals.next_s is not None or not scheduler.idle:
        if scheduler.idle and not freed and arrivals.next_s is not None:
            scheduler.now_s = max(scheduler.now_s, arrivals.next_s)
        for due_s, _, request in sorted((*freed, *arrivals.due(scheduler.now_s))):
            executor.outputs[request.request_id] = request.output
            scheduler.submit(request, due_s)
        freed = []
        record = scheduler.step()
        if record is not None:
            yield record
        for name in scheduler.take_ended():
            del executor.outputs[name]
            freed += arrivals.finished(name, scheduler.now_s)
