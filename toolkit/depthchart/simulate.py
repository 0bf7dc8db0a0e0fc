"""A trace through scheduler and cache, with a time model in place of a model."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, get_args

from depthchart.cache.memory import Memory
from depthchart.cache.worth import Worth
from depthchart.collector import NEVER, collecting
from depthchart.cost import CostModel, LinearCost
from depthchart.depth import Rule, rule_of
from depthchart.errors import DepthchartError, InvariantError, one_of
from depthchart.events import Arrived, EventLog, Matched
from depthchart.geometry import Geometry
from depthchart.provenance import provenance
from depthchart.run import Fault, Run
from depthchart.scheduler.executor import Batch, StepResult
from depthchart.scheduler.loop import Scheduler
from depthchart.scheduler.reserve import OutputReserve
from depthchart.tokens import PrefixIndex, Runs, slice_runs
from depthchart.traces.overlap import seen_prefixes
from depthchart.traces.trace import Trace, TraceRequest

__all__ = ["Arrivals", "SimulatedExecutor", "simulate"]

Arrivals = Literal["causal", "trace", "closed"]


def simulate(
    trace: Trace,
    geometry: Geometry,
    rule: str | Rule = "absolute",
    *,
    kv_tokens: int,
    state_slots: int,
    policy: str = "fcfs",
    eviction: str = "lru",
    state_eviction: str = "lru",
    refresh: str = "used",
    matching: str = "nearest",
    worth: Worth | None = None,
    branch_grid: int | None = None,
    keep_tombstones: bool = False,
    mixed: bool = False,
    max_running: int = 256,
    reserve: OutputReserve | None = None,
    max_states_per_path: int | None = None,
    cost: CostModel | None = None,
    arrivals: Arrivals = "causal",
    seed: int = 0,
    strict: bool = True,
    index: PrefixIndex | None = None,
    progress: bool = False,
) -> Run:
    """Run a trace to its end, or in strict mode to its first broken invariant (``Run.fault``).

    Args:
        trace: the requests; their outputs are known to the executor alone.
        geometry: page, DCP size, chunk width, budgets.
        rule: a depth rule or its name.
        kv_tokens: KV pool in tokens, rounded down to tree pages.
        state_slots: state pool in slots.
        policy: in which order waiting requests are admitted (``scheduler.queue.QUEUE_POLICIES``).
        eviction: in which order KV leaves go (``cache.eviction.ORDERS``).
        state_eviction: in which order states go (``cache.states.STATE_POLICIES``).
        refresh: which states a match keeps fresh (``cache.states.REFRESHES``).
        matching: from which states a text may resume (``cache.states.MATCHINGS``).
        worth: what a state saves and takes, for the policies that weigh it.
        branch_grid: grid of branch depths in tokens (default: the checkpoint grid).
        keep_tombstones: leave childless tombstones in the tree, as SGLang does.
        mixed: decode rows share steps with prefill rows.
        max_running: most requests that run at the same time.
        reserve: how much output of running requests is set aside at admission (default: SGLang's).
        max_states_per_path: soft cap on the states of one path of the tree.
        cost: seconds of a step; the default is ``LinearCost``, a round assumption.
        arrivals: ``"trace"``: at the recorded times; ``"causal"``: not before the request that it follows has
            finished; ``"closed"``: ``think_s`` after that one has finished, whatever time was recorded.
        seed: of the random queue policy.
        strict: False goes on after a broken invariant, as an engine without the check would.
        index: prefix ids prepared for this trace and tree page, to save their making in sweeps.
        progress: show a progress bar on stderr.

    ``presets`` gives the settings of whole engines: ``simulate(trace, geometry, **preset(name).apply(geometry,
    kv_tokens, state_slots).settings)``.

    Raises ValueError for settings that cannot work, RuleError where a user's rule misbehaves.
    """
    one_of("arrivals", arrivals, get_args(Arrivals))
    if not isinstance(trace, Trace):
        raise ValueError(f"trace={trace!r}: must be a Trace; load_trace reads one from a file or by its name")
    chosen = rule_of(rule)
    log, model = EventLog(), cost if cost is not None else LinearCost()
    policies: dict[str, Any] = {
        "eviction": eviction,
        "state_eviction": state_eviction,
        "refresh": refresh,
        "matching": matching,
        "branch_grid": branch_grid,
        "keep_tombstones": keep_tombstones,
        "max_states_per_path": max_states_per_path,
    }
    memory = Memory(geometry, kv_tokens, state_slots, worth=worth, index=index, emit=log, **policies)
    scheduler = Scheduler(
        memory,
        SimulatedExecutor(model, trace),
        chosen,
        policy=policy,
        mixed=mixed,
        max_running=max_running,
        reserve=reserve,
        seed=seed,
        strict=strict,
        log=log,
    )
    settings = {
        "trace": trace.name,
        "requests": len(trace),
        "rule": chosen.name,
        "kv_tokens": memory.allocator.total_tokens,
        "state_slots": state_slots,
        "policy": policy,
        **policies,
        "mixed": mixed,
        "max_running": max_running,
        "arrivals": arrivals,
        "seed": seed,
        "strict": strict,
    }
    run = Run(geometry, settings, log, trace.source, model.assumptions, provenance(), notes=list(trace.notes))
    run.loaded = dict(trace.loaded)
    with collecting(old=NEVER):
        _drive(scheduler, trace, arrivals, run, progress)
    run.violations = memory.violations(scheduler.lifecycle.holdings(), misplaced=strict)
    run.seen = _seen(trace, log)
    return run


def _seen(trace: Trace, log: EventLog) -> dict[str, int]:
    """Leading prompt tokens that an earlier request has computed, of any that was admitted before: what an unbounded,
    instant cache reuses. Those that were never admitted come last, so that they count for nobody."""
    requests = {request.request_id: request for request in trace}
    order = list(dict.fromkeys(event.request for kind in (Matched, Arrived) for event in log.of(kind)))
    return dict(zip(order, seen_prefixes(requests[name] for name in order), strict=True))


class SimulatedExecutor:
    """Knows every request's output beforehand and takes its time from a cost model."""

    def __init__(self, cost: CostModel, requests: Iterable[TraceRequest]) -> None:
        self.cost = cost
        self.outputs: dict[str, Runs] = {request.request_id: request.output for request in requests}

    def run(self, batch: Batch) -> StepResult:
        """Sample the recorded tokens; nothing is computed."""
        tokens = {}
        for sequence in batch.sequences:
            name = sequence.request
            if name in batch.samples:
                tokens[name] = self.said(name, len(sequence.text) - sequence.prompt_tokens, 1)[0]
        return StepResult(self.cost.step_s(batch.work), tokens)

    def said(self, request: str, first: int, count: int) -> Runs:
        """The recorded tokens ``[first, first + count)`` of a request's output."""
        return slice_runs(self.outputs[request], first, first + count)


class _Arrivals:
    """Requests in the order in which they come in, as what they wait for finishes."""

    def __init__(self, trace: Trace, mode: str) -> None:
        self.mode = mode
        self.heap: list[tuple[float, int, TraceRequest]] = []
        self.followers: dict[str, list[tuple[int, TraceRequest]]] = {}
        known = {request.request_id for request in trace}
        for at, request in enumerate(trace):
            if mode != "trace" and request.after in known and request.after is not None:
                self.followers.setdefault(request.after, []).append((at, request))
            else:
                heapq.heappush(self.heap, (request.arrival_s, at, request))

    def finished(self, request_id: str, now_s: float) -> None:
        for at, request in self.followers.pop(request_id, ()):
            due = now_s + request.think_s if self.mode == "closed" else max(now_s, request.arrival_s)
            heapq.heappush(self.heap, (due, at, request))

    def due(self, now_s: float) -> Iterable[tuple[TraceRequest, float]]:
        while self.heap and self.heap[0][0] <= now_s:
            due_s, _, request = heapq.heappop(self.heap)
            yield request, due_s


def _drive(scheduler: Scheduler, trace: Trace, mode: str, run: Run, progress: bool) -> None:
    arrivals = _Arrivals(trace, mode)
    with _bar(len(trace), progress) as advance:
        while arrivals.heap or not scheduler.idle:
            if scheduler.idle:
                scheduler.now_s = max(scheduler.now_s, arrivals.heap[0][0])
            for request, due_s in arrivals.due(scheduler.now_s):
                scheduler.submit(request, due_s)
            try:
                record = scheduler.step()
            except InvariantError as error:
                run.fault = _fault(error, scheduler)
                return
            if record is not None:
                run.records.append(record)
            for name in scheduler.take_ended():
                arrivals.finished(name, scheduler.now_s)
                advance(1)


def _fault(error: DepthchartError, scheduler: Scheduler) -> Fault:
    last = scheduler.log.entries[-1].event
    return Fault(
        type(error).__name__, str(error), getattr(last, "request", ""), scheduler.steps, scheduler.now_s
    )


def _bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return _Silent() if not shown else _Shown(tqdm(total=total, unit="request"))


class _Silent:
    def __enter__(self) -> Callable[[int], object]:
        return lambda count: None

    def __exit__(self, *exc: object) -> None:
        return None


class _Closable(Protocol):
    def update(self, count: int) -> object: ...
    def close(self) -> None: ...


class _Shown:
    def __init__(self, bar: _Closable) -> None:
        self.bar = bar

    def __enter__(self) -> Callable[[int], object]:
        return self.bar.update

    def __exit__(self, *exc: object) -> None:
        self.bar.close()
