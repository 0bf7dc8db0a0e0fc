"""What the scheduler knows of a request: what was asked (Request) and where it stands (Job)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from depthchart.scheduler.sequence import Sequence
from depthchart.tokens import Runs, Text

__all__ = ["Job", "Request", "Status"]


class Request(Protocol):
    """What a caller asks for; ``traces.TraceRequest`` is one. Only the executor may read ``output``: the
    scheduler knows its length alone, as an engine knows max_new_tokens."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt(self) -> Runs: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def session(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def extra_key(self) -> str | None: ...


class Stride(Protocol):
    """Decode steps from ``begun`` until ``ends``, both in decode steps of the scheduler, of which ``ran`` have run."""

    begun: int
    ends: int

    @property
    def ran(self) -> int: ...


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way. ``order``: its place in the order of arrival; ``text``: the prompt and what was
    sampled so far; ``goal``: how many tokens prefill has to compute (longer than the prompt after a
    retraction); ``refusal``: why it was not admitted the last time, in words; ``admitted``: its place in the order of
    admission; ``short``: the tree's ``grown`` when KV was last too short for it, and how many tokens it needed then;
    ``stride``: the decode steps that it has run ahead of its books (``strides``)."""

    request: Request
    order: int
    text: Text
    prompt_tokens: int
    output_tokens: int
    status: Status = Status.WAITING
    sequence: Sequence | None = None
    goal: int = 0
    refusal: str = ""
    admitted: int = 0
    short: tuple[int, int] | None = None
    stride: Stride | None = None
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id

    @property
    def sampled(self) -> int:
        """Output tokens so far."""
        return len(self.text) - self.prompt_tokens + self.ahead

    @property
    def ahead(self) -> int:
        """Decode steps that have run and are not in the text and the sequence yet."""
        return 0 if self.stride is None else self.stride.ran

    @property
    def remaining_output(self) -> int:
        return self.output_tokens - self.sampled

    @property
    def prefilling(self) -> bool:
        return self.sequence is not None and self.sequence.computed < self.goal

    @property
    def decoding(self) -> bool:
        return self.sequence is not None and self.sequence.computed >= self.goal
