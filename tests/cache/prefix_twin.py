"""A slow twin of the radix tree: a dict of all prefixes, as plain token tuples. No nodes, no edges, no ids.

It knows which page-aligned prefixes have KV, at which of them an edge ends, where states and locks are, and
in which order things were used; everything else it finds by looking at every prefix.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Entry:
    """One page-aligned prefix that has KV. ``end``: an edge ends here; ``used``: when it was last used."""

    end: bool = False
    state: int | None = None
    state_locks: int = 0
    kv_locks: int = 0
    used: int = 0


class PrefixTwin:
    """The tree of DESIGN sections 2, 3 and 6 over tuples of tokens (lru, tombstones without children removed)."""

    def __init__(self, page, grid):
        self.page, self.grid, self.clock = page, grid, 0
        self.entries: dict[tuple, Entry] = {}
        self.states: list[tuple] = []  # prefixes that hold a state, least recently used first

    # --- questions ---

    def prefixes(self, text):
        """The prefixes of a text in whole pages, shortest first."""
        return [tuple(text[:end]) for end in range(self.page, len(text) + 1, self.page)]

    def lookup(self, text):
        """(tokens with a state at their end, tokens of KV alone, branch depth or None)."""
        known = [p for p in self.prefixes(text) if p in self.entries]
        kv = max(map(len, known), default=0)
        tokens = max((len(p) for p in known if self.entries[p].state is not None), default=0)
        points = [d for d in range(self.grid, kv + 1, self.grid) if d > tokens]
        return tokens, kv, max(points, default=None)

    def below(self, prefix):
        return [p for p in self.entries if len(p) > len(prefix) and p[: len(prefix)] == prefix]

    def above(self, prefix):
        """The prefixes of ``prefix`` in the tree, itself among them."""
        return [p for p in self.entries if prefix[: len(p)] == p]

    def edge_end(self, prefix):
        """The end of the edge that ``prefix`` lies on: no text parts before it, so there is one."""
        return min((p for p in [prefix, *self.below(prefix)] if self.entries[p].end), key=len)

    def edge(self, end):
        """The prefixes on the edge that ends at ``end``."""
        return [p for p in self.above(end) if self.edge_end(p) == end]

    def ends(self):
        """What the tree must show: {prefix at an edge's end: (state, KV locks, state locks)}."""
        return {p: (e.state, e.kv_locks, e.state_locks) for p, e in self.entries.items() if e.end}

    def evictable_tokens(self):
        return self.page * sum(not e.kv_locks for e in self.entries.values())

    def evictable_states(self):
        return sum(not self.entries[p].state_locks for p in self.states)

    # --- changes ---

    def match(self, text):
        answer = self.lookup(text)
        self._pass(text, answer[1])
        matched = tuple(text[: answer[0]])
        if matched in self.states:
            self._refresh(matched)
        return answer

    def insert(self, text):
        """Returns how many tokens were there already."""
        existing = self.lookup(text)[1]
        self._pass(text, existing)
        for prefix in self.prefixes(text):
            if len(prefix) > existing:
                self.entries[prefix] = Entry(used=self.clock)
        if prefix := tuple(text[: len(text) // self.page * self.page]):
            self.entries[prefix].end = True
        return existing

    def file_state(self, prefix, slot):
        if self.entries[prefix].state is not None:
            self._refresh(prefix)
            return False
        self.entries[prefix].state = slot
        self.states.append(prefix)
        return True

    def lock(self, prefix, by, state):
        """Lock (by = 1) or unlock (by = -1) the KV of the path, and with ``state`` the state at its end."""
        for p in self.above(prefix):
            self.entries[p].kv_locks += by
        if prefix and state:
            self.entries[prefix].state_locks += by

    def evict(self, kv_tokens, states):
        """Returns (KV tokens, states) evicted."""
        before = len(self.entries), len(self.states)

        def gone():
            return (before[0] - len(self.entries)) * self.page, before[1] - len(self.states)

        while gone()[0] < kv_tokens and (leaves := [p for p in self.entries if self._free_leaf(p)]):
            self._remove_leaf(min(leaves, key=lambda p: self.entries[p].used))
        while gone()[1] < states:
            holder = next((p for p in self.states if not self.entries[p].state_locks), None)
            if holder is None:
                break
            if self._free_leaf(holder):
                self._remove_leaf(holder)
            else:
                self._drop_state(holder)
        return gone()

    # --- helpers ---

    def _pass(self, text, tokens):
        """Somebody walked down the first ``tokens`` tokens of the text: the edges passed were used, the last of
        them to its end, and an edge now ends where the walk did."""
        self.clock += 1
        walked = [p for p in self.prefixes(text) if len(p) <= tokens]
        for prefix in walked:
            for p in self.edge(self.edge_end(prefix)):
                self.entries[p].used = self.clock
        if walked:
            self.entries[walked[-1]].end = True

    def _refresh(self, prefix):
        self.states.remove(prefix)
        self.states.append(prefix)

    def _free_leaf(self, prefix):
        return not self.below(prefix) and not self.entries[prefix].kv_locks

    def _drop_state(self, prefix):
        self.entries[prefix].state = None
        self.states.remove(prefix)

    def _remove_leaf(self, leaf):
        """The leaf goes with its edge; so does every edge above it that is left without state and children."""
        end = leaf
        while True:
            parent = max((p for p in self.above(end) if self.edge_end(p) != end), key=len, default=None)
            if self.entries[end].state is not None:
                self._drop_state(end)
            for p in self.edge(end):
                del self.entries[p]
            if parent is None or self.below(parent):
                return
            end = parent
            if self.entries[end].state is not None or self.entries[end].kv_locks:
                return
