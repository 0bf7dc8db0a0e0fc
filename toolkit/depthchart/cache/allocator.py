"""The paged KV allocator: hands out tree pages and takes them back, each owned exactly once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from depthchart.errors import DoubleFreeError, InvariantError, PageSharedError, PoolExhausted, SegmentError
from depthchart.geometry import positive_int

__all__ = ["PageAllocator", "Pages", "Segment", "check_segments"]

Pages: TypeAlias = "array[int]"
"""Pages of a row or an edge, int32 [pages]: an ``array.array``, which copies fast and answers with plain ints."""

Segment: TypeAlias = tuple[int, int]
"""Token positions ``[start, end)`` of one KV row."""

MANY_PAGES = 24  # from here on numpy beats a loop


class PageAllocator:
    """Pages of ``page`` token slots out of a pool of ``kv_tokens`` (rounded down to whole pages).

    Page ``i`` holds the token slots ``[i * page, (i + 1) * page)``. A row lists pages: its
    entry ``k`` holds the request's tokens ``[k * page, (k + 1) * page)``.
    """

    def __init__(self, kv_tokens: int, page: int) -> None:
        kv_tokens, page = positive_int("kv_tokens", kv_tokens), positive_int("page", page)
        if kv_tokens < page:
            raise ValueError(f"kv_tokens={kv_tokens}: must hold at least one page; nearest legal: {page}")
        self.page = page
        self.total_pages = kv_tokens // page
        # A stack of fixed length, since resizing a large one costs more than all else: free from _top on.
        self._stack: Pages = array("i", np.arange(self.total_pages, dtype=np.int32).tobytes())
        self._top = 0
        self._used = bytearray(self.total_pages)

    @property
    def free_tokens(self) -> int:
        return self.free_pages * self.page

    @property
    def free_pages(self) -> int:
        return self.total_pages - self._top

    @property
    def total_tokens(self) -> int:
        return self.total_pages * self.page

    def allocate(self, pages: int) -> Pages:
        """``pages`` pages; raises PoolExhausted, taking none, where fewer are free."""
        if pages < 0:
            raise ValueError(f"pages={pages}: must be at least 0")
        if pages > self.free_pages:
            raise PoolExhausted(f"{pages} pages of {self.page} tokens wanted, {self.free_pages} free")
        taken = self._stack[self._top : self._top + pages]
        self._top += pages
        self._mark(taken, 1)
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Take pages back. Raises DoubleFreeError, freeing none, where one is free already or named twice."""
        if not len(pages):
            return
        if len(pages) < MANY_PAGES or not self._surely_used(pages):
            self._check_used(pages)
        self._mark(pages, 0)
        self._stack[self._top - len(pages) : self._top] = array("i", pages)
        self._top -= len(pages)

    def free_segments(self, row: Sequence[int], segments: Sequence[Segment]) -> int:
        """Free token ranges of one row; a last partial page goes back whole. Returns the tokens freed.

        Raises, freeing none: PageSharedError where two ranges share a page, SegmentError where one is
        empty, out of order, outside the row or starts inside a page (sglang#37729).
        """
        check_segments(segments, self.page, len(row) * self.page)
        pages: Pages = array("i")
        for start, end in segments:
            pages.extend(row[start // self.page : -(-end // self.page)])
        self.free(pages)
        return len(pages) * self.page

    def check(self, owned: Iterable[int]) -> None:
        """Raise InvariantError unless every page is free or in ``owned``, exactly once."""
        owners = bytearray(self.total_pages)
        for page in self._stack[self._top :]:
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

    # --- helpers ------------------------------------------------------------------------------------------

    def _check_used(self, pages: Sequence[int]) -> None:
        seen: set[int] = set()
        for page in pages:
            if not 0 <= page < self.total_pages or not self._used[page] or page in seen:
                raise DoubleFreeError(f"page {page} is not in use: it was freed before, or never handed out")
            seen.add(page)

    def _surely_used(self, pages: Sequence[int]) -> bool:
        """A quick look at many pages: True only where all are in use and none is named twice."""
        numbers = np.sort(np.asarray(pages, np.int32))
        if numbers[0] < 0 or numbers[-1] >= self.total_pages or not (numbers[1:] > numbers[:-1]).all():
            return False
        return bool(np.frombuffer(self._used, np.uint8)[numbers].all())

    def _mark(self, pages: Sequence[int], used: int) -> None:
        if len(pages) < MANY_PAGES:
            for page in pages:
                self._used[page] = used
        else:
            np.frombuffer(self._used, np.uint8)[np.asarray(pages, np.int32)] = used


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
