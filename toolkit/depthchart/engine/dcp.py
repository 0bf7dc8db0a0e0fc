"""Decode context parallelism, measured: one workload with its KV over D ranks, against one rank.

The same function runs in one process (emulated ranks) and in each process of a ``torch.distributed`` group, which
``python -m depthchart.engine.dcp_process`` is started as, by torchrun. Every rank runs its own scheduler: plans depend
on texts and counts alone, never on the clock, so all ranks plan the same step.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from depthchart.engine.model import HybridModel
from depthchart.engine.ranks import EmulatedRanks, Ranks
from depthchart.engine.serving import Engine
from depthchart.events import Matched
from depthchart.geometry import Geometry

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DcpRun", "conversations", "dcp_sweep", "run_dcp"]


@dataclass(frozen=True)
class DcpRun:
    """What one rank saw of a workload.

    ``peak_kv_bytes``: of this rank's share of the pages in use, at most; ``decode_bytes``: what this rank sent to
    others in ``decode_steps`` steps without prefill, which gave ``decoded`` tokens; ``sent_bytes``: in all steps;
    ``reused_tokens``: matched at admission, all requests; ``outputs``: sampled tokens by request; ``logits`` [rows,
    vocab]: of the sampling rows, request by request.
    """

    geometry: Geometry
    peak_kv_bytes: int
    decode_bytes: int
    decode_steps: int
    decoded: int
    sent_bytes: int
    reused_tokens: int
    outputs: dict[str, list[int]]
    logits: Tensor


def conversations(
    vocab: int, *, requests: int = 6, shared: int = 250, fresh: int = 24, seed: int = 0
) -> list[list[int]]:
    """A document of ``shared`` tokens, and prompts that go on from it with ``fresh`` tokens of their own (ids)."""
    dice = random.Random(seed)
    document = [dice.randrange(vocab) for _ in range(shared)]
    return [document, *(document + [dice.randrange(vocab) for _ in range(fresh)] for _ in range(requests - 1))]


@torch.no_grad()
def run_dcp(
    model: HybridModel,
    geometry: Geometry,
    prompts: Sequence[Sequence[int]],
    *,
    output_tokens: int = 24,
    ranks: Ranks | None = None,
    rule: str = "absolute",
) -> DcpRun:
    """Serve the first prompt alone and then the others together; ``ranks`` as in ``ModelExecutor``."""
    page = geometry.tree_page
    pages = sum(-(-(len(prompt) + output_tokens) // page) + 1 for prompt in prompts)
    slots = 6 * len(prompts) + 6
    engine = Engine(model, geometry, rule, kv_tokens=pages * page, state_slots=slots, ranks=ranks)
    executor, allocator = engine.executor, engine.memory.allocator
    peak = decode_bytes = decode_steps = decoded = 0
    for wave in (prompts[:1], prompts[1:]):
        for prompt in wave:
            engine.submit(f"r{len(engine.scheduler.done) + len(engine.scheduler.waiting)}", prompt, output_tokens)
        while True:
            before = executor.ranks.sent_bytes
            record = engine.scheduler.step()
            if record is None:
                break
            peak = max(peak, allocator.total_tokens - record.free_kv_tokens)
            if not record.prefill_rows:
                decode_bytes += executor.ranks.sent_bytes - before
                decode_steps, decoded = decode_steps + 1, decoded + record.decode_rows
    names = sorted(engine.scheduler.done)
    return DcpRun(
        geometry=geometry,
        peak_kv_bytes=executor.kv.rank_bytes * peak // allocator.total_tokens,
        decode_bytes=decode_bytes,
        decode_steps=decode_steps,
        decoded=decoded,
        sent_bytes=executor.ranks.sent_bytes,
        reused_tokens=sum(event.tokens for event in engine.log.of(Matched)),
        outputs={name: engine.output(name) for name in names},
        logits=torch.stack([engine.logits[name][at] for name in names for at in sorted(engine.logits[name])]).cpu(),
    )


def dcp_sweep(
    model: HybridModel,
    page_size: int = 16,
    *,
    sizes: Iterable[int] = (1, 2, 4, 8),
    chunk_width: int = 16,
    output_tokens: int = 24,
    rule: str = "absolute",
    seed: int = 0,
) -> pd.DataFrame:
    """One row for each DCP size (columns.DCP), the same prompts on emulated ranks; differences are to one rank."""
    import pandas as pd

    from depthchart.columns import DCP

    prompts = conversations(model.config.vocab, seed=seed)
    alone = run_dcp(model, Geometry(page_size, 1, chunk_width), prompts, output_tokens=output_tokens, rule=rule)
    rows = []
    for size in sizes:
        geometry = Geometry(page_size, size, chunk_width)
        run = run_dcp(
            model, geometry, prompts, output_tokens=output_tokens, ranks=EmulatedRanks(size), rule=rule
        )
        rows.append(
            (
                size,
                geometry.tree_page,
                run.peak_kv_bytes,
                run.decode_bytes / max(run.decode_steps, 1),
                run.decode_bytes / max(run.decoded, 1),
                run.reused_tokens,
                float((run.logits - alone.logits).abs().max()),
                run.outputs == alone.outputs,
            )
        )
    return pd.DataFrame(rows, columns=list(DCP))
