"""Token texts without token arrays, and the exact identity of their prefixes.

A text is a tuple of runs ``(segment, start, length)``: token ``j`` of a segment is a fixed function of
``(segment, j)``, so runs name tokens exactly. Tokens of a real tokenizer are runs of segment 0, the vocabulary,
whose token ``j`` is the id ``j``.

``PrefixIndex`` gives every prefix that ends on a page one integer, equal exactly where the prefixes
are equal (the page contents are interned, never hashed lossily). Two texts then share a page-aligned
prefix just as far as their ids agree, and the radix tree compares ints.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
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

VOCABULARY = 0
"""Segment whose token j is the vocabulary id j (token-id traces, byte fallback, real models)."""

SEGMENT_LIMIT = 1 << 31
INDEX_LIMIT = 1 << 32

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
        self._grown_from: list[tuple[int, Hashable] | None] = []

    def __len__(self) -> int:
        return len(self._ids)

    def root(self, namespace: str = "") -> int:
        """The id of the empty prefix of a namespace."""
        if namespace not in self._namespaces:
            self._namespaces[namespace] = len(self._grown_from)
            self._grown_from.append(None)
        return self._namespaces[namespace]

    def follow(self, prefix: int, pages: Iterable[Hashable]) -> list[int]:
        """The ids of ``prefix`` grown by one page after another."""
        ids, known, grown = [], self._ids, self._grown_from
        for page in pages:
            key = (prefix, page)
            found = known.get(key)
            if found is None:
                found = known[key] = len(grown)
                grown.append(key)
            prefix = found
            ids.append(prefix)
        return ids

    def text_of(self, prefix: int) -> Runs:
        """The tokens of a prefix, as canonical runs."""
        pages: list[Runs] = []
        while (grown := self._grown_from[prefix]) is not None:
            prefix, page = grown
            pages.append(page)  # type: ignore[arg-type]
        return canonical(run for page in reversed(pages) for run in page)


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
        added = canonical(runs)
        if added and self._runs:  # only where the two meet can runs merge
            added = (*canonical((self._runs[-1], added[0])), *added[1:])
            self._runs = (*self._runs[:-1], *added)
        else:
            self._runs = self._runs or added
        self._length = runs_length(self._runs)

    def ids(self, tokens: int) -> list[int]:
        """The prefix ids of all whole pages within the first ``tokens`` tokens."""
        if not 0 <= tokens <= self._length:
            raise ValueError(f"tokens={tokens}: the text has {self._length} tokens")
        pages = tokens // self.index.page
        if len(self._ids) < self._length // self.index.page:
            self._grow()
        return self._ids[:pages]

    def tag(self, depth: int) -> Tag:
        """The tag of a state that has consumed exactly the first ``depth`` tokens."""
        page = self.index.page
        floor = depth // page * page
        if len(self._ids) * page < floor or depth < 0:
            self.ids(depth)
        prefix = self._ids[floor // page - 1] if floor else self.index.root(self.namespace)
        return Tag(depth, prefix, self.slice(floor, depth))

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
        page, done = self.index.page, len(self._ids)
        last = self._ids[-1] if done else self.index.root(self.namespace)
        rest = slice_runs(self._runs, done * page, self._length // page * page)
        self._ids += self.index.follow(last, page_keys(rest, page))


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


def slice_runs(runs: Runs, start: int, stop: int) -> Runs:
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
