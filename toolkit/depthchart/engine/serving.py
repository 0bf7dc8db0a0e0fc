"""The whole engine in one object: model, memory, scheduler; ids in, ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthchart.cache.memory import Memory
from depthchart.depth import Rule
from depthchart.engine.executor import Logits, ModelExecutor
from depthchart.engine.model import HybridModel
from depthchart.engine.ranks import Ranks
from depthchart.engine.sampling import Sampling
from depthchart.engine.vocabulary import token_ids
from depthchart.events import EventLog
from depthchart.geometry import Geometry
from depthchart.scheduler.loop import Scheduler
from depthchart.scheduler.request import Status
from depthchart.tokens import Runs, raw

__all__ = ["Engine", "Prompt", "cold_logits"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request of token ids: ``output_tokens`` is the most that is sampled."""

    request_id: str
    prompt: Runs
    output_tokens: int
    session: str | None = None
    priority: int = 0
    extra_key: str | None = None


class Engine:
    """A model served from one memory.

    Parameters
    ----------
    model, geometry, rule: what runs, on which grids, with checkpoints where.
    kv_tokens, state_slots: sizes of the pools, in token slots and states.
    checkpoint_dtype: "fp32", "bf16" or "int8": in which form kept states are stored.
    record: keep logits in ``logits``: "none", "sampled" (rows that give a token) or "all" (every position run).
    memory_options, options: passed to ``Memory`` and to ``Scheduler``.
    """

    def __init__(
        self,
        model: HybridModel,
        geometry: Geometry,
        rule: str | Rule = "absolute",
        *,
        kv_tokens: int,
        state_slots: int,
        strict: bool = True,
        checkpoint_dtype: str = "fp32",
        sampling: Sampling | None = None,
        ranks: Ranks | None = None,
        record: str = "sampled",
        max_running: int = 256,
        memory_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if record not in ("none", "sampled", "all"):
            raise ValueError(f"record={record!r}: must be 'none', 'sampled' or 'all'; nearest: 'sampled'")
        self.model, self.geometry = model, geometry
        self.log = EventLog()
        self.memory = Memory(geometry, kv_tokens, state_slots, emit=self.log, **(memory_options or {}))
        self.executor = ModelExecutor(
            model,
            self.memory,
            max_running=max_running,
            sampling=sampling,
            checkpoint_dtype=checkpoint_dtype,
            ranks=ranks,
            watch=None if record == "none" else self._keep,
            watch_all=record == "all",
        )
        self.scheduler = Scheduler(
            self.memory,
            self.executor,
            rule,
            strict=strict,
            max_running=max_running,
            log=self.log,
            **options,
        )
        self.logits: dict[str, dict[int, Tensor]] = {}

    def submit(
        self, request_id: str, prompt: Sequence[int], output_tokens: int, extra_key: str | None = None
    ) -> Status:
        """Queue a prompt of token ids; its status is "rejected" where it could never fit."""
        ids = raw(prompt)
        token_ids(ids, self.model.config.vocab)  # out of range: now, not in the middle of a step
        return self.scheduler.submit(Prompt(request_id, ids, output_tokens, extra_key=extra_key)).status

    def step(self) -> bool:
        """Run one step; False where nothing is left to do."""
        return self.scheduler.step() is not None

    def run(self) -> None:
        """Run until every request is done."""
        while self.step():
            pass

    def generate(self, request_id: str, prompt: Sequence[int], output_tokens: int) -> list[int]:
        """Submit one prompt, run until all is done, return its new tokens."""
        self.submit(request_id, prompt, output_tokens)
        self.run()
        return self.output(request_id)

    def text(self, request_id: str) -> list[int]:
        """Prompt and output of a request, as far as it has come."""
        return [int(token) for token in token_ids(self._job(request_id).text.runs, self.model.config.vocab)]

    def output(self, request_id: str) -> list[int]:
        """The tokens sampled so far."""
        return self.text(request_id)[self._job(request_id).prompt_tokens :]

    def _job(self, request_id: str) -> Any:
        scheduler = self.scheduler
        for queue in (scheduler.done, scheduler.running, scheduler.waiting):
            if request_id in queue:
                return queue[request_id]
        raise KeyError(f"request_id={request_id!r}: was never submitted")

    def _keep(self, row: Logits) -> None:
        kept = self.logits.setdefault(row.request, {})
        for at, values in enumerate(row.values, row.first):
            kept[at] = values


def cold_logits(model: HybridModel, tokens: Sequence[int]) -> Tensor:
    """Logits [n, vocab] of a text computed alone, in one extend, on empty pools: what reuse must not change."""
    chunk = 16
    geometry = Geometry(page_size=chunk, chunk_width=chunk, chunked_prefill_size=max(len(tokens), chunk))
    room = -(-(len(tokens) + 1) // chunk) * chunk
    engine = Engine(model, geometry, kv_tokens=room, state_slots=4, record="all", max_running=1)
    engine.generate("cold", tokens, 0)
    rows = engine.logits["cold"]
    return torch.stack([rows[at] for at in range(len(tokens))])
