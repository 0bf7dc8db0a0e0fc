"""The second executor: runs a batch's tokens through a real model. The scheduler cannot tell it from the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from depthchart.cache.memory import Memory
from depthchart.device import RowTable
from depthchart.engine.model import HybridModel
from depthchart.engine.pools import KVPool, StatePools
from depthchart.engine.ranks import EmulatedRanks, Ranks
from depthchart.engine.sampling import Sampling
from depthchart.engine.step import StepPlan, plan_step
from depthchart.scheduler.executor import Batch, StepResult
from depthchart.tokens import VOCABULARY, Run

__all__ = ["Logits", "ModelExecutor", "Watch"]


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of one row of one step: ``values`` [n, vocab] for the text positions first to first + n - 1, each
    predicting the token after it."""

    request: str
    first: int
    values: Tensor


Watch = Callable[[Logits], None]


class ModelExecutor:
    """Keeps the tensors that belong to one memory's pages and slots.

    ``ranks``: who holds the KV (default: the geometry's dcp_size, emulated in this process); ``watch`` receives the
    logits of every row: of its last token only, or with ``watch_all`` of every token; ``stop`` ends a request.
    """

    def __init__(
        self,
        model: HybridModel,
        memory: Memory,
        *,
        max_running: int = 256,
        sampling: Sampling | None = None,
        checkpoint_dtype: str = "fp32",
        ranks: Ranks | None = None,
        watch: Watch | None = None,
        watch_all: bool = False,
        stop: Iterable[int] = (),
    ) -> None:
        geometry, config = memory.geometry, model.config
        self.model, self.sampling = model, sampling or Sampling()
        self.ranks = EmulatedRanks(geometry.dcp_size) if ranks is None else ranks
        if self.ranks.size != geometry.dcp_size:
            raise ValueError(
                f"ranks: {self.ranks.size} of them, but the geometry has dcp_size={geometry.dcp_size}; they must agree"
            )
        dtype, self.device = model.embedding.dtype, model.embedding.device
        tokens = memory.allocator.total_tokens
        self.kv = KVPool(
            config,
            tokens,
            geometry.tree_page,
            ranks=self.ranks.size,
            local=self.ranks.local,
            dtype=dtype,
            device=self.device,
        )
        # Recurrent states stay float32 under a bfloat16 model: they add up over the whole text.
        wide = dtype if dtype == torch.float64 else torch.float32
        self.states = StatePools(
            config,
            memory.states.total_slots,
            checkpoint_dtype=checkpoint_dtype,
            dtype=wide,
            device=self.device,
        )
        self.table = RowTable(max_running, tokens, geometry.tree_page)
        self.watch, self.watch_all, self.stop = watch, watch_all, frozenset(stop)
        self._rows: set[str] = set()

    @torch.no_grad()
    def run(self, batch: Batch) -> StepResult:
        """Copy states, run all rows, write KV, states and checkpoints, sample."""
        began = time.perf_counter()
        self._make_room(batch)
        plan = plan_step(
            batch,
            self.table,
            self.model.config.vocab,
            ranks=self.ranks.size,
            local=self.ranks.local,
            device=self.device,
        )
        hidden = self.model(plan, self.kv, self.states, self.ranks)
        tokens = self._sample(batch, plan, hidden)
        stopped = frozenset(name for name, run in tokens.items() if run[1] in self.stop)
        return StepResult(time.perf_counter() - began, tokens, stopped)

    def _sample(self, batch: Batch, plan: StepPlan, hidden: Tensor) -> dict[str, Run]:
        tokens: dict[str, Run] = {}
        rows = [
            (sequence.request, len(sequence.text), first, last)
            for sequence, (first, last) in zip(batch.sequences, plan.bounds, strict=True)
            if self.watch is not None or sequence.request in batch.samples
        ]
        every = self.watch is not None and self.watch_all
        wanted = [(first if every else last - 1, last) for _, _, first, last in rows]
        if not rows:
            return tokens
        picked = torch.cat([hidden[first:last] for first, last in wanted])
        logits = self.model.logits(picked).split([last - first for first, last in wanted])
        for (request, length, _, last), values in zip(rows, logits, strict=True):
            if self.watch is not None:
                end = int(plan.positions[last - 1]) + 1
                self.watch(Logits(request, end - len(values), values))
            if request in batch.samples:
                token = self.sampling.pick(values[-1], request, length)
                tokens[request] = (VOCABULARY, token, 1)
        return tokens

    def _make_room(self, batch: Batch) -> None:
        """Rows of the table go to requests of this step; those of others are mirrored anew when they come back."""
        here = {sequence.request for sequence in batch.sequences}
        if self.table.free_rows < len(here - self._rows):
            for request in self._rows - here:
                self.table.release(request)
            self._rows &= here
        self._rows |= here
