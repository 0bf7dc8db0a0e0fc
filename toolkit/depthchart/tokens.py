"""Token texts without token arrays, and the exact identity of their prefixes.

A text is a tuple of runs ``(segment, start, length)``: token ``j`` of a segment is a fixed function of
``(segment, j)``, so runs name tokens exactly. Tokens of a real tokenizer are runs of segment 0, the vocabulary,
whose token ``j`` is the id ``j``.

``PrefixIndex`` gives every prefix that ends on a page one integer, equal exactly where the prefixes
are equal (what they are made of is interned, never hashed lossily). Two texts then share a page-aligned
prefix just as far as their ids agree, and the radix tree compares ints.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

__all__ = [
    "Ids",
    "PrefixIndex",
    "Runs",
    "Tag",
    "Text",
    "canonical",
    "common_prefix",
    "page_keys",
    "raw",
    "runs_length",
    "runs_to_tokens",
    "slice_runs",
]

Run: TypeAlias = tuple[int, int, int]
Runs: TypeAlias = tuple[Run, ...]

Ids: TypeAlias = "array[int]"
"""Prefix ids of a text's pages, int64 [pages]: an ``array.array``, which copies fast and answers with plain ints."""

_Content: TypeAlias = (
    tuple[int, int] | Runs
)  # of a stretch: (segment, first token), or the runs of one mixed page
_Stretch: TypeAlias = tuple[int, _Content]  # the prefix before it, and its content

VOCABULARY = 0
"""Segment whose token j is the vocabulary id j (token-id traces, byte fallback, real models)."""

SEGMENT_LIMIT = 1 << 31
INDEX_LIMIT = 1 << 32

PAGE_BITS = 32  # of an id: the page within its stretch; a run has fewer than 2**32 tokens
LAST_PAGE = (1 << PAGE_BITS) - 1
FEW_STRETCHES = 4096  # below this nothing is worth forgetting
FEW_PAGES = 12  # below this counting up in Python beats a call of numpy

TAINTED = -1  # the prefix id of a state that has read something else than one text from its start


class Tag(NamedTuple):
    """What a state has really consumed: ``depth`` tokens, of the page-floored prefix ``prefix`` (an id of
    the PrefixIndex; TAINTED where tokens were counted twice) and of ``tail`` beyond the last page."""

    depth: int
    prefix: int
    tail: Runs = ()


class PrefixIndex:
    """Interns prefixes: ids of the page-aligned prefixes of texts, for one page size in tokens.

    Pages that continue each other inside one run are a stretch. A stretch is known by the prefix before it and by its
    first token, and gets a number; its pages need no entry of their own: the prefix that ends after page ``k`` of
    stretch ``n`` has the id ``(n << 32) + k``. A page in which runs meet is a stretch of one. So time and memory go by
    runs, not by pages.
    """

    def __init__(self, page: int) -> None:
        if page < 1:
            raise ValueError(f"page={page}: must be a positive number of tokens; nearest legal: 1")
        self.page = page
        self._numbers: dict[_Stretch, int] = {}
        self._stretches: dict[int, _Stretch | None] = {}  # the other way round; None is a root
        self._namespaces: dict[str, int] = {}
        self._next, self._kept = 0, FEW_STRETCHES

    def __len__(self) -> int:
        """Stretches in memory."""
        return len(self._numbers)

    def root(self, namespace: str = "") -> int:
        """The id of the empty prefix of a namespace."""
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self._start(None)
        return self._namespaces[namespace]

    def grow(self, ids: Ids, prefix: int, runs: Runs) -> None:
        """Append to ``ids`` those of ``prefix`` grown by the whole pages of canonical ``runs``, one after another."""
        page, room = self.page, 0
        part: list[Run] = []
        for at, (segment, start, length) in enumerate(runs):
            if part:  # fill the page that began in another run
                piece = min(length, room)
                part.append((segment, start, piece))
                start, length, room = start + piece, length - piece, room - piece
                if room:
                    continue
                prefix = self._stretch(prefix, tuple(part))
                ids.append(prefix)
                part = []
            pages, rest = divmod(length, page)
            if pages:
                goes_on = at == 0 and self._goes_on(prefix, segment, start)
                first = prefix + 1 if goes_on else self._stretch(prefix, (segment, start))
                _count_up(ids, first, pages)
                prefix = first + pages - 1
            if rest:
                part, room = [(segment, start + length - rest, rest)], page - rest

    def text_of(self, prefix: int) -> Runs:
        """The tokens of a prefix, as canonical runs."""
        parts: list[Runs] = []
        while (stretch := self._stretches[prefix >> PAGE_BITS]) is not None:
            tokens = ((prefix & LAST_PAGE) + 1) * self.page
            prefix, content = stretch
            parts.append(content if _is_mixed(content) else ((*content, tokens),))
        return canonical(run for part in reversed(parts) for run in part)

    # --- forgetting ---------------------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Whether it has doubled since it last forgot: ``forget`` then costs little for each stretch that was added."""
        return len(self._numbers) > 2 * self._kept

    def forget(self, live: Iterable[int]) -> None:
        """Drop what does not lead to a prefix in ``live``: name the last one of every edge and of every text still in
        use. A dropped prefix gets another id when it comes again, one that no prefix had before."""
        kept: set[int] = set()
        for prefix in live:
            number = prefix >> PAGE_BITS
            while number not in kept and (stretch := self._stretches.get(number)) is not None:
                kept.add(number)
                number = stretch[0] >> PAGE_BITS
        roots = {prefix >> PAGE_BITS for prefix in self._namespaces.values()}
        self._numbers = {stretch: number for stretch, number in self._numbers.items() if number in kept}
        self._stretches = {n: stretch for n, stretch in self._stretches.items() if n in kept or n in roots}
        self._kept = max(len(kept), FEW_STRETCHES)

    # --- helpers ------------------------------------------------------------------------------------------

    def _stretch(self, prefix: int, content: _Content) -> int:
        """The id of the first page of a stretch."""
        key = (prefix, content)
        number = self._numbers.get(key)
        if number is not None:
            return number << PAGE_BITS
        first = self._start(key)
        self._numbers[key] = first >> PAGE_BITS
        return first

    def _start(self, stretch: _Stretch | None) -> int:
        number, self._next = self._next, self._next + 1
        self._stretches[number] = stretch
        return number << PAGE_BITS

    def _goes_on(self, prefix: int, segment: int, start: int) -> bool:
        """Whether token ``start`` of the segment continues the stretch in which the prefix ends."""
        stretch = self._stretches[prefix >> PAGE_BITS]
        return stretch is not None and stretch[1] == (
            segment,
            start - ((prefix & LAST_PAGE) + 1) * self.page,
        )


class Text:
    """The tokens of one request, growing as it decodes, with the ids of its page-aligned prefixes."""

    __slots__ = ("_ids", "_length", "_runs", "index", "namespace")

    def __init__(self, index: PrefixIndex, runs: Iterable[Run], namespace: str = "") -> None:
        self.index, self.namespace = index, namespace
        self._runs = list(canonical(runs))
        self._length = sum(run[2] for run in self._runs)
        self._ids: Ids = array("q")

    def __len__(self) -> int:
        return self._length

    @property
    def runs(self) -> Runs:
        return tuple(self._runs)

    @property
    def last_id(self) -> int:
        """The longest prefix that has an id so far; -1 where none has."""
        return self._ids[-1] if self._ids else -1

    def append(self, runs: Iterable[Run]) -> None:
        """Add tokens at the end (a decode step's output)."""
        mine = self._runs
        for segment, start, length in canonical(runs):
            if mine and mine[-1][0] == segment and mine[-1][1] + mine[-1][2] == start:
                start, before = mine.pop()[1:]
                mine.append((segment, start, before + length))
            else:
                mine.append((segment, start, length))
            self._length += length

    def ids(self, tokens: int) -> Ids:
        """The prefix ids of all whole pages within the first ``tokens`` tokens, int64 [pages]; a copy."""
        if not 0 <= tokens <= self._length:
            raise ValueError(f"tokens={tokens}: the text has {self._length} tokens")
        return self.all_ids[: tokens // self.index.page]

    @property
    def all_ids(self) -> Ids:
        """The prefix ids of all whole pages, int64 [pages]; the text's own, not to be changed."""
        if len(self._ids) < self._length // self.index.page:
            self._grow()
        return self._ids

    def tag(self, depth: int) -> Tag:
        """The tag of a state that has consumed exactly the first ``depth`` tokens."""
        if not 0 <= depth <= self._length:
            raise ValueError(f"depth={depth}: the text has {self._length} tokens")
        page = self.index.page
        pages, tail = divmod(depth, page)
        if len(self._ids) < pages:
            self._grow()
        prefix = self._ids[pages - 1] if pages else self.index.root(self.namespace)
        return Tag(depth, prefix, self.slice(depth - tail, depth) if tail else ())

    def slice(self, start: int, stop: int) -> Runs:
        """The tokens ``[start, stop)``, found from the end of the text (where a running request works)."""
        if stop > self._length:
            raise ValueError(f"stop={stop}: the text has {self._length} tokens")
        at, first = self._length, len(self._runs)
        while at > start:
            first -= 1
            at -= self._runs[first][2]
        return slice_runs(self._runs[first:], start - at, stop - at) if stop > start else ()

    def _grow(self) -> None:
        """Whole pages are made to the end of the text, those of a run in one go."""
        page, done = self.index.page, len(self._ids)
        last = self._ids[-1] if done else self.index.root(self.namespace)
        self.index.grow(self._ids, last, self.slice(done * page, self._length // page * page))


def runs_length(runs: Runs) -> int:
    """Number of tokens in ``runs``."""
    return sum(run[2] for run in runs)


def canonical(runs: Iterable[Run]) -> Runs:
    """Merge runs that continue each other, drop empty ones; equal tokens give equal runs.

    Raises:
        ValueError: a negative number, a segment of 2**31 or more, or an index of 2**32 or more.
    """
    out: list[Run] = []
    for run in runs:
        segment, start, length = run
        if length == 0:
            continue
        _check_run(segment, start, length)
        if out:
            last = out[-1]
            if last[0] == segment and last[1] + last[2] == start:
                out[-1] = (segment, last[1], last[2] + length)
                continue
        out.append((segment, start, length))
    return tuple(out)


def slice_runs(runs: Sequence[Run], start: int, stop: int) -> Runs:
    """Tokens [start, stop) of ``runs``, canonical if ``runs`` is; bounds as in a Python slice from 0."""
    if start < 0 or stop < start:
        raise ValueError(f"slice [{start}, {stop}) must satisfy 0 <= start <= stop")
    out: list[Run] = []
    at = 0
    for segment, first, length in runs:
        if at >= stop:
            break
        low, high = max(start - at, 0), min(stop - at, length)
        if low < high:
            out.append((segment, first + low, high - low))
        at += length
    return tuple(out)


def runs_to_tokens(runs: Runs) -> npt.NDArray[np.int64]:
    """Tokens as integers ``(segment << 32) | index``, int64 [tokens]; different tokens, different numbers."""
    for run in runs:
        _check_run(*run)
    out = np.empty(runs_length(runs), dtype=np.int64)
    at = 0
    for segment, start, length in runs:
        first = (segment << 32) | start
        out[at : at + length] = np.arange(first, first + length, dtype=np.int64)
        at += length
    return out


def page_keys(runs: Runs, page: int) -> list[Runs]:
    """Canonical runs of each full page of ``page`` tokens; a partial last page gives none.

    Two pages hold the same tokens exactly if their keys are equal.
    """
    if page < 1:
        raise ValueError(f"page={page} must be a positive number of tokens; nearest legal value: 1")
    keys: list[Runs] = []
    part: list[Run] = []
    room = page
    for segment, start, length in runs:
        while length >= room:
            part.append((segment, start, room))
            keys.append(tuple(part))
            part = []
            start, length, room = start + room, length - room, page
        if length:
            part.append((segment, start, length))
            room -= length
    return keys


def common_prefix(left: Runs, right: Runs) -> int:
    """Number of leading tokens that two canonical run tuples share."""
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a == b:
            shared += a[2]
            continue
        # Canonical runs of one start differ right after the shorter one ends.
        return shared + min(a[2], b[2]) if a[:2] == b[:2] else shared
    return shared


def _count_up(ids: Ids, first: int, count: int) -> None:
    """Append ``count`` ids from ``first`` on."""
    if count < FEW_PAGES:
        ids.extend(range(first, first + count))
    else:
        ids.frombytes(np.arange(first, first + count, dtype=np.int64).tobytes())


def _is_mixed(content: _Content) -> TypeGuard[Runs]:
    return isinstance(content[0], tuple)


def _check_run(segment: int, start: int, length: int) -> None:
    if not 0 <= segment < SEGMENT_LIMIT:
        raise ValueError(f"segment={segment} must lie in [0, {SEGMENT_LIMIT}) (2**31)")
    if length < 0:
        raise ValueError(f"length={length} of a run must be 0 or more")
    if start < 0 or start + length > INDEX_LIMIT:
        raise ValueError(
            f"run ({segment}, {start}, {length}) must stay in indices [0, {INDEX_LIMIT}) (2**32)"
        )


def raw(tokens: Iterable[int]) -> Runs:
    """A text of a tokenizer's token ids."""
    return canonical((VOCABULARY, int(token), 1) for token in tokens)
