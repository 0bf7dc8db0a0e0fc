"""How much KV running requests may still need: the share of their output that is set aside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from depthchart.scheduler.request import Job

__all__ = ["OutputReserve"]


@dataclass(slots=True)
class OutputReserve:
    """Running requests rarely all grow to their full length, so only a ``share`` of their remaining output
    is set aside. It decays from ``start`` to ``floor`` over ``decay_steps`` steps without a retraction and is
    set anew by one (SGLang's new_token_ratio, with its defaults). ``start = floor = 1`` never overcommits.

    Raises ValueError for a share outside (0, 1] or a floor above the start.
    """

    start: float = 0.7
    floor: float = 0.098
    decay_steps: int = 600
    clip_tokens: int = 4096
    share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start", "floor"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(
                    f"reserve {name}={value!r}: must lie in (0, 1]; nearest legal: {1.0 if value > 1 else 0.01}"
                )
        if self.floor > self.start:
            raise ValueError(
                f"reserve floor={self.floor}: must not exceed start={self.start}; nearest legal: {self.start}"
            )
        self.share = self.start

    def tokens(self, running: Iterable[Job], page: int) -> int:
        """KV tokens, in whole pages, that the running requests may still take beyond their rows."""
        total, share, clip = 0, self.share, self.clip_tokens
        for job in running:
            sequence, ahead = job.sequence, 0 if job.stride is None else job.stride.ran
            assert sequence is not None
            computed = sequence.computed + ahead
            output = job.output_tokens - (len(job.text) - job.prompt_tokens + ahead)
            more = int(min(output, clip) * share) if output > 0 else 0
            more += max(job.goal - computed, 0) - (len(sequence.row) * page - computed)
            if more > 0:
                total += -(-more // page) * page
        return total

    def step(self) -> None:
        """A decode step went through."""
        self.share = max(self.floor, self.share - (self.start - self.floor) / self.decay_steps)

    def retracted(self, running: Iterable[Job]) -> None:
        """Requests had to be retracted: set the share by what the others have really used so far."""
        sampled = asked = 0
        for job in running:
            sampled += job.sampled
            asked += max(job.output_tokens, 1)
        self.share = min(self.start, max(self.floor, (sampled + 20) / asked)) if asked else self.start
