"""What an unbounded cache could reuse: each prompt's longest prefix among everything before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from depthchart.traces.trace import Run, Runs, TraceRequest, common_prefix, slice_runs


def seen_prefixes(requests: Iterable[TraceRequest]) -> Iterator[int]:
    """For each request, in order, the leading prompt tokens that an earlier request has computed.

    Earlier means before in the order given; computed are an earlier prompt and its reply but for
    the reply's last token, whose KV no engine computes. Requests of different ``extra_key`` share
    nothing. The cache is unbounded and instant, so no real one reuses more.
    """
    trees: dict[str | None, PrefixTree] = {}
    for request in requests:
        tree = trees.setdefault(request.extra_key, PrefixTree())
        yield tree.match(request.prompt)
        whole = request.prompt + request.output
        if request.prompt and request.output:
            whole = _joined(request.prompt, request.output)
        tokens = request.prompt_tokens + max(0, request.output_tokens - 1)
        tree.insert(slice_runs(whole, 0, tokens))


def reusable(seen_tokens: int, prompt_tokens: int, block: int) -> int:
    """Tokens that a cache of ``block``-token pages can reuse: full pages, and never the last token.

    This is exact for any number of earlier requests: the best page match is the longest common
    prefix rounded down, since rounding keeps the order.
    """
    return min(seen_tokens, prompt_tokens - 1) // block * block


class PrefixTree:
    """A radix tree over runs, at token resolution: memory grows with the runs, not with the tokens."""

    def __init__(self) -> None:
        self._root = _Node(())

    def match(self, runs: Runs) -> int:
        """Length of the longest prefix of ``runs`` that was inserted, in tokens."""
        node, at = self._root, 0
        rest = runs
        while rest:
            child = node.children.get(rest[0][:2])
            if child is None:
                return at
            shared = common_prefix(child.edge, rest)
            at += shared
            if shared < child.tokens:
                return at
            node, rest = child, _after(rest, shared)
        return at

    def insert(self, runs: Runs) -> None:
        """Remember ``runs`` and all its prefixes."""
        node, rest = self._root, runs
        while rest:
            child = node.children.get(rest[0][:2])
            if child is None:
                node.children[rest[0][:2]] = _Node(rest)
                return
            shared = common_prefix(child.edge, rest)
            if shared < child.tokens:
                child.split(shared)
            node, rest = child, _after(rest, shared)


class _Node:
    __slots__ = ("children", "edge", "tokens")

    def __init__(self, edge: Runs) -> None:
        self.edge = edge
        self.tokens = sum(run[2] for run in edge)
        self.children: dict[tuple[int, int], _Node] = {}

    def split(self, at: int) -> None:
        """Keep the first ``at`` tokens here; the rest moves into a new child with all children."""
        below = _Node(_after(self.edge, at))
        below.children = self.children
        self.edge = slice_runs(self.edge, 0, at)
        self.tokens = at
        self.children = {below.edge[0][:2]: below}


def _after(runs: Runs, tokens: int) -> Runs:
    """``runs`` without its first ``tokens`` tokens."""
    for index, (segment, start, length) in enumerate(runs):
        if tokens < length:
            first: Run = (segment, start + tokens, length - tokens)
            return (first, *runs[index + 1 :])
        tokens -= length
    return ()


def _joined(left: Runs, right: Runs) -> Runs:
    """Two canonical parts as one canonical whole; only the seam can merge."""
    segment, start, length = left[-1]
    if right[0][0] == segment and right[0][1] == start + length:
        return (*left[:-1], (segment, start, length + right[0][2]), *right[1:])
    return left + right
