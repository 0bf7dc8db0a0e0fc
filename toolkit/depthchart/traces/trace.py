"""What a trace is: requests whose tokens are named exactly, without text and without hashes.

A *segment* is an endless line of tokens; token j of segment s is a fixed function of (s, j), and
two different (s, j) are two different tokens. A prompt is a tuple of *runs* (segment, start, length),
so two prompts share a prefix exactly where their runs say so, and a prompt of 100,000 tokens is
a handful of numbers. Segment 0 holds literal tokens by convention: (0, t, 1) is vocabulary id t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from depthchart.tokens import (
    INDEX_LIMIT,
    SEGMENT_LIMIT,
    VOCABULARY,
    Run,
    Runs,
    canonical,
    common_prefix,
    page_keys,
    runs_length,
    runs_to_tokens,
    slice_runs,
)

__all__ = [
    "INDEX_LIMIT",
    "SEGMENT_LIMIT",
    "VOCABULARY",
    "Run",
    "Runs",
    "Trace",
    "TraceRequest",
    "canonical",
    "common_prefix",
    "page_keys",
    "runs_length",
    "runs_to_tokens",
    "slice_runs",
]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Args:
        request_id: unique within its trace.
        arrival_s: seconds since the trace began, for an open-loop replay.
        prompt: canonical runs of the prompt, at least one token.
        output: canonical runs of the reply; may be empty. Its last token's KV is never computed.
        session: conversation or agent session that the request belongs to, if known.
        priority: larger is more urgent.
        extra_key: namespace; requests with different keys share nothing (model, LoRA, tenant).
        after: request that must have finished first, for a closed-loop replay.
        think_s: seconds between the end of ``after`` and this request, for a closed-loop replay.
    """

    request_id: str
    arrival_s: float
    prompt: Runs
    output: Runs
    session: str | None = None
    priority: int = 0
    extra_key: str | None = None
    after: str | None = None
    think_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return runs_length(self.prompt)

    @property
    def output_tokens(self) -> int:
        """Length of the reply in tokens."""
        return runs_length(self.output)


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, with their source.

    Args:
        name: short name for tables and figures.
        requests: sorted by ``arrival_s`` (equal times keep their order) on construction.
        source: where it comes from; shown wherever a figure is shown.
        seed: the generator's seed, None for a recorded trace.
        notes: what a reader must know: assumptions made, lines left out.
        loaded: what ``load_trace`` was given to read it: ``path``, and ``format`` and reader's options where they
            were given; empty for a trace that was made otherwise.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    source: str = "unknown"
    seed: int | None = None
    notes: tuple[str, ...] = ()
    loaded: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for request in self.requests:
            for name in ("arrival_s", "think_s"):
                value = getattr(request, name)
                if not math.isfinite(value) or (name == "think_s" and value < 0):
                    least = " and at least 0" if name == "think_s" else ""
                    raise ValueError(f"{name}={value!r} of {request.request_id!r}: must be finite{least}")
        ordered = tuple(sorted(self.requests, key=lambda request: request.arrival_s))
        object.__setattr__(self, "requests", ordered)
        seen: set[str] = set()
        for request in ordered:
            if request.request_id in seen:
                raise ValueError(
                    f"request_id={request.request_id!r} appears twice in {self.name!r}; ids must be unique"
                )
            seen.add(request.request_id)
        _check_order(ordered)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)

    @property
    def prompt_tokens(self) -> int:
        """Sum of the prompts, in tokens."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Sum of the replies, in tokens."""
        return sum(request.output_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s if self.requests else 0.0

    @property
    def sessions(self) -> int:
        """Number of sessions; a request without a session counts as one of its own."""
        named = {request.session for request in self.requests if request.session is not None}
        return len(named) + sum(request.session is None for request in self.requests)

    def head(self, count: int) -> Trace:
        """The first ``count`` requests; an ``after`` that points outside is dropped."""
        if count < 0:
            raise ValueError(f"count={count} must be 0 or more; nearest legal value: 0")
        if count >= len(self.requests):
            return self
        kept = self.requests[:count]
        ids = {request.request_id for request in kept}
        kept = tuple(r if r.after is None or r.after in ids else replace(r, after=None) for r in kept)
        return replace(self, requests=kept, notes=(*self.notes, f"first {count} of {len(self)} requests"))

    def describe(self) -> dict[str, object]:
        """Totals as one flat record; ``depthchart.traces.describe`` gives the frames."""
        return {
            "name": self.name,
            "requests": len(self),
            "sessions": self.sessions,
            "duration_s": self.duration_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prompt_tokens_max": max((r.prompt_tokens for r in self.requests), default=0),
            "source": self.source,
            "seed": self.seed,
        }

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self):,} requests in {self.sessions:,} sessions "
            f"over {self.duration_s:,.1f} s, {self.prompt_tokens:,} prompt and "
            f"{self.output_tokens:,} output tokens ({self.source})"
        )


def _check_order(requests: tuple[TraceRequest, ...]) -> None:
    """Raise ValueError where requests wait for each other in a ring: none of them could ever come."""
    after = {request.request_id: request.after for request in requests}
    sound: set[str] = set()
    for start in after:
        chain: dict[str, None] = {}
        name: str | None = start
        while name is not None and name in after and name not in sound:
            if name in chain:
                ring = " after ".join([*list(chain)[list(chain).index(name) :], name])
                raise ValueError(f"after: requests wait for each other: {ring}")
            chain[name] = None
            name = after[name]
        sound.update(chain)
