"""From a file's own names (block ids, document ids) to segments, one to one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from depthchart.traces.trace import INDEX_LIMIT, VOCABULARY, Run, Runs, canonical


class Segments:
    """Gives every named piece its own range of tokens; equal names, equal tokens, and nothing else.

    A name is placed once, at its first sight. A piece first seen right after the newest piece of a
    segment goes next to it, so that a growing conversation of thousands of blocks stays one run.
    Ranges never overlap, so this is exact whether or not the names are chained.

    Args:
        first: number of the first new segment.
        step: from one new segment to the next; -1 counts down.
    """

    def __init__(self, first: int = VOCABULARY + 1, step: int = 1) -> None:
        self._next = first
        self._step = step
        self._place: dict[Hashable, Run] = {}
        self._end: dict[int, int] = {}

    def fresh(self, tokens: int) -> Runs:
        """Tokens that nothing else has: lengths without identity."""
        if tokens == 0:
            return ()
        return ((self._new(), 0, tokens),)

    def chain(self, pieces: Iterable[tuple[Hashable, int]]) -> Runs:
        """Canonical runs of pieces (name, tokens) in prompt order.

        The length belongs to the name: a piece of another length is another piece, since a hash of
        300 tokens and one of 512 cannot name the same tokens.
        """
        place, end = self._place, self._end
        out: list[Run] = []
        last: Run | None = None
        for piece in pieces:
            run = place.get(piece)
            if run is None:
                tokens = piece[1]
                at = last[1] + last[2] if last else 0
                if last and end[last[0]] == at and at + tokens <= INDEX_LIMIT:
                    run = (last[0], at, tokens)
                else:
                    run = (self._new(), 0, tokens)
                place[piece] = run
                end[run[0]] = run[1] + tokens
            out.append(run)
            last = run
        return canonical(out)

    def _new(self) -> int:
        segment = self._next
        self._next += self._step
        return segment


class Vocabulary:
    """Runs of literal token ids: token t is index t of segment 0. One tuple per id is shared."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}

    def runs(self, ids: Iterable[int]) -> Runs:
        """Canonical runs of a sequence of token ids."""
        known = self._runs
        out: list[Run] = []
        for token in ids:
            run = known.get(token)
            if run is None:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < INDEX_LIMIT:
                    raise ValueError(f"token id {token!r} must be a whole number in [0, 2**32)")
                run = known[token] = (VOCABULARY, token, 1)
            out.append(run)
        return canonical(out)
