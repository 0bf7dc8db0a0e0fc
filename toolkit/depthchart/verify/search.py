"""Bounded exhaustive search for broken invariants, on the real memory and lifecycle.

``verify("prefix_relative")`` looks at every history within its bounds, cheapest first: fewest computed tokens, then
fewest steps. The first fault that it meets is therefore a smallest one.

Why the histories that are not run need no run
----------------------------------------------
A history is run only where none that stands for it was run before:

1. *Names.* Tokens, slots, pages and nodes are compared for equality alone (a page id against a page id, a tag
   against a tag). Renaming them maps runs to runs. Worlds are compared by a key in which they are numbered in
   the order in which a walk of the tree and of the running requests meets them; equal keys, equal futures.
2. *Tails.* The tree compares whole tree pages. What a text holds beyond its last whole page, and whether two texts
   agree inside their first different page, is never looked at: prompts share whole pages, then use fresh tokens.
3. *Budgets.* A step's leftover budget may be any number from 1 up: a prompt of the right length in front, or one
   decode row more, leaves it. So cuts are taken from the real ``PrefillBudget`` for every leftover, and the
   other rows of the step need not be run: apart from the budget, rows of one step touch only what they own.
4. *Long prompts.* A prompt that cannot be completed within the token bound behaves as one that is one token too long.
5. *Decode.* Two decodes in a row of one request are one longer decode.
6. *Cheaper twins.* A world that was reached before with no more tokens and no more steps has every continuation
   that this one has within the bounds, none dearer. Only steps have to be compared, since the search goes by tokens.
7. *Geometries* that are read alike: see ``bounds.plans``. Scaling page, chunk, interval and all lengths by one factor
   maps histories to histories as well, so that page 1, DCP 8, chunk 1 stands for 64, 8, 64 (with cuts at
   multiples of 64). ``Counterexample.scaled`` does it; the result is replayed, not trusted.

Worlds are told apart by a 128-bit digest of the key. Two of a million different ones agree by accident with a
chance below 1e-26.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from hashlib import blake2b
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from depthchart.collector import collecting
from depthchart.depth import RULES, Rule
from depthchart.presets import Preset, preset
from depthchart.verify.bounds import Bounds, Plan, plans
from depthchart.verify.counterexample import Counterexample
from depthchart.verify.report import Report
from depthchart.verify.world import FAULTS, Fault, Move, Step, World

__all__ = ["Report", "subject_named", "verify"]


def verify(
    subject: str | Rule | Preset,
    bounds: Bounds | None = None,
    *,
    kinds: Sequence[str] = FAULTS,
    every_kind: bool = False,
    max_seconds: float | None = None,
) -> Report:
    """Search all histories within the bounds.

    Args:
        subject: a registered depth rule or its name, or a preset: an engine's rule, cuts, decode grid, eviction,
            refresh, matching and caps. A name that both have is the rule's.
        bounds: what to search; the defaults find every fault of the built-in rules within seconds.
        kinds: which faults to look for (``world.FAULTS``). A history ends at its first fault, of whatever kind.
        every_kind: go on after the first fault until each of ``kinds`` has its smallest one.
        max_seconds: give up after so long; the report then says that it is not complete.

    Raises ValueError for a rule that is not registered, a preset or kind that does not exist.
    """
    chosen = _subject(subject)
    for kind in kinds:
        if kind not in FAULTS:
            raise ValueError(f"kinds: {kind!r}: must be some of {', '.join(FAULTS)}")
    limits = bounds or Bounds()
    start = time.perf_counter()
    deadline = None if max_seconds is None else start + max_seconds
    with collecting(100_000, 50, 1000):  # trees are cycles, and thousands are made a second
        report = _by_tokens(chosen, limits, tuple(kinds), every_kind, deadline)
    report.seconds = time.perf_counter() - start
    return report


def _subject(subject: str | Rule | Preset) -> Rule | Preset:
    """The rule or the preset; a counterexample must be able to name it."""
    if isinstance(subject, Preset):
        return preset(subject.name)
    if isinstance(subject, str):
        return subject_named(subject)
    if subject.name not in RULES or RULES[subject.name] is not subject:
        raise ValueError(f"rule={subject.name!r}: is not registered; make it with @depthchart.rule(name)")
    return subject


def subject_named(name: str) -> Rule | Preset:
    """The rule of that name, else the preset; raises ValueError, with what is near, where there is neither."""
    if name in RULES:
        return RULES[name]
    try:
        return preset(name)
    except ValueError as error:
        near = get_close_matches(name, RULES, n=1, cutoff=0.6)
        hint = f"; nearest: {near[0]!r}" if near else ""
        known = ", ".join(RULES)
        raise ValueError(f"subject={name!r}: neither a rule ({known}{hint}) nor a preset: {error}") from None


def _by_tokens(
    rule: Rule | Preset, bounds: Bounds, kinds: tuple[str, ...], every_kind: bool, deadline: float | None
) -> Report:
    """Short histories before long ones, one request at a time before several: a fault of few tokens is met early,
    and what is cheaper than a fault is searched to its end before that is believed to be the smallest."""
    found: dict[str, Counterexample] = {}
    alone, several = Report(rule.name, bounds), Report(rule.name, bounds)
    for tokens in range(1, bounds.tokens + 1):
        limit = replace(bounds, tokens=tokens, together=1)
        alone = _Search(rule, limit, kinds, every_kind, deadline).run()
        found = {**alone.found, **found}
        if bounds.together > 1 and tokens <= bounds.tokens_together:
            steps = bounds.steps if every_kind or not found else next(iter(found.values())).steps - 1
            limit = replace(bounds, tokens=tokens, steps=max(1, steps))
            several = _Search(rule, limit, kinds, every_kind, deadline).run()
            cheaper = {
                kind: one for kind, one in several.found.items() if _cost(one) < _cost(found.get(kind))
            }
            found = {**found, **cheaper}
        if (
            not (alone.complete and several.complete)
            or (found and not every_kind)
            or len(found) == len(kinds)
        ):
            break
    report = alone.joined(several) if bounds.together > 1 else alone
    cheapest = sorted(found.items(), key=lambda item: _cost(item[1]))
    return replace(report, bounds=bounds, tokens=tokens, found=dict(cheapest))


def _cost(found: Counterexample | None) -> tuple[float, float]:
    return (inf, inf) if found is None else (found.tokens, found.steps)


class _Branch(NamedTuple):
    """A history on the queue: how it was reached and what comes next. Ordered by cost, then by age."""

    tokens: int
    steps: int
    age: int
    plan: int
    begun: int
    frozen: bytes
    before: tuple[Step, ...]
    move: Move


class _Search:
    def __init__(
        self,
        rule: Rule | Preset,
        bounds: Bounds,
        kinds: tuple[str, ...],
        every_kind: bool,
        deadline: float | None,
    ) -> None:
        self.rule, self.bounds, self.kinds, self.every_kind = rule, bounds, kinds, every_kind
        self.plans, alike, wide = plans(bounds, rule)
        geometries = len({plan.geometry for plan in self.plans})
        self.report = Report(rule.name, bounds, geometries=geometries, alike=alike, too_wide=wide)
        self.deadline = deadline
        self.queue: list[_Branch] = []
        self.reached: dict[bytes, list[tuple[int, int, int]]] = {}
        self.age = 0

    def run(self) -> Report:
        for number in range(len(self.plans)):
            self._expand(World.start(self.plans[number], self.bounds, self.rule), number, 0, 0, 0)
        while self.queue:
            if self.deadline is not None and time.perf_counter() > self.deadline:
                self.report.complete = False
                break
            if self._visit(heappop(self.queue)):
                break
        return self.report

    def _visit(self, branch: _Branch) -> bool:
        """Run one history and put what follows on the queue; True where the search may stop."""
        report, plan = self.report, self.plans[branch.plan]
        world = World.thaw(plan, self.bounds, branch.frozen, branch.before)
        report.histories += 1
        fault = world.do(branch.move.steps)
        if fault is not None:
            return self._found(world, plan, fault)
        if world.refused:  # nothing has changed, as the books show
            return False
        self._count_lost(world, branch)
        if self._known(world, branch):
            report.merged += 1
            return False
        report.worlds += 1
        if branch.steps >= self.bounds.steps:
            report.open += 1
            return False
        return self._expand(world, branch.plan, branch.tokens, branch.steps, branch.begun)

    def _expand(self, world: World, number: int, tokens: int, steps: int, begun: int) -> bool:
        frozen = world.freeze()
        for move in world.moves(self.bounds.tokens - tokens, begun):
            if isinstance(move, Fault):
                return self._found(world, self.plans[number], move)
            self.age += 1
            more = len(move.steps)
            if steps + more > self.bounds.steps:
                continue
            started = begun + (move.steps[0]["op"] == "request")
            heappush(
                self.queue,
                _Branch(
                    tokens + move.tokens, steps + more, self.age, number, started, frozen, world.history, move
                ),
            )
        return False

    def _found(self, world: World, plan: Plan, fault: Fault) -> bool:
        if fault.kind in self.kinds and fault.kind not in self.report.found:
            self.report.found[fault.kind] = Counterexample.of(
                self.rule, plan, self.bounds, world.history, fault
            )
        found = len(self.report.found)
        return found == len(self.kinds) if self.every_kind else found > 0

    def _known(self, world: World, branch: _Branch) -> bool:
        """Whether a world with the same future was reached with no more steps, requests and evictions."""
        digest = blake2b(repr((branch.plan, world.key())).encode(), digest_size=16).digest()
        spent = (branch.steps, branch.begun, -world.evictions_left)
        known = self.reached.setdefault(digest, [])
        if any(all(a <= b for a, b in zip(other, spent, strict=True)) for other in known):
            return True
        known.append(spent)
        return False

    def _count_lost(self, world: World, branch: _Branch) -> None:
        lost = world.lost_tokens()
        if lost is None or any(step["op"] == "evict" for step in branch.before):
            return
        self.report.ended += 1
        self.report.lost += lost > 0
        self.report.lost_tokens += lost
