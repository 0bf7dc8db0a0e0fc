"""Decode rows that are alike for a while: booked when something happens to them, not at every step.

Where the executor knows its tokens beforehand (a simulator), a decoding request's next steps are alike until it reaches
a checkpoint or ends: a stride. Its row takes part in every step, and gets its pages when it needs them (``fill``); its
books are brought up to date at the stride's end, or before, where somebody takes its memory away (``settle``). What
happens, and when, is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.request import Job
from depthchart.scheduler.reserve import OutputReserve
from depthchart.scheduler.running import Running, by_admission
from depthchart.tokens import Runs

__all__ = ["Said", "Strides"]

Said: TypeAlias = Callable[[str, int, int], Runs]
"""(request, first, count) -> the tokens ``[first, first + count)`` of the request's output."""


class Stride:
    """``ends``: the decode step after which it is over; ``full``: the one after which its row has no room left. Both are
    counted as ``Strides.steps``."""

    __slots__ = ("begun", "clock", "ends", "full")

    def __init__(self, clock: Strides, length: int, room: int) -> None:
        self.clock, self.begun = clock, clock.steps
        self.ends, self.full = clock.steps + length, clock.steps + room

    @property
    def ran(self) -> int:
        """Steps so far."""
        return self.clock.steps - self.begun


class Strides:
    """The strides under way. ``steps`` counts the decode steps that have run."""

    def __init__(self, lifecycle: Lifecycle, said: Said, running: Running) -> None:
        self.lifecycle, self.said, self.running = lifecycle, said, running
        self.steps = 0
        self._contexts: dict[str, int] = {}  # request -> tokens in its row's context, less the clock
        # output left and room in the row's pages, both plus the clock: the first columns of [2, room for strides]
        self._needs = np.zeros((2, 64), np.int64)
        self._names: list[str] = []  # whose they are
        self._places: dict[str, int] = {}
        self._counted: tuple[int, float, int] | None = None  # by ``reserved``: steps, share, tokens
        self._ends: dict[int, list[tuple[Job, Stride]]] = {}
        self._full: dict[int, list[tuple[Job, Stride]]] = {}
        self._checkpoints: dict[int, int] = {}  # clock -> strides that end on the decode grid then

    def begin(self, job: Job) -> None:
        """Take the page that the next step may need, and see how far the stride goes. Raises PoolExhausted without a
        page."""
        sequence, life = job.sequence, self.lifecycle
        assert sequence is not None
        life.take_row(sequence, sequence.computed + 1)
        room = len(sequence.row) * life.page - sequence.computed
        to_grid = life.decode_grid - sequence.computed % life.decode_grid
        output = job.remaining_output
        stride = Stride(self, min(to_grid, output), room)
        self.running.begin_stride(job, stride)
        self._contexts[job.request_id] = sequence.computed + 1 - self.steps
        self._need(job.request_id, output + self.steps, stride.full)
        self._ends.setdefault(stride.ends, []).append((job, stride))
        self._await_full(job, stride)
        if to_grid <= output:
            self._checkpoints[stride.ends] = self._checkpoints.get(stride.ends, 0) + 1

    def full(self) -> list[Job]:
        """The jobs that need a page (``fill``) for their row to take part in the next decode step."""
        due = self._full.get(self.steps)
        return (
            [job for job, stride in due if job.stride is stride and stride.full == self.steps] if due else []
        )

    def fill(self, job: Job) -> None:
        """Give a full row its next page. Raises PoolExhausted without one."""
        stride, sequence = job.stride, job.sequence
        assert isinstance(stride, Stride)
        assert sequence is not None
        self.lifecycle.take_row(sequence, sequence.computed + stride.ran + 1)
        stride.full += self.lifecycle.page
        self._needs[1, self._places[job.request_id]] = stride.full
        self._counted = None
        self._await_full(job, stride)

    def _await_full(self, job: Job, stride: Stride) -> None:
        if stride.full < stride.ends:
            self._full.setdefault(stride.full, []).append((job, stride))

    def __len__(self) -> int:
        """Strides under way."""
        return len(self._contexts)

    def contexts(self) -> tuple[int, ...]:
        """Tokens in the context of each row of the next decode step, the new one included."""
        return tuple([before + self.steps for before in self._contexts.values()])

    def reserved(self, reserve: OutputReserve, page: int) -> int:
        """``OutputReserve.tokens`` of the jobs in strides."""
        if not self._names:
            return 0
        if self._counted is not None and self._counted[:2] == (self.steps, reserve.share):
            return self._counted[2]
        output, room = self._needs[:, : len(self._names)] - self.steps
        more = (np.minimum(output, reserve.clip_tokens) * reserve.share).astype(np.int64) - room
        tokens = int(((np.maximum(more, 0) + (page - 1)) // page).sum()) * page
        self._counted = self.steps, reserve.share, tokens
        return tokens

    def checkpoints(self) -> int:
        """Snapshots that the next decode step writes."""
        return self._checkpoints.get(self.steps + 1, 0)

    def ended(self) -> list[Job]:
        """A decode step has run. The jobs whose strides end with it, in order of admission, still to be booked."""
        self._full.pop(self.steps, None)
        self.steps += 1
        self._checkpoints.pop(self.steps, None)
        ended = [job for job, stride in self._ends.pop(self.steps, ()) if job.stride is stride]
        return by_admission(ended)

    def settle(self, job: Job) -> None:
        """Bring the books of a job up to date in the midst of its stride, which is over then."""
        stride, sequence = job.stride, job.sequence
        if stride is None:
            return
        assert sequence is not None
        if (sequence.computed + stride.ends - stride.begun) % self.lifecycle.decode_grid == 0:
            self._checkpoints[stride.ends] -= 1
        if stride.ran:
            self.book(job)
        else:
            self._over(job)

    def book(self, job: Job) -> None:
        """Book the tokens that ran. The text gets the one sampled last as well, which has no KV yet."""
        stride, sequence = job.stride, job.sequence
        assert stride is not None
        assert sequence is not None
        ran, first = stride.ran, job.sampled - stride.ran
        self._over(job)
        job.text.append(self.said(job.request_id, first, ran))
        self.lifecycle.commit_decode(self.lifecycle.plan_decode(sequence, ran))

    def _need(self, name: str, output: int, room: int) -> None:
        place = len(self._names)
        if place == self._needs.shape[1]:
            self._needs = np.concatenate((self._needs, np.zeros_like(self._needs)), axis=1)
        self._needs[0, place], self._needs[1, place] = output, room
        self._names.append(name)
        self._places[name] = place
        self._counted = None

    def _over(self, job: Job) -> None:
        self.running.end_stride(job)
        self._counted = None
        name = job.request_id
        del self._contexts[name]
        place, last = self._places.pop(name), self._names.pop()
        if last != name:  # the last one takes its place
            self._needs[:, place] = self._needs[:, len(self._names)]
            self._names[place], self._places[last] = last, place
