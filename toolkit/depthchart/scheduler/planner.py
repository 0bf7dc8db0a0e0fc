"""Plans the rows of one step: decodes, started prefills, new admissions, and retractions to make room."""

from __future__ import annotations

from depthchart.cache.node import Node
from depthchart.errors import PoolExhausted
from depthchart.scheduler.admission import PrefillBudget
from depthchart.scheduler.lifecycle import TRACK_SLOTS, Decode, Extend, Lifecycle
from depthchart.scheduler.request import Job, Status
from depthchart.scheduler.reserve import OutputReserve
from depthchart.scheduler.running import Running, by_admission
from depthchart.scheduler.strides import Strides

__all__ = ["MIN_STATE_SLOTS", "Planner"]

ROW_SLOTS = 1 + TRACK_SLOTS  # the working state and the ping-pong pair
MIN_STATE_SLOTS = ROW_SLOTS + 1  # and the matched state, which stays locked


class Planner:
    """Works on the scheduler's own ``running``. ``refusal`` says why the last ``admit``
    said no; ``extends`` are the step's prefill rows so far; ``retracted`` the jobs that lost their memory in it."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        running: Running,
        mixed: bool,
        max_running: int,
        reserve: OutputReserve,
        strides: Strides | None = None,
    ) -> None:
        self.lifecycle, self.memory, self.page = lifecycle, lifecycle.memory, lifecycle.page
        self.running, self.mixed, self.max_running, self.reserve = running, mixed, max_running, reserve
        self.strides, self._admitted = strides, 0
        self.refusal = ""
        self.retracted: list[Job] = []
        self.extends: list[Extend] = []
        self._planned: set[str] = set()
        self._strides_planned = False  # whether the rows in strides have their places in this step
        self.start()

    def start(self) -> None:
        """Begin a new step with a full token budget."""
        geometry = self.lifecycle.geometry
        self.budget = PrefillBudget(self.lifecycle.rule, geometry, geometry.chunked_prefill_size, 0)
        self.retracted, self.extends, self._planned, self.refusal = [], [], set(), ""
        self._strides_planned = False

    # --- prefill ------------------------------------------------------------------------------------------

    def continue_started(self) -> None:
        """Plan the next extend of every started prefill, in order of admission, as far as the budget goes."""
        for job in [job for job in self.running.apart() if job.prefilling]:
            sequence = job.sequence
            if self.budget.step_tokens < 1 or sequence is None:  # retracted for one before it
                continue
            self.budget.room_tokens = self._free() + len(sequence.row) * self.page - sequence.computed
            self._extend(job, self.budget.next_cut(sequence.computed, job.goal, sequence.branch))

    def admit(self, job: Job) -> bool:
        """Begin a waiting job and plan its first extend; False, nothing changed, where it must wait."""
        if len(self.running) >= self.max_running:
            return self._refuse(f"{self.max_running} requests are running, the most allowed")
        if self.retracted and any(job is lost for lost in self.retracted):
            return self._refuse("retracted in this step")
        if job.refusal and (self.budget.step_tokens < 1 or self._surely_short(job)):
            return self._refuse(job.refusal)
        tree, output = self.memory.tree, min(job.remaining_output, self.reserve.clip_tokens)
        match = tree.lookup(job.text.all_ids, (len(job.text) - 1) // self.page)
        missing = self._missing_slots(match.node)
        if missing:
            return self._refuse(missing)
        path = sum([node.end - node.start for node in match.node.climb() if not node.kv_locks])
        self.budget.room_tokens = self._free() - path - self._reserved()
        need = len(job.text) - match.tokens + output
        end, reason = self.budget.first_cut(match.tokens, len(job.text), output, match.branch)
        if end <= match.tokens:
            short = self.budget.room_tokens < need
            job.short = (tree.grown, need) if short else None
            if short or self._any_planned() or self.budget.step_tokens < 1:
                return self._refuse(reason)
            end = self.budget.next_cut(
                match.tokens, len(job.text), match.branch
            )  # a whole step is less than one cut grid
        self._begin(job, end)
        return True

    def _begin(self, job: Job, end: int) -> None:
        sequence = self.lifecycle.begin(job.request_id, job.text, job.prompt_tokens, job.request.priority)
        assert sequence is not None, "the slots were counted before"
        job.sequence, job.goal, job.status, job.refusal = sequence, len(job.text), Status.RUNNING, ""
        job.short = None
        self._admitted += 1
        job.admitted = self._admitted
        self.running.add(job)
        try:
            plan = self._extend(job, end)
        except BaseException:  # a user's rule may raise anything: the request waits on, as if never tried
            self.lifecycle.abort(sequence)
            self.running.remove(job)
            job.sequence, job.status = None, Status.WAITING
            raise
        assert plan is not None, "the room was counted before"

    def _extend(self, job: Job, end: int) -> Extend | None:
        """Plan an extend, retracting others where its pages cannot be had; None where nobody is left for that."""
        assert job.sequence is not None
        prefix = job.sequence.computed
        while True:
            try:
                plan = self.lifecycle.plan_extend(job.sequence, end)
            except PoolExhausted:
                victim = self._victim(job)
                if victim is None:
                    if self._any_planned():
                        return None
                    raise
                self._retract(victim)
            else:
                self.budget.step_tokens -= end - prefix
                self._planned.add(job.request_id)
                self.extends.append(plan)
                return plan

    def _any_planned(self) -> bool:
        """Whether the step has a row already."""
        return bool(self._planned) or (self._strides_planned and bool(self.strides))

    def _surely_short(self, job: Job) -> bool:
        """Whether a job that was refused must be refused again, without looking at its match: there is no room even for
        the least that any request takes, or for what it needed itself when its match was no shorter."""
        tree = self.memory.tree
        if self.memory.free_state_slots + tree.evictable_states < ROW_SLOTS:
            return True
        if job.short is None or job.short[0] != tree.grown:
            return False
        free, need = self._free(), job.short[1]
        return free < need or free - self._reserved() < need

    def _reserved(self) -> int:
        """KV tokens set aside for the output of those that run."""
        reserved = self.reserve.tokens(self.running.apart(), self.page)
        return reserved if self.strides is None else reserved + self.strides.reserved(self.reserve, self.page)

    def _missing_slots(self, node: Node) -> str:
        room = self.memory.free_state_slots + self.memory.tree.evictable_states
        need = ROW_SLOTS + (node.state is not None and not node.state_locks)
        return f"{need} state slots needed, {room} are free or evictable" if need > room else ""

    def _refuse(self, reason: str) -> bool:
        self.refusal = reason
        return False

    # --- decode -------------------------------------------------------------------------------------------

    def decodes(self) -> list[Decode]:
        """One row for every decoding request; retracts as many as it takes to give the others their pages. Rows in
        strides are not listed: those that have none begin one."""
        self._make_room()
        plans = []
        for job in self._stepping():
            if self.strides is None:
                assert job.sequence is not None
                plans.append(self.lifecycle.plan_decode(job.sequence))
            elif job.stride is None:
                self.strides.begin(job)
            else:
                self.strides.fill(job)
            self._planned.add(job.request_id)
        self._strides_planned = True
        rows = len(plans) if self.strides is None else len(self.strides)
        if self.mixed:
            self.budget.step_tokens -= rows
        if rows:
            self.reserve.step()
        return plans

    def _stepping(self) -> list[Job]:
        """The decoding jobs that something must be done for before a decode step, in order of admission."""
        apart = [job for job in self.running.apart() if job.decoding and job.request_id not in self._planned]
        return by_admission(apart + self._full()) if self.strides is not None else apart

    def _full(self) -> list[Job]:
        return [] if self.strides is None else self.strides.full()

    def _make_room(self) -> None:
        page = self.page
        while True:
            growing = [job for job in self.running.apart() if job.decoding and _row_is_full(job, page)]
            growing += self._full()
            if len(growing) * page <= self._free():
                return
            keep = max(growing, key=lambda job: (job.sampled, -job.order))
            victim = self._victim(keep)
            if victim is None:
                return
            self._retract(victim)

    def _victim(self, keep: Job) -> Job | None:
        """Whom to retract: the decoding request with the fewest output tokens (of equal ones the longest, then
        the newest), or else a started prefill; never ``keep``, nor one with a row in this step."""
        others = [
            job
            for job in (self.running.apart() if self._strides_planned else self.running.jobs.values())
            if job is not keep and job.request_id not in self._planned
        ]
        decoding = [job for job in others if job.decoding]
        return min(decoding or others, key=lambda job: (job.sampled, -job.goal, -job.order), default=None)

    def _retract(self, job: Job) -> None:
        assert job.sequence is not None
        if self.strides is not None:
            self.strides.settle(job)
        self.lifecycle.retract(job.sequence)
        job.sequence, job.status = None, Status.WAITING
        self.running.remove(job)
        self.retracted.append(job)
        self.reserve.retracted(self.running.jobs.values())

    # --- room ---------------------------------------------------------------------------------------------

    def _free(self) -> int:
        return self.memory.allocator.free_tokens + self.memory.tree.evictable_tokens


def _row_is_full(job: Job, page: int) -> bool:
    assert job.sequence is not None
    return job.sequence.computed == len(job.sequence.row) * page
