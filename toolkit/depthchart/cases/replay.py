"""Runs a lifecycle script on the real allocator, state pool, radix tree and lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depthchart.cache.memory import Memory
from depthchart.cases.script import Script, load_script
from depthchart.errors import DepthchartError, PoolExhausted, ScriptError
from depthchart.events import EventLog, Violation
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.sequence import Sequence
from depthchart.tokens import Runs, Text

__all__ = ["Replay", "replay"]


def replay(script: Script | Mapping[str, Any]) -> dict[str, Any]:
    """Run a script and report, as one JSON-ready object, what each step did and what the memory holds.

    Keys: ``steps``, ``nodes`` (depth first), ``free`` {kv_tokens, state_slots}, ``violations``, ``error`` (None,
    or {type, message, step}: the script ended there).
    """
    return Replay(script if isinstance(script, Script) else load_script(script)).run()


class Replay:
    """A script's memory while it runs. ``log`` has all events; each step is numbered as in the script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.log = EventLog()
        setup = script.setup
        self.memory = Memory(
            script.geometry, setup.kv_tokens, setup.state_slots, emit=self.log, **setup.policies
        )
        self.life = Lifecycle(self.memory, setup.rule, strict=script.strict, emit=self.log)
        self.segments: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.outputs: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        """Run all steps; see ``replay``."""
        reports: list[dict[str, Any]] = []
        error: dict[str, Any] | None = None
        for number, step in enumerate(self.script.steps):
            self.log.step, self.log.time_s = number, float(number)
            try:
                reports.append(self.step(step))
            except DepthchartError as fault:
                error = {"type": type(fault).__name__, "message": str(fault), "step": number}
                break
        return {
            "steps": reports,
            "nodes": self.nodes(),
            "free": {"kv_tokens": self.memory.free_kv_tokens, "state_slots": self.memory.free_state_slots},
            "violations": self.violations(),
            "error": error,
        }

    def step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step and report it. Raises DepthchartError where the memory refuses."""
        return {
            "request": self._request,
            "extend": self._extend,
            "decode": self._decode,
            "finish": self._finish,
            "abort": self._abort,
            "match": self._match,
            "evict": self._evict,
        }[step["op"]](step)

    def violations(self) -> list[dict[str, Any]]:
        """What broke so far: what was recorded on the way, and what the books show now."""
        seen = [
            {"type": e.event.kind, "message": e.event.message, "request": e.event.request, "step": e.step}
            for e in self.log
            if isinstance(e.event, Violation)
        ]
        books = self.memory.violations(self.life.holdings(), misplaced=not seen)
        return seen + [
            {"type": "InvariantError", "message": text, "request": "", "step": self.log.step}
            for text in books
        ]

    def nodes(self) -> list[dict[str, Any]]:
        """The tree, depth first."""
        found = []
        for node in self.memory.tree.root.walk():
            tag = None if node.state is None else self.memory.states.tags[node.state]
            found.append(
                {
                    "start": node.start,
                    "end": node.end,
                    "kv": True,
                    "state": None if tag is None else tag.depth,
                    "locks": {"kv": node.kv_locks, "state": node.state_locks},
                    "path": self._named(self.memory.index.text_of(node.ids[-1])),
                }
            )
        return found

    # --- steps --------------------------------------------------------------------------------------------

    def _request(self, step: Mapping[str, Any]) -> dict[str, Any]:
        text = self._text(step)
        if step["id"] in self.life.active:
            raise ScriptError(f"step {self.log.step} (request): id={step['id']!r}: is running already")
        sequence = self.life.begin(step["id"], text)
        if sequence is None:
            raise PoolExhausted(f"request {step['id']!r}: no state slot is free or evictable for its copy")
        self.outputs[step["id"]] = 0
        return {"matched": sequence.computed, "branch": sequence.branch}

    def _extend(self, step: Mapping[str, Any]) -> dict[str, Any]:
        sequence = self._running(step)
        left = len(sequence.text) - sequence.computed
        if step["tokens"] > left:
            raise ScriptError(
                f"step {self.log.step} (extend): tokens={step['tokens']}: only {left} of the prompt are left"
            )
        plan = self.life.plan_extend(sequence, sequence.computed + step["tokens"])
        self.life.commit_extend(plan)
        if not step.get("final", False):
            self.life.checkpoint(sequence)
        decision = {
            "depth": plan.decision.depth,
            "donate": plan.decision.donate,
            "reason": plan.decision.reason,
        }
        return {"decision": decision, "inserted": self._deepest(sequence), "protected": sequence.protected}

    def _decode(self, step: Mapping[str, Any]) -> dict[str, Any]:
        sequence = self._running(step)
        if sequence.computed < sequence.prompt_tokens:
            left = sequence.prompt_tokens - sequence.computed
            raise ScriptError(
                f"step {self.log.step} (decode): {left} tokens of the prompt are still to be extended"
            )
        done = self.outputs[step["id"]]
        sequence.text.append([(self._segment("out:" + step["id"]), done, step["tokens"])])
        self.outputs[step["id"]] = done + step["tokens"]
        tracked = None
        for _ in range(step["tokens"]):
            plan = self.life.plan_decode(sequence)
            self.life.commit_decode(plan)
            tracked = plan.snapshot.depth if plan.snapshot is not None else tracked
        return {"tracked": tracked}

    def _finish(self, step: Mapping[str, Any]) -> dict[str, Any]:
        sequence = self._running(step)
        freed = self.life.finish(sequence)
        return {"inserted": self._deepest(sequence), "freed": [list(segment) for segment in freed]}

    def _abort(self, step: Mapping[str, Any]) -> dict[str, Any]:
        return {"freed": [list(segment) for segment in self.life.abort(self._running(step))]}

    def _match(self, step: Mapping[str, Any]) -> dict[str, Any]:
        text = self._text(step)
        match = self.memory.tree.lookup(text.ids(len(text)))
        return {"matched": match.tokens, "kv_matched": match.kv_tokens, "branch": match.branch}

    def _evict(self, step: Mapping[str, Any]) -> dict[str, Any]:
        evicted = self.memory.evict(step.get("kv_tokens", 0), step.get("states", 0))
        return {"evicted": {"kv_tokens": evicted.kv_tokens, "states": evicted.states}}

    # --- helpers ------------------------------------------------------------------------------------------

    def _running(self, step: Mapping[str, Any]) -> Sequence:
        if step["id"] in self.life.active:
            return self.life.active[step["id"]]
        running = ", ".join(self.life.active) or "none"
        raise ScriptError(
            f"step {self.log.step} ({step['op']}): id={step['id']!r}: is not running; running: {running}"
        )

    def _deepest(self, sequence: Sequence) -> int:
        """Where the deepest node of this request's path ends (KV alone)."""
        return self.memory.tree.lookup(sequence.text.ids(sequence.computed)).kv_tokens

    def _text(self, step: Mapping[str, Any]) -> Text:
        runs = [(self._segment(name), 0, length) for name, length in step["tokens"]]
        return Text(self.memory.index, runs, step.get("extra_key", ""))

    def _segment(self, name: str | int) -> int:
        """Segments are numbered as they appear; 0 is the vocabulary, which scripts do not use."""
        known = self.segments.setdefault(str(name), len(self.segments) + 1)
        self.names[known] = str(name)
        return known

    def _named(self, runs: Runs) -> list[list[Any]]:
        return [[self.names[segment], length] for segment, _, length in runs]
