"""A long random life of one small memory, with faults thrown in; every book is checked after every step.

What the bounded search cannot reach, chance may: long histories, many requests, pools that are always short. The
same seed gives the same life. Faults that are injected:

- ``pages gone``: the allocator has nothing left although room was counted a moment ago;
- ``slots gone``: every state slot is in use or locked when one is asked for (a donation is skipped, never a crash);
- ``rule raises`` and ``rule lies``: a user's rule raises, or answers nonsense, and the request and memory must be as
  they were before;
- ``row not run``: a step was planned and its rows are given back (the executor failed).

A depth rule lives under orders of eviction and caps drawn by chance and is cut anywhere. A preset brings its own bundle
and is cut as an engine cuts: what other rows leave a step is whole pages, and a first row keeps to the rule's cuts.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from depthchart.cache.allocator import Pages
from depthchart.cache.memory import Memory
from depthchart.depth import Decision, Rule
from depthchart.errors import PoolExhausted, RuleError
from depthchart.geometry import Geometry
from depthchart.presets import Preset, Setup
from depthchart.scheduler.admission import PrefillBudget
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.sequence import Sequence
from depthchart.tokens import Runs, Text, canonical, runs_length, slice_runs
from depthchart.verify.search import subject_named

__all__ = ["FuzzReport", "fuzz"]

GEOMETRIES = (
    Geometry(4, dcp_size=2, chunk_width=4, chunked_prefill_size=32, track_interval=8),
    Geometry(4, dcp_size=3, chunk_width=8, chunked_prefill_size=24, track_interval=4),
    Geometry(2, chunk_width=8, chunked_prefill_size=16, track_interval=6),
    Geometry(8, dcp_size=2, chunk_width=4, index_pool=2, chunked_prefill_size=64, track_interval=16),
    Geometry(1, chunk_width=4, chunked_prefill_size=8, track_interval=3),
)
LIFE = 5000  # steps of one memory before the next geometry and pools
NONSENSE: tuple[Any, ...] = (
    None, 7, (8, True, "a tuple"), Decision(10**9, True, "beyond the end"), Decision(-1, True, "before the start"),
    Decision(None, True, "nowhere"), Decision("8", True, "a text"), Decision(1.5, True, "a fraction"),  # type: ignore[arg-type]
)  # fmt: skip


@dataclass
class FuzzReport:
    """``preset`` ("" where a rule lived alone) and its ``rule``; ``steps`` by operation, ``refused`` (no room: nothing
    changed), ``injected`` faults by kind, ``checks``: how often all books were checked; ``lost_pages`` and
    ``lost_slots`` at the end of all lives (0, or the run had failed)."""

    rule: str
    seed: int
    steps: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    lives: int = 0
    reused_tokens: int = 0
    lost_pages: int = 0
    lost_slots: int = 0
    seconds: float = 0.0
    preset: str = ""

    @property
    def total(self) -> int:
        return sum(self.steps.values())


def fuzz(
    subject: str | Rule | Preset = "absolute",
    steps: int = 10_000,
    seed: int = 0,
    geometry: Geometry | Several[Geometry] | None = None,
) -> FuzzReport:
    """Live for ``steps`` lifecycle steps; raises the first broken invariant (strict mode), with seed and step.

    Args:
        subject: a depth rule or its name, or a preset: an engine's rule, cuts, decode grid, eviction, refresh,
            matching, caps and joint pool. A name that both have is the rule's.
        steps: lifecycle steps: begin, extend, decode, finish, retract, abort, evict.
        seed: of everything that is left to chance.
        geometry: this one alone, or several in turn (default: ``GEOMETRIES``).

    Raises ValueError for a subject that does not exist (with the nearest one), fewer than one step, no geometry.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: must be at least 1; nearest legal: 1")
    kinds = (
        GEOMETRIES if geometry is None else (geometry,) if isinstance(geometry, Geometry) else tuple(geometry)
    )
    if not kinds:
        raise ValueError(
            "geometry=(): give at least one Geometry, or None for those of depthchart.verify.fuzz"
        )
    chosen = subject_named(subject) if isinstance(subject, str) else subject
    preset, rule = (chosen.name, "") if isinstance(chosen, Preset) else ("", chosen.name)
    report, dice, start = FuzzReport(rule, seed, preset=preset), random.Random(seed), time.perf_counter()
    while report.total < steps:
        life = _Life(chosen, kinds[report.lives % len(kinds)], dice, report)
        life.live(min(LIFE, steps - report.total))
        report.lives += 1
    report.seconds = time.perf_counter() - start
    return report


class _Life:
    def __init__(
        self, subject: Rule | Preset, geometry: Geometry, dice: random.Random, report: FuzzReport
    ) -> None:
        self.geometry, self.dice, self.report = geometry, dice, report
        self.engine = isinstance(subject, Preset)
        setup = _setup(subject, geometry, dice)
        self.rule, report.rule = setup.rule, setup.rule.name
        self.memory = Memory(geometry, setup.kv_tokens, setup.state_slots, **setup.policies)
        self.life = Lifecycle(self.memory, self.rule, spare_pages=dice.choice((0, 0, 1)))
        self.texts: list[Runs] = [canonical([(segment, 0, 6 * geometry.tree_page)]) for segment in (1, 2, 3)]
        self.goals: dict[str, int] = {}
        self.count = 0

    def live(self, steps: int) -> None:
        """Random steps; then everything ends, and every page and slot must be back."""
        for _ in range(steps):
            kind, act = self._choose()
            self.report.steps[kind] += 1
            try:
                act()
                self.life.check_invariants()
            except Exception as error:
                who = f"preset {self.report.preset}" if self.engine else f"rule {self.rule.name}"
                error.add_note(
                    f"{who}, seed {self.report.seed}, step {self.report.total} ({kind}), {self.geometry}"
                )
                raise
            self.report.checks += 1
            self.life.take_copies()
        for sequence in list(self.life.active.values()):
            self.life.abort(sequence)
        self.memory.tree.reset()
        self.report.lost_pages += (
            self.memory.allocator.total_tokens - self.memory.free_kv_tokens
        ) // self.geometry.tree_page
        self.report.lost_slots += self.memory.states.total_slots - self.memory.free_state_slots

    def _choose(self) -> tuple[str, Callable[[], None]]:
        running = list(self.life.active.values())
        if not running or (len(running) < 4 and self.dice.random() < 0.2):
            return "begin", self._begin
        sequence = self.dice.choice(running)
        luck = self.dice.random()
        if luck < 0.04:
            return "abort", lambda: self._leave(self.life.abort, sequence)
        if luck < 0.07:
            return "retract", lambda: self._leave(self.life.retract, sequence)
        if luck < 0.12:
            return "evict", self._evict
        if sequence.computed < self.goals[sequence.request]:
            return "extend", lambda: self._extend(sequence)
        if luck < 0.35:
            return "finish", lambda: self._leave(self.life.finish, sequence)
        return "decode", lambda: self._decode(sequence)

    # --- steps --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        base = self.dice.choice(self.texts)
        shared = self.dice.randint(0, runs_length(base))
        own = canonical([(10 + self.count, 0, self.dice.randint(0, 2 * self.geometry.tree_page))])
        runs = canonical([*slice_runs(base, 0, shared), *own])
        name = f"r{self.count}"
        self.count += 1
        if not runs:
            runs = canonical([(1, 0, 1)])
        text = Text(self.memory.index, runs)
        self.goals[name] = len(text)
        if self._unlucky():
            with self._no_slots():
                sequence = self.life.begin(name, text)
        else:
            sequence = self.life.begin(name, text)
        if sequence is None:
            self.report.refused["begin"] += 1
        else:
            self.report.reused_tokens += sequence.computed

    def _extend(self, sequence: Sequence) -> None:
        goal = self.goals[sequence.request]
        end = self._end(sequence, goal)
        if self._unlucky():
            return self._extend_badly(sequence, end)
        try:
            plan = self.life.plan_extend(sequence, end)
        except PoolExhausted:
            return self._refused("extend", sequence)
        self.life.commit_extend(plan)
        if end == goal and self.dice.random() < 0.3:
            return self._leave(self.life.finish, sequence)
        if self._unlucky():
            with self._no_slots():
                return self.life.checkpoint(sequence)
        return self.life.checkpoint(sequence)

    def _end(self, sequence: Sequence, goal: int) -> int:
        """Where the next extend stops, with a budget that other rows of the step left over."""
        whole, page, at = self.geometry.chunked_prefill_size, self.geometry.page_size, sequence.branch
        left = (
            self.dice.randint(1, max(1, whole // page)) * page if self.engine else self.dice.randint(1, whole)
        )
        room = self.memory.allocator.total_tokens
        for budget in (left, whole) if self.engine and not sequence.tracks else ():
            cut = PrefillBudget(self.rule, self.geometry, budget, room).first_cut(
                sequence.computed, goal, 0, at
            )
            if cut.end > sequence.computed:
                return cut.end
        return PrefillBudget(self.rule, self.geometry, left, room).next_cut(sequence.computed, goal, at)

    def _decode(self, sequence: Sequence) -> None:
        for _ in range(self.dice.randint(1, 2 * self.geometry.tree_page)):
            done = len(sequence.text) - sequence.prompt_tokens
            if sequence.computed == len(sequence.text):
                sequence.text.append([(10**6 + self.count + int(sequence.request[1:]) * 7, done, 1)])
            try:
                plan = self.life.plan_decode(sequence)
            except PoolExhausted:
                return self._refused("decode", sequence)
            self.life.commit_decode(plan)
        return None

    def _refused(self, kind: str, sequence: Sequence) -> None:
        """No room: often another request is retracted to make some, as engines do."""
        self.report.refused[kind] += 1
        others = [other for other in self.life.active.values() if other is not sequence]
        if others and self.dice.random() < 0.5:
            self.report.steps["retract"] += 1
            self._leave(self.life.retract, self.dice.choice(others))

    def _leave(self, how: Callable[[Sequence], Any], sequence: Sequence) -> None:
        if self.dice.random() < 0.1:  # the next turn of a conversation, or a resumed request
            self.texts[self.dice.randrange(len(self.texts))] = sequence.text.runs
        how(sequence)
        del self.goals[sequence.request]

    def _evict(self) -> None:
        self.memory.evict(kv_tokens=self.dice.choice((0, 1, 10**6)), states=self.dice.choice((0, 1, 3)))

    # --- faults -------------------------------------------------------------------------------------------

    def _unlucky(self) -> bool:
        return self.dice.random() < 0.05

    def _extend_badly(self, sequence: Sequence, end: int) -> None:
        kind = self.dice.choice(("pages gone", "slots gone", "rule raises", "rule lies", "row not run"))
        before = (sequence.computed, sequence.protected, list(sequence.row))
        if kind in ("rule raises", "rule lies"):
            books = self._books()
            with self._bad_rule(kind):
                said = self._refusal(sequence, end)
            assert "bad_rule" in said, "the message must name the rule"
            assert self._books() == books, "a refused answer must leave the memory as it was"
        elif kind == "row not run":
            try:
                self.life.cancel_extend(self.life.plan_extend(sequence, end))
            except PoolExhausted:
                self.report.refused["extend"] += 1
            assert before[:2] == (sequence.computed, sequence.protected)
        else:
            with self._no_pages() if kind == "pages gone" else self._no_slots():
                try:
                    self.life.cancel_extend(self.life.plan_extend(sequence, end))
                except PoolExhausted:
                    self.report.refused["extend"] += 1
                    assert (
                        before == (sequence.computed, sequence.protected, list(sequence.row))
                        or kind == "slots gone"
                    )
        self.report.injected[kind] += kind != "slots gone"  # counted where it is done

    def _refusal(self, sequence: Sequence, end: int) -> str:
        try:
            self.life.plan_extend(sequence, end)
        except RuleError as error:
            return str(error)
        raise AssertionError("a rule that misbehaves went unnoticed")

    def _books(self) -> tuple[Any, ...]:
        tree = tuple(
            (n.start, n.end, n.state, n.kv_locks, n.state_locks) for n in self.memory.tree.root.walk()
        )
        return (
            tree,
            self.memory.free_kv_tokens,
            self.memory.free_state_slots,
            tuple(map(str, self.life.holdings())),
        )

    @contextmanager
    def _no_pages(self) -> Iterator[None]:
        allocator = self.memory.allocator

        def refuse(pages: int) -> Pages:
            raise PoolExhausted(f"{pages} pages wanted: injected")

        allocator.allocate = refuse  # type: ignore[method-assign]
        try:
            yield
        finally:
            del allocator.allocate

    @contextmanager
    def _no_slots(self) -> Iterator[None]:
        """Take every free slot and lock every state for a while, as backups in flight do."""
        self.report.injected["slots gone"] += 1
        states, nodes = self.memory.states, list(self.memory.tree.state_order)
        hoard = [slot for _ in range(states.free_slots) if (slot := states.allocate()) is not None]
        for node in nodes:
            self.memory.tree.lock(node)
        try:
            yield
        finally:
            for node in nodes:
                self.memory.tree.unlock(node)
            for slot in hoard:
                states.free(slot)

    @contextmanager
    def _bad_rule(self, kind: str) -> Iterator[None]:
        answer = self.dice.choice(NONSENSE)

        def decide(geometry: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
            if kind == "rule raises":
                raise ZeroDivisionError("injected")
            return answer  # type: ignore[no-any-return]

        self.life.rule = Rule("bad_rule", "answers nonsense", decide=decide)
        try:
            yield
        finally:
            self.life.rule = self.rule


def _setup(subject: Rule | Preset, geometry: Geometry, dice: random.Random) -> Setup:
    """Pools that are always short. A preset brings its policies, a rule gets some by chance. A block of a joint pool holds
    a state, however small the block, as if all lengths were scaled down."""
    pages, slots = dice.randint(8, 24), dice.randint(5, 14)
    if isinstance(subject, Preset):
        return subject.apply(geometry, pages * geometry.tree_page, slots, state_tokens=geometry.tree_page)
    eviction = dice.choice(("lru", "lfu", "fifo", "slru"))
    cap = dice.choice((None, None, 2))
    policies = {"eviction": eviction, "max_states_per_path": cap}
    return Setup(subject, pages * geometry.tree_page, slots, policies)
