"""The step loop: which rows run next, on which memory, and what becomes of them.

One step is planned from the queues, run by an executor, and booked. Prefill goes first; decode rows run in
steps without prefill, or in all steps where ``mixed`` is on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from depthchart.cache.memory import Memory
from depthchart.depth import Rule
from depthchart.errors import InvariantError
from depthchart.events import Aborted, AdmissionRefused, Arrived, EventLog, FirstToken, Rejected, Violation
from depthchart.geometry import positive_int
from depthchart.scheduler.executor import Batch, Executor, StepResult
from depthchart.scheduler.lifecycle import Decode, Extend, Lifecycle
from depthchart.scheduler.planner import MIN_STATE_SLOTS, Planner
from depthchart.scheduler.queue import order_waiting, queue_policy
from depthchart.scheduler.request import Job, Request, Status
from depthchart.scheduler.reserve import OutputReserve
from depthchart.scheduler.running import Running
from depthchart.scheduler.strides import Said, Strides
from depthchart.tokens import Run, Text

__all__ = ["Scheduler", "StepRecord"]


class StepRecord(NamedTuple):
    """One step in numbers (columns.STEPS). The pools are read when the step has taken what it needs."""

    step: int
    time_s: float
    duration_s: float
    prefill_tokens: int
    prefill_rows: int
    decode_rows: int
    waiting: int
    running: int
    free_kv_tokens: int
    evictable_kv_tokens: int
    free_state_slots: int
    evictable_state_slots: int


class Scheduler:
    """Requests in, steps out. ``now_s`` is the time at which the next step starts; whoever drives the loop may
    move it on (to the next arrival). ``log`` receives every event. ``keep_done=False`` keeps nothing of requests that
    ended, so that memory does not grow with their number.

    Raises ValueError for an unknown policy or pools too small for any request.
    """

    def __init__(
        self,
        memory: Memory,
        executor: Executor,
        rule: str | Rule = "absolute",
        *,
        policy: str = "fcfs",
        mixed: bool = False,
        max_running: int = 256,
        reserve: OutputReserve | None = None,
        spare_pages: int = 0,
        seed: int = 0,
        strict: bool = True,
        log: EventLog | None = None,
        keep_done: bool = True,
    ) -> None:
        if memory.states.total_slots < MIN_STATE_SLOTS:
            raise ValueError(
                f"state_slots={memory.states.total_slots}: one request takes {MIN_STATE_SLOTS} (the matched state, its "
                f"working copy and two for checkpoints); nearest legal: {MIN_STATE_SLOTS}"
            )
        max_running = positive_int("max_running", max_running)
        self.log = EventLog() if log is None else log
        self.memory, self.executor, self.policy = memory, executor, queue_policy(policy)
        self.lifecycle = Lifecycle(memory, rule, strict=strict, spare_pages=spare_pages, emit=self.log)
        self.waiting: dict[str, Job] = {}
        self._running = Running()
        self.running = self._running.jobs
        self.done: dict[str, Job] = {}
        self._ended: list[str] = []
        self._keep_done = keep_done
        self.now_s, self.steps = 0.0, 0
        self._rng = random.Random(seed)
        said: Said | None = getattr(executor, "said", None)
        self._strides = None if said is None else Strides(self.lifecycle, said, self._running)
        self._planner = Planner(
            self.lifecycle, self._running, mixed, max_running, reserve or OutputReserve(), self._strides
        )
        self._mixed, self._submitted = mixed, 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    # --- in and out ---------------------------------------------------------------------------------------

    def submit(self, request: Request, arrival_s: float | None = None) -> Job:
        """Queue a request that came at ``arrival_s`` (default: now). One that could never fit is rejected at
        once (its status says so)."""
        name = request.request_id
        if name in self.waiting or name in self.running or name in self.done:
            raise ValueError(f"request_id={name!r}: was submitted before; ids must be unique")
        text = Text(self.memory.index, request.prompt, request.extra_key or "")
        if not len(text):
            raise ValueError(f"request_id={name!r}: the prompt must have at least one token")
        job = Job(request, self._submitted, text, len(text), request.output_tokens)
        self._submitted += 1
        self._clock()
        arrived = self.now_s if arrival_s is None else arrival_s
        self.log(Arrived(name, len(text), request.session or "", arrived))
        need, room = len(text) + job.output_tokens, self.memory.allocator.total_tokens
        if need > room:
            return self._end(
                job,
                Status.REJECTED,
                Rejected(name, f"{need} prompt and output tokens; the pool holds {room}"),
            )
        self.waiting[name] = job
        return job

    def abort(self, request_id: str) -> None:
        """Take a waiting or running request away and give back what it holds; nothing is donated.

        Raises ValueError where it is neither.
        """
        self._clock()
        if request_id in self.waiting:
            self._end(self.waiting.pop(request_id), Status.ABORTED, Aborted(request_id, 0))
        elif request_id in self.running:
            job = self.running[request_id]
            assert job.sequence is not None
            if self._strides is not None:
                self._strides.settle(job)
            self._running.remove(job)
            self.lifecycle.abort(job.sequence)
            self._end(job, Status.ABORTED)
        else:
            raise ValueError(f"request_id={request_id!r}: is neither waiting nor running")

    def take_ended(self) -> list[str]:
        """The requests that ended since this was last asked, in order."""
        ended, self._ended = self._ended, []
        return ended

    # --- one step -----------------------------------------------------------------------------------------

    def step(self) -> StepRecord | None:
        """Plan, run and book one step; None where there is nothing to run. A broken invariant raises in strict
        mode, after its Violation was logged, and leaves the books in order."""
        if self.idle:
            return None
        self._clock()
        batch = self._batch(*self._plan())
        state = self._state()
        try:
            result = self.executor.run(batch)
        except BaseException:
            self._cancel(batch.extends)
            raise
        if not 0 <= result.seconds < math.inf:
            self._cancel(batch.extends)
            raise ValueError(f"seconds={result.seconds!r}: a step must take a finite time of at least 0 s")
        prefill = sum(row.end - row.prefix for row in batch.extends)
        rows = prefill, len(batch.extends), batch.decode_rows
        record = StepRecord(self.steps, self.now_s, result.seconds, *rows, *state)
        self.now_s += result.seconds
        self._clock()
        self._book(batch, result)
        self.steps += 1
        return record

    def _batch(self, extends: list[Extend], decodes: list[Decode], coasting: bool) -> Batch:
        samples = frozenset(self._sampling(extends, decodes)) if extends or decodes else frozenset()
        rows = self.lifecycle.take_copies(), tuple(extends), tuple(decodes), samples
        if self._strides is None or not coasting:
            return Batch(self.steps, *rows)
        return Batch(self.steps, *rows, self._strides.contexts(), self._strides.checkpoints())

    def _plan(self) -> tuple[list[Extend], list[Decode], bool]:
        planner = self._planner
        planner.start()
        if self._coasting():
            planner.reserve.step()
            return [], [], True  # every row is in the midst of a stride: nothing to plan
        try:
            decodes, coasting = self._plan_rows()
        except BaseException as error:
            self._tell(error)
            self._cancel(planner.extends)
            raise
        finally:
            self._wait_again(planner.retracted)
        coasting = coasting and bool(self._strides)
        assert planner.extends or decodes or coasting, "a step with work to do must run something"
        return planner.extends, decodes, coasting

    def _coasting(self) -> bool:
        """Whether every row is in the midst of a stride and has room."""
        strides = self._strides
        return bool(strides and not self.waiting and len(strides) == len(self.running) and not strides.full())

    def _plan_rows(self) -> tuple[list[Decode], bool]:
        """The step's decode rows, and whether those in strides take part."""
        planner = self._planner
        decodes = planner.decodes() if self._mixed else []
        planner.continue_started()
        for job in self._in_order():
            if not planner.admit(job):
                self._refused(job)
                break
            del self.waiting[job.request_id]
        if self._mixed:
            return decodes, True
        return ([], False) if planner.extends else (planner.decodes(), True)

    def _in_order(self) -> Iterator[Job]:
        """The waiting jobs as they are to be tried; each must be taken out of ``waiting`` before the next is asked
        for. ``waiting`` itself is in order of arrival."""
        if self.policy == "fcfs":
            while self.waiting:
                yield next(iter(self.waiting.values()))
        elif self.waiting:
            yield from order_waiting(self.policy, self.waiting.values(), self.memory.tree, self._rng)

    def _wait_again(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        waiting = sorted([*self.waiting.values(), *jobs], key=lambda job: job.order)
        self.waiting.clear()
        self.waiting.update((job.request_id, job) for job in waiting)

    def _sampling(self, extends: list[Extend], decodes: list[Decode]) -> Iterator[str]:
        for row in extends:
            job = self.running[row.sequence.request]
            if row.end == job.goal and job.remaining_output > 0:
                yield job.request_id
        yield from (row.sequence.request for row in decodes)

    # --- booking ------------------------------------------------------------------------------------------

    def _book(self, batch: Batch, result: StepResult) -> None:
        left = list(batch.extends)
        try:
            while left:
                plan = left.pop(0)
                self.lifecycle.commit_extend(plan)
                name = plan.sequence.request
                self._advance(self.running[name], result.tokens.get(name), name in result.stopped)
            for row in batch.decodes:
                self.lifecycle.commit_decode(row)
                name = row.sequence.request
                self._advance(self.running[name], result.tokens.get(name), name in result.stopped)
            if batch.contexts and self._strides is not None:
                for job in self._strides.ended():
                    self._strides.book(job)
                    self._advance(job, None)
        except BaseException:
            self._cancel(left)
            raise

    def _advance(self, job: Job, token: Run | None, stopped: bool = False) -> None:
        """After a row was booked: take its sampled token, then finish or publish its checkpoint."""
        sequence = job.sequence
        assert sequence is not None
        name, prefill = job.request_id, sequence.computed <= job.goal
        ended = sequence.computed >= job.goal and job.remaining_output <= 0
        if token is not None:
            job.text.append([token])
            if job.sampled == 1:
                self.log(FirstToken(name))
            ended = job.remaining_output <= 0 or stopped
        try:
            if ended:
                self.lifecycle.finish(sequence)
                self._running.remove(job)
                self._end(job, Status.FINISHED)
            elif prefill:
                self.lifecycle.checkpoint(sequence)
        except InvariantError as error:
            self._tell(error, name)
            raise

    def _cancel(self, extends: Iterable[Extend]) -> None:
        for plan in extends:
            self.lifecycle.cancel_extend(plan)

    # --- helpers ------------------------------------------------------------------------------------------

    def _clock(self) -> None:
        self.log.step, self.log.time_s = self.steps, self.now_s

    def _refused(self, job: Job) -> None:
        """Log the first refusal since the request began to wait; later ones differ in their numbers only."""
        refusal = self._planner.refusal
        if not job.refusal:
            self.log(AdmissionRefused(job.request_id, refusal))
        job.refusal = refusal

    def _end(self, job: Job, status: Status, event: Aborted | Rejected | None = None) -> Job:
        job.status, job.sequence = status, None
        if self._keep_done:
            self.done[job.request_id] = job
        self._ended.append(job.request_id)
        if event is not None:
            self.log(event)
        self.memory.forget(other.text for queue in (self.waiting, self.running) for other in queue.values())
        return job

    def _tell(self, error: BaseException, request: str = "") -> None:
        """Log a broken invariant before it leaves the loop."""
        if isinstance(error, InvariantError):
            self.log(Violation(type(error).__name__, str(error), request))

    def _state(self) -> tuple[int, ...]:
        """Queues and pools, as the last fields of a StepRecord."""
        memory, tree = self.memory, self.memory.tree
        kv = memory.free_kv_tokens, tree.evictable_tokens
        return (len(self.waiting), len(self.running), *kv, memory.free_state_slots, tree.evictable_states)
