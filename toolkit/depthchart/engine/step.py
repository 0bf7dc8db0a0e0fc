"""One step as the model sees it: what to read, where to write, in which rows; made once, shared by all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from depthchart.device import RowTable, batch_tensors
from depthchart.engine.attention import AttentionPlan, plan_attention
from depthchart.engine.vocabulary import token_ids
from depthchart.scheduler.executor import Batch
from depthchart_kernels import Batch as ScanBatch
from depthchart_kernels import StepSlots, make_batch, make_step

__all__ = ["StepPlan", "plan_step"]


@dataclass(frozen=True)
class StepPlan:
    """Prefill rows first, then decode rows, packed.

    ``tokens``, ``positions``, ``kv_slots`` int64 [T]: ids, places in their texts, token slots of their KV;
    ``prefill_tokens``: how many of them belong to prefill rows. ``scan``: the kernels' plan of the prefill rows, None
    without any; ``decode``: that of the decode rows. ``copies`` [c, 2]: (source, target) state slots to copy first;
    ``written`` [s]: the slots that get a checkpoint. ``bounds``: packed [first, last) tokens of each row, on the host.
    """

    tokens: Tensor
    positions: Tensor
    kv_slots: Tensor
    prefill_tokens: int
    scan: ScanBatch | None
    decode: StepSlots | None
    attention: AttentionPlan
    copies: Tensor
    written: Tensor
    bounds: tuple[tuple[int, int], ...]


def plan_step(
    batch: Batch,
    table: RowTable,
    vocab: int,
    *,
    ranks: int = 1,
    local: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
) -> StepPlan:
    """Lay out a scheduler's batch for the model. ``table`` lies on the host: plans are made there."""
    tensors = batch_tensors(batch, table)
    cu = tensors.cu_seqlens.numpy().astype(np.int64)
    spans = list(zip(tensors.starts.tolist(), tensors.ends.tolist(), strict=True))
    prefills = len(batch.extends)
    snapshots = tensors.snapshots.numpy().astype(np.int64)
    texts = [
        sequence.text.slice(start, end) for sequence, (start, end) in zip(batch.sequences, spans, strict=True)
    ]
    ids = np.concatenate([token_ids(runs, vocab) for runs in texts])
    positions = np.concatenate([np.arange(start, end) for start, end in spans])
    return StepPlan(
        tokens=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        kv_slots=tensors.kv_slots.to(device),
        prefill_tokens=int(cu[prefills]),
        scan=_scan(tensors.working.numpy(), tensors.from_zero.numpy(), cu, snapshots, prefills),
        decode=_decode(tensors.working.numpy()[prefills:], snapshots, prefills),
        attention=plan_attention(table, tensors.rows.tolist(), spans, ranks, local, device),
        copies=tensors.copies.long().to(device),
        written=torch.from_numpy(snapshots[:, 2]).to(device),
        bounds=tuple(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)),
    )


def _scan(
    working: np.ndarray, from_zero: np.ndarray, cu: np.ndarray, snapshots: np.ndarray, prefills: int
) -> ScanBatch | None:
    """Each row reads and writes its working slot; its checkpoints are written on the way, at their own depth."""
    if not prefills:
        return None
    slots = working[:prefills].astype(np.int64)
    return make_batch(
        cu[: prefills + 1],
        initial_slots=np.where(from_zero[:prefills], -1, slots),
        final_slots=slots,
        snapshots=snapshots[snapshots[:, 0] < prefills],
    )


def _decode(working: np.ndarray, snapshots: np.ndarray, prefills: int) -> StepSlots | None:
    if not len(working):
        return None
    track = np.full(len(working), -1, dtype=np.int64)
    mine = snapshots[snapshots[:, 0] >= prefills]
    track[mine[:, 0] - prefills] = mine[:, 2]
    return make_step(working.astype(np.int64), track)
