"""One moment of a search: the real memory and lifecycle after some steps, what is wrong, what may come next."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pickle import Pickler, loads
from typing import Any, NamedTuple, TypeAlias

from depthchart.cache.eviction import LeafQueue
from depthchart.cache.node import Node
from depthchart.cases.replay import Replay
from depthchart.cases.script import Script, UnwidenedTracking
from depthchart.depth import Rule
from depthchart.errors import DepthchartError, DoubleFreeError, InvariantError, PoolExhausted, RuleError
from depthchart.events import Violation
from depthchart.geometry import Geometry
from depthchart.presets import Preset
from depthchart.scheduler.admission import PrefillBudget
from depthchart.scheduler.sequence import Sequence
from depthchart.verify.bounds import Bounds, Plan

__all__ = ["FAULTS", "Fault", "Move", "World"]

Step: TypeAlias = Mapping[str, Any]

FAULTS = ("misplaced state", "shared page", "lost or doubly owned", "no progress", "bad rule", "crash")

_KINDS = {
    "MisplacedStateError": "misplaced state",
    "PageSharedError": "shared page",
    "SegmentError": "shared page",
}


def _share(value: Any) -> tuple[Any, tuple[int]]:
    """Values that never change are kept out of frozen worlds."""
    _SHARED.setdefault(id(value), value)
    return _shared, (id(value),)


def _shared(key: int) -> Any:
    return _SHARED[key]


def _leaves(heap: list[Any]) -> LeafQueue:
    queue = LeafQueue("lru")
    queue._heap = heap
    return queue


_SHARED: dict[int, Any] = {}
_SHARED_TYPES: dict[type, Any] = {
    LeafQueue: lambda queue: (_leaves, (queue._heap,)),
    **dict.fromkeys((Rule, Script, Geometry, UnwidenedTracking), _share),
}


class Fault(NamedTuple):
    """``kind`` is one of FAULTS; ``message`` says what broke."""

    kind: str
    message: str


class Move(NamedTuple):
    """Script steps that happen together, and how many tokens they compute."""

    steps: tuple[Step, ...]
    tokens: int


class World:
    """The state after ``history``, on the code that runs traces and scripts. Nothing is modelled twice: what is
    wrong is read off the memory's own books and the shadow tags of its states."""

    def __init__(self, plan: Plan, bounds: Bounds, replay: Replay, history: tuple[Step, ...] = ()) -> None:
        self.plan, self.bounds, self.replay, self.history = plan, bounds, replay, history
        self.memory, self.life = replay.memory, replay.life
        self.leaving: Sequence | None = None
        self.refused = False

    @classmethod
    def start(cls, plan: Plan, bounds: Bounds, subject: Rule | Preset) -> World:
        """An empty memory."""
        script = Script(plan.geometry, subject.name, False, plan.kv_tokens, plan.state_slots, ())
        if isinstance(subject, Preset):
            script = replace(script, rule="", preset=subject.name)
        return cls(plan, bounds, Replay(script))

    def freeze(self) -> bytes:
        """The whole world but its events, to be taken up again by ``thaw`` as often as needed."""
        self.replay.log.entries.clear()
        self.life.take_copies()
        with BytesIO() as out:
            pickler = Pickler(out, protocol=5)
            pickler.dispatch_table = _SHARED_TYPES
            pickler.dump(self.replay)
            return out.getvalue()

    @classmethod
    def thaw(cls, plan: Plan, bounds: Bounds, frozen: bytes, history: tuple[Step, ...]) -> World:
        return cls(plan, bounds, loads(frozen), history)

    # --- what is wrong ------------------------------------------------------------------------------------

    def do(self, steps: tuple[Step, ...]) -> Fault | None:
        """Do some more steps; the first fault that they show, or None. A refusal for want of room is no fault
        unless the request has the memory to itself."""
        self.history += steps
        self.refused = False
        before = len(self.replay.log)
        self.leaving = self.life.active.get(steps[-1].get("id", ""))
        for step in steps:
            try:
                self.replay.step(step)
            except PoolExhausted as error:
                if not set(self.life.active) - {step.get("id")}:
                    return Fault("no progress", f"alone in the memory, and still: {error}")
                self.refused = True
                break
            except RuleError as error:
                return Fault("bad rule", str(error))
            except DepthchartError as error:
                kind = "lost or doubly owned" if isinstance(error, DoubleFreeError) else "crash"
                return Fault(_KINDS.get(type(error).__name__, kind), str(error))
            except Exception as error:
                return Fault("crash", f"{type(error).__name__}: {error}")
        return self._recorded(before) or self._books()

    def _recorded(self, since: int) -> Fault | None:
        found = [
            entry.event for entry in self.replay.log.entries[since:] if isinstance(entry.event, Violation)
        ]
        # a page shared by two freed segments is the louder of two signs of one fault: it stops an engine
        found.sort(key=lambda event: _KINDS.get(event.kind) != "shared page")
        return Fault(_KINDS.get(found[0].kind, "lost or doubly owned"), found[0].message) if found else None

    def _books(self) -> Fault | None:
        try:
            broken = self.memory.violations(self.life.holdings())
        except InvariantError as error:
            broken = [str(error)]
        if not broken:
            return None
        return Fault("misplaced state" if "has consumed" in broken[0] else "lost or doubly owned", broken[0])

    # --- what may come next -------------------------------------------------------------------------------

    def moves(self, tokens: int, begun: int) -> Iterator[Move | Fault]:
        """Every move that is allowed where ``tokens`` may still be computed and ``begun`` requests were begun; a
        Fault where a request would not get on."""
        active = self.life.active
        fresh = self._just_begun()
        if (
            fresh is not None
        ):  # its first row is in this step, and at most one row of another before it is booked
            yield from self._extends(fresh, active[fresh], tokens)
            yield Move(({"op": "abort", "id": fresh},), 0)
            for name in active if self.history[-1]["op"] == "request" else ():
                if name != fresh:
                    yield from self._extends(name, active[name], tokens)
            return
        for name, sequence in active.items():
            yield from self._extends(name, sequence, tokens)
            yield from self._decodes(name, sequence, tokens)
            yield Move(({"op": "finish", "id": name},), 0)  # before its end: as a retraction does
            yield Move(({"op": "abort", "id": name},), 0)
        if begun < self.bounds.requests and len(active) < self.bounds.together:
            yield from self._requests(tokens, begun)
        if self.evictions_left:
            if self.memory.tree.evictable_tokens:
                yield Move(({"op": "evict", "kv_tokens": 1},), 0)
            if self.memory.tree.evictable_states:
                yield Move(({"op": "evict", "states": 1},), 0)

    @property
    def evictions_left(self) -> int:
        done = [step for step in self.history if step["op"] == "evict"]
        return self.bounds.evictions - len(done)

    def _just_begun(self) -> str | None:
        """The request that has had no row yet, if there is one."""
        return next((name for name, sequence in self.life.active.items() if not sequence.tracks), None)

    def _extends(self, name: str, sequence: Sequence, tokens: int) -> Iterator[Move | Fault]:
        goal = sequence.prompt_tokens
        if sequence.computed >= goal:
            return
        ends = self.ends(sequence)
        if isinstance(ends, Fault):
            yield ends
            return
        for end in ends:
            run = end - sequence.computed
            if run > tokens:
                continue
            step = {"op": "extend", "id": name, "tokens": run}
            yield Move((step,), run)
            if end == goal:  # the step yields the only token that was asked for, and the request stops there
                yield Move(({**step, "final": True}, {"op": "finish", "id": name}), run)

    def ends(self, sequence: Sequence) -> list[int] | Fault:
        """Where the next extend may stop: what the step's real budget answers for every leftover that other rows
        of the step can leave it."""
        g, goal, prefix = self.plan.geometry, sequence.prompt_tokens, sequence.computed
        first = not sequence.tracks
        whole = g.chunked_prefill_size
        left = (
            range(1, whole + 1)
            if self.bounds.cuts == "any"
            else range(g.page_size, whole + g.page_size, g.page_size)
        )
        found = set()
        for budget in [min(tokens, whole) for tokens in left]:
            adder = PrefillBudget(self.life.rule, g, budget, self.plan.kv_tokens)
            at = sequence.branch
            end = adder.first_cut(prefix, goal, 0, at).end if first else adder.next_cut(prefix, goal, at)
            if first and end <= prefix and budget == whole:
                end = adder.next_cut(
                    prefix, goal, at
                )  # alone in its step, and the step is less than one cut grid
            if end > goal or end - prefix > budget or (end <= prefix and not first):
                return Fault(
                    "no progress", f"from {prefix}, with {budget} tokens of budget, a step would end at {end}"
                )
            if end > prefix:
                found.add(end)
        if not found:
            return Fault("no progress", f"no budget up to {whole} lets the prompt go on from {prefix}")
        return sorted(found)

    def _decodes(self, name: str, sequence: Sequence, tokens: int) -> Iterator[Move]:
        if sequence.computed < sequence.prompt_tokens:
            return
        last = self.history[-1]
        if last["op"] == "decode" and last["id"] == name:
            return  # two decodes in a row are one longer decode
        room = self.plan.kv_tokens - sequence.computed  # a scheduler rejects what could never fit
        for count in range(1, min(tokens, room) + 1):
            yield Move(({"op": "decode", "id": name, "tokens": count},), count)

    def _requests(self, tokens: int, begun: int) -> Iterator[Move]:
        """Prompts that begin like something in memory, up to a tree page of it, and go on with fresh tokens."""
        page, name = self.memory.allocator.page, f"r{begun}"
        tree, index = self.memory.tree, self.memory.index
        for prefix, ids in self._prefixes():
            runs = [] if prefix is None else self.replay._named(index.text_of(prefix))
            shared = len(ids) * page
            matched = tree.lookup(ids).tokens
            longest = min(tokens - (shared - matched) + 1, self.plan.kv_tokens - shared)
            for fresh in range(0 if shared else 1, longest + 1):
                text = [*runs, [name, fresh]] if fresh else runs
                yield Move(({"op": "request", "id": name, "tokens": text},), 0)

    def _prefixes(self) -> Iterator[tuple[int | None, list[int]]]:
        """The distinct page-aligned prefixes in memory, the empty one first, each with its page ids."""
        seen: dict[int, list[int]] = {}
        for node in self.memory.tree.root.walk():
            path = [page_id for step in node.path() for page_id in step.ids]
            for pages in range(1, len(path) + 1):
                seen.setdefault(path[pages - 1], path[:pages])
        for sequence in self.life.active.values():
            path = list(sequence.text.ids(len(sequence.text)))
            for pages in range(1, len(path) + 1):
                seen.setdefault(path[pages - 1], path[:pages])
        yield None, []
        yield from seen.items()

    # --- what it is equal to ------------------------------------------------------------------------------

    def key(self) -> Hashable:
        """Equal for two worlds that differ only in the names of tokens, slots, pages and nodes.

        Scripts evict in LRU order, and presets in that or by gain, which also looks at exact ages and at what the
        memory has learned (``_learned``)."""
        tree, tags = self.memory.tree, self.memory.states.tags
        numbers: dict[int, int] = {}

        def number(page_id: int) -> int:
            return numbers.setdefault(page_id, len(numbers))

        nodes = list(tree.root.walk())
        at = {node: place for place, node in enumerate(nodes)}
        used: dict[Node, int] = {}
        held = dict.fromkeys(tree.state_order, 0)
        learned: Hashable = ()
        if self.plan.pool == "tight" or self.evictions_left:  # else the order of eviction is never asked for
            learned = self._learned(nodes)
            used = {node: rank for rank, node in enumerate(sorted(nodes, key=lambda node: node.last_use))}
            held = {node: rank for rank, node in enumerate(tree.state_order)}
        shape = tuple(
            (at.get(n.parent, -1) if n.parent else -1, n.end, tuple(map(number, n.ids)), held.get(n, -1), used.get(n, 0),
             n.kv_locks, n.state_locks)
            for n in nodes
        )  # fmt: skip
        running = tuple(
            (
                tuple(map(number, s.text.ids(len(s.text)))), len(s.text), s.prompt_tokens, s.computed, s.protected,
                s.branch, -1 if s.lock is None else at.get(s.lock, -1), len(s.row), len(s.tracks),
                None if s.working is None else self._tag(tags[s.working], s),
                tuple((t.wanted, self._tag(tags[t.slot], s), None if t.track is None else (t.track - s.next_track) % 2)
                      for t in s.tracked),
            )
            for s in self.life.active.values()
        )  # fmt: skip
        fresh = self._just_begun() is not None
        return shape, running, fresh and self.history[-1]["op"] == "request", learned

    def _learned(self, nodes: list[Node]) -> Hashable:
        """What an eviction by gain knows: counts, and how old, how used and how emptied each node is."""
        tree = self.memory.tree
        if not tree.learns:
            return ()
        seen = tuple((tree.clock - node.last_use, node.uses, node.had_state, node.origin) for node in nodes)
        return tree.outlook.counts(), seen

    @staticmethod
    def _tag(tag: Any, sequence: Sequence) -> tuple[int, bool]:
        if tag is None:
            return (-1, False)
        sound = tag.depth <= len(sequence.text) and tag == sequence.text.tag(tag.depth)
        return (tag.depth, sound)

    # --- reuse that was given away ------------------------------------------------------------------------

    def lost_tokens(self) -> int | None:
        """How many tokens less the text that just finished offers than the deepest depth that its geometry can
        name: the next match against the last grid point (of the tree page, where the rule's kernel stores any
        depth). None where nothing finished, or before its prompt's end."""
        done, g = self.leaving, self.plan.geometry
        if done is None or self.history[-1]["op"] != "finish" or done.computed < done.prompt_tokens:
            return None
        grid = g.tree_page if self.life.rule.snapshots == "any" else g.checkpoint_grid
        best = done.computed // grid * grid
        offered: int = self.memory.tree.lookup(done.text.ids(done.computed)).tokens
        return max(0, best - offered)
