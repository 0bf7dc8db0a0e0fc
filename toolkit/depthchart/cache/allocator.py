"""The paged KV allocator: hands out tree pages and takes them back, each owned exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from depthchart.errors import DoubleFreeError, InvariantError, PageSharedError, PoolExhausted, SegmentError
from depthchart.geometry import positive_int

__all__ = ["PageAllocator", "Segment", "check_segments"]

Segment: TypeAlias = tuple[int, int]
"""Token positions ``[start, end)`` of one KV row."""


class PageAllocator:
    """Pages of ``page`` token slots out of a pool of ``kv_tokens`` (rounded down to whole pages).

    Page ``i`` holds the token slots ``[i * page, (i + 1) * page)``. A row is a list of pages whose
    entry ``k`` holds the request's tokens ``[k * page, (k + 1) * page)``.
    """

    def __init__(self, kv_tokens: int, page: int) -> None:
        kv_tokens, page = positive_int("kv_tokens", kv_tokens), positive_int("page", page)
        if kv_tokens < page:
            raise ValueError(f"kv_tokens={kv_tokens}: must hold at least one page; nearest legal: {page}")
        self.page = page
        self.total_pages = kv_tokens // page
        self._free = list(range(self.total_pages - 1, -1, -1))
        self._used = bytearray(self.total_pages)

    @property
    def free_tokens(self) -> int:
        return len(self._free) * self.page

    @property
    def total_tokens(self) -> int:
        return self.total_pages * self.page

    def allocate(self, pages: int) -> list[int]:
        """``pages`` pages; raises PoolExhausted, taking none, where fewer are free."""
        if pages < 0:
            raise ValueError(f"pages={pages}: must be at least 0")
        if pages > len(self._free):
            raise PoolExhausted(f"{pages} pages of {self.page} tokens wanted, {len(self._free)} free")
        if not pages:
            return []
        taken = self._free[-pages:][::-1]
        del self._free[-pages:]
        for page in taken:
            self._used[page] = 1
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Take pages back. Raises DoubleFreeError, freeing none, where one is free already or named twice."""
        used = self._used
        for at, page in enumerate(pages):
            if not 0 <= page < self.total_pages or not used[page]:
                for done in pages[:at]:
                    used[done] = 1
                raise DoubleFreeError(f"page {page} is not in use: it was freed before, or never handed out")
            used[page] = 0
        self._free.extend(pages)

    def free_segments(self, row: Sequence[int], segments: Sequence[Segment]) -> int:
        """Free token ranges of one row; a last partial page goes back whole. Returns the tokens freed.

        Raises, freeing none: PageSharedError where two ranges share a page, SegmentError where one is
        empty, out of order, outside the row or starts inside a page (sglang#37729).
        """
        check_segments(segments, self.page, len(row) * self.page)
        pages = [page for start, end in segments for page in row[start // self.page : -(-end // self.page)]]
        self.free(pages)
        return len(pages) * self.page

    def check(self, owned: Iterable[int]) -> None:
        """Raise InvariantError unless every page is free or in ``owned``, exactly once."""
        owners = bytearray(self.total_pages)
        for page in self._free:
            owners[page] += 1
            if self._used[page]:
                raise InvariantError(f"page {page} is in the free list and marked as used")
        for page in owned:
            if owners[page]:
                raise InvariantError(f"page {page} is owned twice")
            owners[page] += 1
        for page, count in enumerate(owners):
            if count != 1:
                raise InvariantError(f"page {page} has {count} owners; it must be free or owned exactly once")


def check_segments(segments: Sequence[Segment], page: int, row_tokens: int) -> None:
    """Raise unless the ranges are ascending, page-disjoint, inside the row and start on a page."""
    before: Segment | None = None
    for start, end in segments:
        if not 0 <= start < end:
            raise SegmentError(f"segment [{start}, {end}): must not be empty, and starts at 0 or later")
        if end > row_tokens:
            raise SegmentError(f"segment [{start}, {end}): the row has {row_tokens} tokens only")
        if before is not None:
            _check_pair(before, (start, end), page)
        if start % page:
            raise SegmentError(
                f"segment [{start}, {end}): must start on a page of {page} tokens; nearest: {start // page * page}"
            )
        before = (start, end)


def _check_pair(before: Segment, segment: Segment, page: int) -> None:
    (first_start, first_end), (start, end) = before, segment
    if start < first_end:
        raise SegmentError(f"segment [{start}, {end}): must come after segment [{first_start}, {first_end})")
    shared = start // page
    if shared == (first_end - 1) // page:
        raise PageSharedError(
            f"segment [{start}, {end}) shares a page with segment [{first_start}, {first_end}): "
            f"both lie in page {shared} = [{shared * page}, {(shared + 1) * page})"
        )
