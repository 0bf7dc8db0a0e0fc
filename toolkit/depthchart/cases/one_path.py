"""One text through the cache twice: the smallest story that shows where a rule leaves its checkpoints.

A first request is cut after its first step, extends to the end of its prompt, decodes and finishes. A second one
with the same text then finds what the first has left. Faults are recorded, not raised, so that they can be seen.
Depths are in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from depthchart.cache.memory import Memory
from depthchart.depth import Rule, rule_of
from depthchart.events import EventLog, Matched, StateFiled, Violation
from depthchart.geometry import Geometry
from depthchart.redraw import redraw
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.sequence import Sequence
from depthchart.tokens import Text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OnePath", "one_path", "usual_prompt"]

STATE_SLOTS = 16
MOST_STEPS = 10_000
_PROMPT, _OUTPUT = 1, 2  # segments: whose tokens a text consists of


@dataclass(frozen=True)
class OnePath:
    """What two requests with the same text of ``prompt`` tokens have left behind, and how they came to it.

    ``reused``: tokens that the second one found with a state at their end; ``read``: how many tokens that state had
    really consumed (equal, unless it was misplaced; 0 where nothing was found).
    """

    geometry: Geometry
    rule: str
    cut: int
    prompt: int
    output: int
    log: EventLog
    reused: int
    read: int

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """The tree at the end (columns.NODES)."""
        from depthchart import frames

        return frames.nodes(redraw(self.log))

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """Every checkpoint decision and its outcome (columns.CHECKPOINTS)."""
        from depthchart import frames

        return frames.checkpoints(self.log)

    @property
    def decisions(self) -> pd.DataFrame:
        """``checkpoints`` as a table to read: request, steps [from, to), depths, outcome and reason."""
        table = self.checkpoints
        return table[
            [
                "request",
                "prefix_tokens",
                "end_tokens",
                "depth_tokens",
                "state_depth_tokens",
                "node_end_tokens",
                "outcome",
                "reason",
            ]
        ]

    def rows(self) -> list[tuple[str, ...]]:
        """``decisions`` as text, below a head row."""
        head = ("request", "step", "rule picks", "kernel stored", "node ends at", "outcome", "why")
        depths = ("depth_tokens", "state_depth_tokens", "node_end_tokens")
        return [head] + [
            (
                row["request"],
                f"{row['prefix_tokens']:,} to {row['end_tokens']:,}",
                *(_depth(row[name]) for name in depths),
                row["outcome"],
                row["reason"],
            )
            for row in self.decisions.to_dict("records")
        ]

    @property
    def faults(self) -> list[str]:
        """The broken invariants, in words and in order; empty for a sound rule."""
        return [event.message for event in self.log.of(Violation)]

    @property
    def verdict(self) -> str:
        """One sentence: what the second request gained or suffered."""
        again = self.read - self.reused
        if not self.reused:
            return f"The second request finds no state and computes all its {self.prompt:,} tokens."
        found = f"The second request reuses {self.reused:,} of {self.prompt:,} tokens"
        if not again:
            return f"{found}, and the state there has read exactly those."
        twice = (
            f"{again:,} tokens run through the recurrence twice"
            if again > 0
            else f"{-again:,} tokens are never read"
        )
        return f"{found}, but the state there has read {self.read:,}: {twice}. No error, wrong text."

    def _repr_html_(self) -> str:
        from html import escape

        from depthchart.display import table_html

        return f"<p>{escape(self.verdict)}</p>{table_html(self.rows(), numeric=(2, 3, 4))}"


def one_path(
    geometry: Geometry,
    rule: str | Rule = "absolute",
    *,
    cut: int | None = None,
    prompt: int | None = None,
    output: int = 1,
) -> OnePath:
    """Run the two requests under a depth rule.

    Args:
        geometry: page, DCP and chunk sizes.
        rule: name of a depth rule, or the rule itself.
        cut: where the first prefill step ends (default: one page), floored to the rule's cut grid; the first
            point of that grid where it lies below.
        prompt: length of the text (default: ``usual_prompt``).
        output: tokens that each request decodes (default 1, which makes 64/604/605 of page 64, DCP 8).

    Raises ValueError where a length is not positive or no step can be cut within chunked_prefill_size, RuleError where a
    user's rule misbehaves.
    """
    chosen = rule_of(rule)
    cut = geometry.page_size if cut is None else cut
    prompt = usual_prompt(geometry, cut) if prompt is None else prompt
    for name, value, least in (("cut", cut, 1), ("prompt", prompt, 1), ("output", output, 0)):
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least} tokens; nearest legal: {least}")
    log = EventLog()
    room = 3 * (-(-(prompt + output) // geometry.tree_page) + 1) * geometry.tree_page
    memory = Memory(geometry, room, STATE_SLOTS, emit=log)
    life = Lifecycle(memory, chosen, strict=False, emit=log)
    for name, first in (("first", cut), ("second", None)):
        _serve(life, log, name, prompt, output, first)
    reused = log.of(Matched)[-1]
    return OnePath(geometry, chosen.name, cut, prompt, output, log, reused.tokens, _read(log, reused))


def usual_prompt(geometry: Geometry, cut: int | None = None) -> int:
    """A prompt just long enough to show what a cut does to a rule: 64 + 512 + 28 = 604 for page 64 and DCP 8.

    One checkpoint grid beyond the cut, so that a rule that counts from there finds a depth, and a bit less than
    half a cut more, so that nothing ends on a grid by chance.
    """
    cut = geometry.page_size if cut is None else cut
    return cut + geometry.checkpoint_grid + max(1, cut * 7 // 16)


def _serve(life: Lifecycle, log: EventLog, name: str, prompt: int, output: int, cut: int | None) -> None:
    """One request from its arrival to its end; a step of the log is a step of the engine."""
    sequence = life.begin(name, Text(life.memory.index, [(_PROMPT, 0, prompt)]))
    assert sequence is not None, "the pools are large enough for one request"
    for _ in range(MOST_STEPS):
        if sequence.computed == prompt:
            break
        end = _next_cut(life, sequence, cut if cut is not None and not sequence.computed else None)
        life.commit_extend(life.plan_extend(sequence, end))
        if end < prompt:
            life.checkpoint(sequence)
        _tick(log)
    else:
        raise ValueError(
            f"prompt={prompt}: takes more than {MOST_STEPS:,} prefill steps; nearest legal: a shorter one"
        )
    for done in range(output):
        sequence.text.append([(_OUTPUT, done, 1)])
        life.commit_decode(life.plan_decode(sequence))
        _tick(log)
    life.finish(sequence)
    _tick(log)


def _next_cut(life: Lifecycle, sequence: Sequence, wanted: int | None) -> int:
    """Where the next step ends: at ``wanted`` as far as the rule cuts there, else as far as the budget goes."""
    g, rule, at, prompt = life.geometry, life.rule, sequence.computed, sequence.prompt_tokens
    budget = at + g.chunked_prefill_size
    end = rule.cut(g, at, min(prompt, budget, wanted or prompt), prompt)
    if (
        end == at and wanted is not None
    ):  # a cut below the rule's grid cannot happen: take the first one that can
        end = rule.cut(g, at, min(prompt, rule.cut_grid(g)), prompt)
    if at < end <= budget:
        return end
    grid = rule.cut_grid(g)
    raise ValueError(
        f"chunked_prefill_size={g.chunked_prefill_size}: rule {rule.name!r} cuts prefill steps on multiples of {grid}, "
        f"so no step fits; nearest legal: {grid}"
    )


def _depth(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _tick(log: EventLog) -> None:
    log.step += 1
    log.time_s += 1.0


def _read(log: EventLog, matched: Matched) -> int:
    """What the state that was matched had consumed by then."""
    filed = {}
    for entry in log:
        if isinstance(entry.event, StateFiled):
            filed[entry.event.node_id] = entry.event.state_depth
        elif entry.event is matched:
            break
    return filed[matched.node_id] if matched.tokens else 0
