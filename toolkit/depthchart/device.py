"""What a kernel reads: KV rows and batches as torch tensors on any device.

The books themselves stay plain Python (``cache``, ``scheduler``); this adapter mirrors them, and only what has
changed since the last step is copied.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from depthchart.errors import PoolExhausted
from depthchart.scheduler.executor import Batch
from depthchart.scheduler.lifecycle import Decode, Extend

__all__ = ["BatchTensors", "RowTable", "batch_tensors"]


class RowTable:
    """The KV rows of running requests: ``pages``, int32 ``[rows, row_pages]`` on ``device``; entry ``[r, k]`` is
    the page that holds the tokens ``[k * page, (k + 1) * page)`` of row r, or -1.

    ``rows`` limits how many requests run at once, ``row_tokens`` how long one may get.
    """

    def __init__(self, rows: int, row_tokens: int, page: int, device: str | torch.device = "cpu") -> None:
        for name, value in (("rows", rows), ("row_tokens", row_tokens), ("page", page)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be positive; nearest legal: 1")
        self.page = page
        self.pages = torch.full((rows, -(-row_tokens // page)), -1, dtype=torch.int32, device=device)
        self._free = list(range(rows - 1, -1, -1))
        self._rows: dict[str, int] = {}
        self._known: dict[str, list[int]] = {}

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def update(self, request: str, pages: Seq[int]) -> int:
        """Mirror a request's row, giving it a row of the table when it has none; returns the row's number.

        Raises PoolExhausted, changing nothing, where all rows are taken or the row is too long.
        """
        if len(pages) > self.pages.shape[1]:
            raise PoolExhausted(f"request {request!r}: {len(pages)} pages; a row holds {self.pages.shape[1]}")
        if request not in self._rows:
            if not self._free:
                raise PoolExhausted(f"request {request!r}: all {self.pages.shape[0]} rows are taken")
            self._rows[request], self._known[request] = self._free.pop(), []
        row, known = self._rows[request], self._known[request]
        first = next(
            (k for k, (a, b) in enumerate(zip(known, pages, strict=False)) if a != b),
            min(len(known), len(pages)),
        )
        if first < len(pages):
            fresh = torch.tensor(pages[first:], dtype=torch.int32)
            self.pages[row, first : len(pages)] = fresh.to(self.pages.device, non_blocking=True)
        if len(known) > len(pages):
            self.pages[row, len(pages) : len(known)] = -1
        self._known[request] = list(pages)
        return row

    def release(self, request: str) -> None:
        """Free a request's row. Raises ValueError where it has none."""
        if request not in self._rows:
            raise ValueError(f"request={request!r}: has no row; rows: {', '.join(self._rows) or 'none'}")
        row = self._rows.pop(request)
        self.pages[row, : len(self._known.pop(request))] = -1
        self._free.append(row)

    def token_slots(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The KV token slots of ``position`` in ``row`` (int64, both ``[n]``): page * page size + offset."""
        page = self.pages[row, position // self.page].to(torch.int64)
        return page * self.page + position % self.page


@dataclass(frozen=True)
class BatchTensors:
    """A batch for kernels; rows are the prefill rows, then the decode rows. All on the table's device.

    ``rows`` int64 ``[n]``: row of the table; ``starts``, ``ends`` int32 ``[n]``: token positions run now;
    ``cu_seqlens`` int32 ``[n + 1]``: where each row's tokens begin in the packed batch; ``kv_slots`` int64
    ``[tokens]``: where each token's KV goes; ``working`` int32 ``[n]``: state slot that is read and written;
    ``from_zero`` bool ``[n]``: the row begins with an empty state; ``snapshots`` int32 ``[m, 3]``: (row, tokens
    of this call before the snapshot, slot); ``copies`` int32 ``[c, 2]``: (source, target) slots to copy first.
    """

    rows: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    cu_seqlens: torch.Tensor
    kv_slots: torch.Tensor
    working: torch.Tensor
    from_zero: torch.Tensor
    snapshots: torch.Tensor
    copies: torch.Tensor


def batch_tensors(batch: Batch, table: RowTable) -> BatchTensors:
    """Mirror the rows of a batch in the table and lay the batch out for kernels."""
    spans = [*(_span(row) for row in batch.extends), *(_span(row) for row in batch.decodes)]
    rows = [table.update(sequence.request, sequence.row) for sequence in batch.sequences]
    lengths = [end - start for start, end in spans]
    device = table.pages.device

    def ints(values: Seq[int] | Seq[Seq[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    row_of = ints(rows, torch.int64)
    counts = ints(lengths, torch.int64)
    starts = ints([start for start, _ in spans], torch.int64)
    cu = torch.zeros(len(rows) + 1, dtype=torch.int64, device=device)
    torch.cumsum(counts, 0, out=cu[1:])
    owner = torch.repeat_interleave(torch.arange(len(rows), device=device), counts)
    position = torch.arange(sum(lengths), device=device) - cu[owner] + starts[owner]
    return BatchTensors(
        rows=row_of,
        starts=starts.to(torch.int32),
        ends=ints([end for _, end in spans]),
        cu_seqlens=cu.to(torch.int32),
        kv_slots=table.token_slots(row_of[owner], position),
        working=ints([_slot(sequence.working) for sequence in batch.sequences]),
        from_zero=torch.tensor([start == 0 for start, _ in spans], device=device),
        snapshots=ints(_snapshots(batch)).reshape(-1, 3),
        copies=ints([list(copy) for copy in batch.copies]).reshape(-1, 2),
    )


def _span(row: Extend | Decode) -> tuple[int, int]:
    return (row.prefix, row.end) if isinstance(row, Extend) else (row.position, row.position + 1)


def _slot(working: int | None) -> int:
    assert working is not None, "a planned row has a working slot"
    return working


def _snapshots(batch: Batch) -> list[list[int]]:
    """Each snapshot at the depth that the kernel really stores, counted from the row's first token."""
    found = [
        [at, snapshot.depth - row.prefix, snapshot.slot]
        for at, row in enumerate(batch.extends)
        for snapshot in row.snapshots
    ]
    for at, step in enumerate(batch.decodes, start=len(batch.extends)):
        if step.snapshot is not None:
            found.append([at, 1, step.snapshot.slot])
    return found
