"""Token texts without token arrays, and the exact identity of their prefixes.

A text is a tuple of runs ``(segment, start, length)``: token ``j`` of a segment is a fixed function of
``(segment, j)``, so runs name tokens exactly. Tokens of a real tokenizer are runs of segment ``RAW``,
whose token ``j`` is ``j`` itself.

``PrefixIndex`` gives every prefix that ends on a page one integer, equal exactly where the prefixes
are equal (the page contents are interned, never hashed lossily). Two texts then share a page-aligned
prefix just as far as their ids agree, and the radix tree compares ints.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["RAW", "PrefixIndex", "Runs", "Tag", "Text", "canonical", "raw", "runs_length", "slice_runs"]

Run: TypeAlias = tuple[int, int, int]
Runs: TypeAlias = tuple[Run, ...]

RAW = -1
TAINTED = -1  # the prefix id of a state that has read something else than one text from its start


class Tag(NamedTuple):
    """What a state has really consumed: ``depth`` tokens, of the page-floored prefix ``prefix`` (an id of
    the PrefixIndex; TAINTED where tokens were counted twice) and of ``tail`` beyond the last page."""

    depth: int
    prefix: int
    tail: Runs = ()


class PrefixIndex:
    """Interns prefixes: ids of the page-aligned prefixes of texts, for one page size in tokens."""

    def __init__(self, page: int) -> None:
        if page < 1:
            raise ValueError(f"page={page}: must be a positive number of tokens; nearest legal: 1")
        self.page = page
        self._ids: dict[tuple[int, Hashable], int] = {}
        self._namespaces: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._ids)

    def root(self, namespace: str = "") -> int:
        """The id of the empty prefix of a namespace."""
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self._fresh()
        return self._namespaces[namespace]

    def follow(self, prefix: int, pages: Iterable[Hashable]) -> list[int]:
        """The ids of ``prefix`` grown by one page after another."""
        ids, known = [], self._ids
        for page in pages:
            key = (prefix, page)
            prefix = known[key] if key in known else known.setdefault(key, self._fresh())
            ids.append(prefix)
        return ids

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1


class Text:
    """The tokens of one request, growing as it decodes, with the ids of its page-aligned prefixes."""

    __slots__ = ("_ids", "_length", "_runs", "index", "namespace")

    def __init__(self, index: PrefixIndex, runs: Iterable[Run], namespace: str = "") -> None:
        self.index, self.namespace = index, namespace
        self._runs = canonical(runs)
        self._length = runs_length(self._runs)
        self._ids: list[int] = []

    def __len__(self) -> int:
        return self._length

    @property
    def runs(self) -> Runs:
        return self._runs

    def append(self, runs: Iterable[Run]) -> None:
        """Add tokens at the end (a decode step's output)."""
        self._runs = canonical((*self._runs, *runs))
        self._length = runs_length(self._runs)

    def ids(self, tokens: int) -> list[int]:
        """The prefix ids of all whole pages within the first ``tokens`` tokens."""
        if tokens > self._length:
            raise ValueError(f"tokens={tokens}: the text has {self._length} tokens")
        pages = tokens // self.index.page
        if len(self._ids) < self._length // self.index.page:
            self._grow()
        return self._ids[:pages]

    def tag(self, depth: int) -> Tag:
        """The tag of a state that has consumed exactly the first ``depth`` tokens."""
        page = self.index.page
        ids = self.ids(depth)
        prefix = ids[-1] if ids else self.index.root(self.namespace)
        floor = depth // page * page
        return Tag(depth, prefix, slice_runs(self._runs, floor, depth) if depth > floor else ())

    def _grow(self) -> None:
        page, done = self.index.page, len(self._ids)
        last = self._ids[-1] if done else self.index.root(self.namespace)
        rest = slice_runs(self._runs, done * page, self._length // page * page)
        self._ids += self.index.follow(last, page_keys(rest, page))


def canonical(runs: Iterable[Run]) -> Runs:
    """Runs with empty ones dropped and neighbours that continue each other merged: equal texts have
    equal canonical runs. Raises ValueError for a negative start or length."""
    merged: list[Run] = []
    for segment, start, length in runs:
        if length < 0 or start < 0:
            raise ValueError(f"run ({segment}, {start}, {length}): start and length must be at least 0")
        if not length:
            continue
        if merged and merged[-1][0] == segment and merged[-1][1] + merged[-1][2] == start:
            merged[-1] = (segment, merged[-1][1], merged[-1][2] + length)
        else:
            merged.append((segment, start, length))
    return tuple(merged)


def runs_length(runs: Sequence[Run]) -> int:
    """Tokens of a text."""
    return sum(length for _, _, length in runs)


def slice_runs(runs: Sequence[Run], start: int, stop: int) -> Runs:
    """The tokens ``[start, stop)`` of a text, canonical if ``runs`` is."""
    out: list[Run] = []
    at = 0
    for segment, offset, length in runs:
        if at >= stop:
            break
        low, high = max(start - at, 0), min(stop - at, length)
        if low < high:
            out.append((segment, offset + low, high - low))
        at += length
    return tuple(out)


def page_keys(runs: Sequence[Run], page: int) -> list[Runs]:
    """The canonical runs of each whole page of a canonical text."""
    keys: list[Runs] = []
    current: list[Run] = []
    room = page
    for segment, start, length in runs:
        while length >= room:
            current.append((segment, start, room))
            keys.append(tuple(current))
            start, length, room = start + room, length - room, page
            current = []
        if length:
            current.append((segment, start, length))
            room -= length
    return keys


def raw(tokens: Iterable[int]) -> Runs:
    """A text of a tokenizer's token ids."""
    return canonical((RAW, int(token), 1) for token in tokens)
