"""The paged KV allocator: hands out tree pages and takes them back, each owned exactly once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from depthchart.errors import DoubleFreeError, InvariantError, PageSharedError, PoolExhausted, SegmentError
from depthchart.geometry import positive_int

__all__ = ["PageAllocator", "Pages", "Segment", "check_segments"]

Pages: TypeAlias = "array[int]"
"""Pages of a row or an edge, int32 [pages]: an ``array.array``, which copies fast and answers with plain ints."""

Segment: TypeAlias = tuple[int, int]
"""Token positions ``[start, end)`` of one KV row."""

Spans: TypeAlias = list[tuple[int, int]]  # pages [first, stop), each stretch consecutive

SOME_PAGES = 32  # from here on numpy, looking at every page, beats a loop
MANY_PAGES = 1024  # from here on it pays to look for stretches,
PAGES_A_SPAN = 128  # if they are at least so long on average


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
        self._numbers: Pages = array("i", np.arange(self.total_pages, dtype=np.int32).tobytes())
        self._stack = self._numbers[:]
        self._top = 0
        self._used = bytearray(self.total_pages)

    @property
    def free_tokens(self) -> int:
        return (self.total_pages - self._top) * self.page

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
        if pages == 1:  # as decode rows take them
            self._used[taken[0]] = 1
        elif pages:
            self._mark(taken, self._spans(taken), 1)
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Take pages back. Raises DoubleFreeError, freeing none, where one is free already or named twice."""
        if not len(pages):
            return
        row = pages if isinstance(pages, array) else array("i", pages)
        spans = self._spans(row)
        if not self._surely_used(row, spans):
            self._check_used(row)
        self._mark(row, spans, 0)
        self._stack[self._top - len(row) : self._top] = row
        self._top -= len(row)

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

    def _spans(self, pages: Pages) -> Spans | None:
        """Where the pages are few stretches in which each follows the one before (as those are that were taken together),
        the stretches, in order; None where they are many, or so few pages that looking for stretches costs more."""
        first, count = pages[0], len(pages)
        if 0 <= first == pages[-1] - count + 1 and pages == self._numbers[first : first + count]:
            return [(first, first + count)]
        if count < MANY_PAGES:
            return _stretches(pages) if count < SOME_PAGES else None
        numbers = np.frombuffer(pages, np.int32)
        (breaks,) = (numbers[1:] - numbers[:-1] != 1).nonzero()
        if len(breaks) * PAGES_A_SPAN > count:
            return None
        bounds = [0, *(breaks + 1).tolist(), count]
        return [(pages[start], pages[stop - 1] + 1) for start, stop in pairwise(bounds)]

    def _surely_used(self, pages: Pages, spans: Spans | None) -> bool:
        """A quick look: True only where all are in use and none is named twice."""
        if spans is None:
            numbers = np.sort(np.frombuffer(pages, np.int32))
            if numbers[0] < 0 or numbers[-1] >= self.total_pages or not (numbers[1:] > numbers[:-1]).all():
                return False
            return bool(np.frombuffer(self._used, np.uint8)[numbers].all())
        end = 0
        for first, stop in sorted(spans) if len(spans) > 1 else spans:
            if first < end or self._used.find(0, first, stop) >= 0:
                return False
            end = stop
        return end <= self.total_pages

    def _mark(self, pages: Pages, spans: Spans | None, used: int) -> None:
        if spans is None:
            np.frombuffer(self._used, np.uint8)[np.frombuffer(pages, np.int32)] = used
            return
        mark = b"\1" if used else b"\0"
        for first, stop in spans:
            self._used[first:stop] = mark * (stop - first)


def _stretches(pages: Pages) -> Spans:
    spans: Spans = []
    start = stop = pages[0]
    for page in pages:
        if page != stop:
            spans.append((start, stop))
            start = page
        stop = page + 1
    spans.append((start, stop))
    return spans


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
