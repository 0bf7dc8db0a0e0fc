"""What the scheduler asks of whoever runs the tokens, simulated or real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from depthchart.scheduler.lifecycle import Decode, Extend, StateCopy
from depthchart.scheduler.sequence import Sequence
from depthchart.scheduler.work import Work
from depthchart.tokens import Run

__all__ = ["Batch", "Executor", "StepResult"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: first the state ``copies``, then all rows together. ``samples`` names the requests whose row
    ends at their last known token, so that the next one is sampled. The decode rows of an executor that foresees are
    not planned one by one: ``contexts`` are their contexts in tokens, ``snapshots`` the states that they write."""

    step: int
    copies: tuple[StateCopy, ...]
    extends: tuple[Extend, ...]
    decodes: tuple[Decode, ...]
    samples: frozenset[str]
    contexts: tuple[int, ...] = ()
    snapshots: int = 0

    @property
    def decode_rows(self) -> int:
        return len(self.decodes) + len(self.contexts)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """The requests of all rows, prefill first."""
        return (*(row.sequence for row in self.extends), *(row.sequence for row in self.decodes))

    @property
    def work(self) -> Work:
        """The amount of work, for a cost model. A snapshot counts as one state written."""
        decode, snapshots = self.contexts, self.snapshots + sum(len(row.snapshots) for row in self.extends)
        if self.decodes:
            decode = (*[row.position + 1 for row in self.decodes], *self.contexts)
            snapshots += sum([row.snapshot is not None for row in self.decodes])
        return Work(
            prefill=tuple([(row.prefix, row.end - row.prefix) for row in self.extends]),
            decode=decode,
            state_copies=len(self.copies) + snapshots,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """``seconds`` that the step took, and the token that each sampling request got, as a run of length 1.
    A request in ``stopped`` ends with this token."""

    seconds: float
    tokens: Mapping[str, Run]
    stopped: frozenset[str] = field(default_factory=frozenset)


class Executor(Protocol):
    """Runs the tokens of a batch and writes the snapshots that it asks for.

    One that knows its tokens beforehand has a method ``said`` (``strides.Said``) as well, and none of its requests
    stops early: its decode rows are then booked by strides.
    """

    def run(self, batch: Batch) -> StepResult: ...
