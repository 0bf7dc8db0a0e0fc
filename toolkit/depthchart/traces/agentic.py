"""Synthetic agentic tool loops: the workload for which hybrid prefix caches are built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from depthchart.traces.dice import Dice, Span, check_positive, check_shares, check_spans
from depthchart.traces.trace import Runs, TraceRequest, canonical, runs_length, slice_runs


@dataclass(frozen=True)
class AgenticShape:
    """What an agentic workload looks like.

    Args:
        requests: number of requests in the trace.
        sessions_per_s: mean rate at which sessions begin (Poisson), per second.
        agents: kinds of agent; sessions of one kind share its system prompt.
        system_tokens: span of a system prompt with its tool descriptions, in tokens.
        task_tokens: span of the user's task, in tokens.
        turns: span of main-line turns in a session.
        output_tokens: span of a reply, in tokens.
        tool_tokens: span of one tool result, in tokens.
        edit_share: share of turns before which the end of the context is rewritten.
        edit_tokens: span of how far from the end such an edit begins, in tokens.
        branch_share: share of turns that fan out into parallel branches.
        branches: span of the number of parallel branches.
        branch_turns: span of the turns within a branch.
        context_limit: a prompt that would be longer is compacted to system prompt, task and summary.
        summary_tokens: span of that summary, in tokens.
        tool_s: mean time that a tool takes, in seconds.
        reply_s_per_token: time per output token assumed for open-loop arrivals, in seconds.
    """

    requests: int = 600
    sessions_per_s: float = 0.15
    agents: int = 3
    system_tokens: Span = (1400, 5200)
    task_tokens: Span = (60, 900)
    turns: Span = (3, 15)
    output_tokens: Span = (50, 600)
    tool_tokens: Span = (60, 2400)
    edit_share: float = 0.12
    edit_tokens: Span = (40, 1200)
    branch_share: float = 0.10
    branches: Span = (2, 4)
    branch_turns: Span = (1, 3)
    context_limit: int = 24_000
    summary_tokens: Span = (400, 1500)
    tool_s: float = 4.0
    reply_s_per_token: float = 0.02

    def __post_init__(self) -> None:
        check_positive(requests=self.requests, sessions_per_s=self.sessions_per_s, agents=self.agents)
        check_positive(tool_s=self.tool_s, reply_s_per_token=self.reply_s_per_token)
        check_spans(system_tokens=self.system_tokens, task_tokens=self.task_tokens, turns=self.turns)
        check_spans(output_tokens=self.output_tokens, tool_tokens=self.tool_tokens)
        check_spans(edit_tokens=self.edit_tokens, summary_tokens=self.summary_tokens)
        check_spans(branches=self.branches, branch_turns=self.branch_turns)
        check_shares(edit_share=self.edit_share, branch_share=self.branch_share)
        least = self.system_tokens[1] + self.task_tokens[1] + self.summary_tokens[1] + self.tool_tokens[1]
        if self.context_limit < least:
            raise ValueError(
                f"context_limit={self.context_limit} must hold a compacted context and one tool result; "
                f"nearest legal value: {least}"
            )


def agentic_requests(shape: AgenticShape, dice: Dice) -> Iterator[TraceRequest]:
    """Sessions one after another, each in its own order of time; sorted by whoever builds the trace."""
    systems = [dice.fresh(dice.length(shape.system_tokens)) for _ in range(shape.agents)]
    start_s = 0.0
    made = 0
    number = 0
    while made < shape.requests:
        session = _Session(shape, dice, f"s{number:04d}", systems[number % shape.agents], start_s)
        for request in session.run():
            yield request
            made += 1
            if made == shape.requests:
                return
        number += 1
        start_s = round(start_s + dice.pause(1.0 / shape.sessions_per_s), 3)


class _Session:
    """One agent at work: a main line of turns over a growing context, with fan-outs."""

    def __init__(
        self, shape: AgenticShape, dice: Dice, name: str, system: tuple[int, int, int], start_s: float
    ) -> None:
        self.shape, self.dice, self.name = shape, dice, name
        self.head = canonical((system, dice.fresh(dice.length(shape.task_tokens))))
        self.context = self.head
        self.clock_s = start_s
        self.made = 0

    def run(self) -> Iterator[TraceRequest]:
        last: str | None = None
        pause_s = 0.0
        for _ in range(self.dice.count(self.shape.turns)):
            self._edit()
            request = self._ask(self.context, self.clock_s, last, pause_s)
            yield request
            self.clock_s = self._end_s(request)
            self.context = canonical((*self.context, *request.output))
            last = request.request_id
            if self.dice.happens(self.shape.branch_share):
                for request in self._fan_out(last):
                    yield request
                    last = request.request_id
            pause_s = self.dice.pause(self.shape.tool_s)
            self.clock_s = round(self.clock_s + pause_s, 3)
            self.context = self._grown(self.context)

    def _fan_out(self, parent: str) -> Iterator[TraceRequest]:
        """Parallel branches on the context so far; the main line goes on with their last replies.

        The branch that ends last comes last, so that the next turn can name it as ``after``.
        """
        branches = [self._branch(parent) for _ in range(self.dice.count(self.shape.branches))]
        branches.sort(key=lambda branch: self._end_s(branch[-1]))
        for branch in branches:
            yield from branch
            self.context = canonical((*self.context, *branch[-1].output))
        self.clock_s = self._end_s(branches[-1][-1])

    def _branch(self, parent: str) -> list[TraceRequest]:
        context, clock_s, last, pause_s = self._grown(self.context), self.clock_s, parent, 0.0
        out: list[TraceRequest] = []
        for _ in range(self.dice.count(self.shape.branch_turns)):
            request = self._ask(context, clock_s, last, pause_s)
            out.append(request)
            last = request.request_id
            pause_s = self.dice.pause(self.shape.tool_s)
            clock_s = round(self._end_s(request) + pause_s, 3)
            context = self._grown(canonical((*context, *request.output)))
        return out

    def _ask(self, context: Runs, at_s: float, after: str | None, think_s: float) -> TraceRequest:
        output = (self.dice.fresh(self.dice.length(self.shape.output_tokens)),)
        name = f"{self.name}-{self.made:03d}"
        self.made += 1
        return TraceRequest(name, at_s, context, output, self.name, after=after, think_s=think_s)

    def _end_s(self, request: TraceRequest) -> float:
        return round(request.arrival_s + self.shape.reply_s_per_token * request.output_tokens, 3)

    def _grown(self, context: Runs) -> Runs:
        """``context`` with one more tool result, compacted if that would pass the limit."""
        result = self.dice.fresh(self.dice.length(self.shape.tool_tokens))
        if runs_length(context) + result[2] > self.shape.context_limit:
            context = canonical((*self.head, self.dice.fresh(self.dice.length(self.shape.summary_tokens))))
        return canonical((*context, result))

    def _edit(self) -> None:
        """Now and then, rewrite the end of the context: never the system prompt or the task."""
        room = runs_length(self.context) - runs_length(self.head)
        if room == 0 or not self.dice.happens(self.shape.edit_share):
            return
        back = min(room, self.dice.length(self.shape.edit_tokens))
        kept = slice_runs(self.context, 0, runs_length(self.context) - back)
        self.context = canonical((*kept, self.dice.fresh(back)))
