"""Why so little was reused: one reason for every prompt token that was computed although it need not have been.

The reasons of a request partition its prompt. From the end of the prompt downwards: what nobody had computed before,
what falls off the tree page, what the match leaves out (it stops at length - 1), what has no KV in the tree, and
what has KV and no state at its end. All counts are tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeVar

from depthchart.depth import RULES, Rule
from depthchart.events import Aborted, Donated, Finished, Matched, NodeAdded, Rejected, StateDropped
from depthchart.geometry import Geometry
from depthchart.presets import PRESETS, preset
from depthchart.serial import serve
from depthchart.tokens import Ids, PrefixIndex, Text
from depthchart.traces.overlap import PrefixTree
from depthchart.traces.trace import Trace, TraceRequest, canonical, slice_runs

__all__ = ["REASONS", "Account", "Explanation", "Meeting", "Trial", "explain", "meeting", "try_changes"]

_T = TypeVar("_T")

REASONS: Final[Mapping[str, str]] = {
    "never_seen": "never seen before",
    "too_large": "the request never fits the pool",
    "shorter_than_page": "shared prefix shorter than a tree page",
    "off_tree_page": "off the tree page",
    "last_token": "match limited to length - 1",
    "kv_evicted": "KV evicted",
    "not_inserted_yet": "not yet inserted: the other request still runs",
    "cut_fell_short": "cut fell short: no checkpoint there, or the key ended before",
    "state_evicted": "state evicted",
    "unique_tokens": "state lies deeper, in another request's own tokens",
    "off_chunk_grid": "off the grid of checkpoints",
    "not_restored": "a state is there and is never restored",
}
"""Key -> words. Order as in the tables."""


@dataclass(frozen=True, slots=True)
class Account:
    """One request. ``seen_tokens`` were computed before by anyone, ``possible_tokens`` is the most that this tree page
    allows of them, ``kv_tokens`` what the KV matched (H), ``reused_tokens`` what was reused (C). ``reasons`` sums up to
    the prompt less C. ``source`` computed the deepest seen page last; ``evicted_at`` and ``deeper_at`` are depths of
    the deepest evicted state inside the KV match, and of a state beyond the common text (0: none)."""

    request: str
    prompt_tokens: int
    seen_tokens: int
    possible_tokens: int
    kv_tokens: int
    reused_tokens: int
    reasons: Mapping[str, int]
    source: str = ""
    evicted_at: int = 0
    deeper_at: int = 0

    @property
    def lost_tokens(self) -> int:
        """Seen before and computed again."""
        return self.seen_tokens - self.reused_tokens

    def story(self, geometry: Geometry) -> list[str]:
        """The request's reuse in sentences."""
        words = [
            f"request {self.request}: {self.prompt_tokens:,} prompt tokens, {self.reused_tokens:,} reused"
        ]
        if not self.seen_tokens:
            return [*words, "nobody had computed a first token of this text before"]
        words.append(
            f"the first {self.seen_tokens:,} had been computed before"
            + (f", last by {self.source}" if self.source else "")
        )
        page = geometry.tree_page
        if self.possible_tokens < self.seen_tokens:
            words.append(
                f"on tree pages of {page}, and of at most length - 1, a match can give {self.possible_tokens:,}"
            )
        words.append(
            f"the tree had KV for {self.kv_tokens:,} and the deepest usable state at {self.reused_tokens:,}"
        )
        if self.evicted_at:
            words.append(f"a state at {self.evicted_at:,} had been there and was evicted")
        if self.deeper_at:
            words.append(
                f"a state was filed at {self.deeper_at:,}, beyond the common text, where this request cannot resume"
            )
        words += [f"{tokens:,} tokens: {REASONS[name]}" for name, tokens in self.reasons.items() if tokens]
        return words


@dataclass(frozen=True)
class Explanation:
    """All requests of a run in the order in which they were matched, and what it ran with."""

    requests: tuple[Account, ...]
    geometry: Geometry
    settings: Mapping[str, Any]

    @property
    def totals(self) -> dict[str, int]:
        """Tokens by reason, over all requests; those that are none are left out."""
        found: Counter[str] = Counter()
        for one in self.requests:
            found.update(one.reasons)
        return {name: found[name] for name in REASONS if found[name]}

    def worst(self, count: int = 5) -> list[Account]:
        """The requests that lost most of what had been computed before."""
        return sorted((one for one in self.requests if one.lost_tokens), key=lambda one: -one.lost_tokens)[
            :count
        ]

    def account(self, request: str) -> Account:
        """One request's account; ValueError with the nearest id where there is none."""
        return _known(request, {one.request: one for one in self.requests})

    def facts(self) -> dict[str, Any]:
        """Sums, as JSON takes them."""
        names = ("prompt_tokens", "seen_tokens", "possible_tokens", "kv_tokens", "reused_tokens")
        sums = {name: sum(getattr(one, name) for one in self.requests) for name in names}
        return {"requests": len(self.requests), **sums, "reasons": self.totals}

    def rows(self) -> list[tuple[Any, ...]]:
        """The totals with their header, for ``display.table_text``."""
        prompt = max(sum(one.prompt_tokens for one in self.requests), 1)
        reused = sum(one.reused_tokens for one in self.requests)
        body = [
            (REASONS[name], f"{tokens:,}", f"{tokens / prompt:.1%}") for name, tokens in self.totals.items()
        ]
        return [
            ("prompt tokens", "tokens", "share"),
            ("reused", f"{reused:,}", f"{reused / prompt:.1%}"),
            *body,
        ]

    def _repr_html_(self) -> str:
        from depthchart.display import table_html

        return table_html(self.rows(), numeric=(1, 2))


class Trial(NamedTuple):
    """One change, as it was tried. ``kind``: ``flag``, ``release`` (another bundle) or ``memory``."""

    change: str
    kind: str
    reused_tokens: int
    recovered_tokens: int


def explain(
    trace: Trace,
    geometry: Geometry,
    rule: str | Rule = "absolute",
    *,
    kv_tokens: int,
    state_slots: int,
    concurrent: bool = False,
    index: PrefixIndex | None = None,
    **policies: Any,
) -> Explanation:
    """Serve the trace and account for every prompt token.

    Args:
        trace: the requests.
        geometry: page, DCP size, chunk width, budgets.
        rule: a depth rule or its name.
        kv_tokens: KV pool in tokens.
        state_slots: state pool in slots.
        concurrent: through the step loop (``simulate``), where requests overlap, in place of one at a time.
        index: prefix ids prepared for this tree page.
        policies: those of ``serve`` or ``simulate``; ``presets`` gives them for whole engines.
    """
    chosen = RULES[rule] if isinstance(rule, str) else rule
    ids = PrefixIndex(geometry.tree_page) if index is None else index
    ledger = _Ledger(trace, geometry, checkpoint_grid(chosen, geometry), ids)
    pools: dict[str, Any] = {"kv_tokens": kv_tokens, "state_slots": state_slots}
    if concurrent:
        from depthchart.simulate import simulate

        for entry in simulate(trace, geometry, chosen, **pools, **policies, strict=False, index=ids).log:
            ledger(entry.event)
    else:
        serve(trace, geometry, chosen, **pools, **policies, index=ids, watch=ledger)
    settings = {"rule": chosen.name, **pools, **policies, "concurrent": concurrent}
    return Explanation(tuple(ledger.all_accounts()), geometry, settings)


class Meeting(NamedTuple):
    """Two requests alone on an empty cache: they part after ``shared_tokens``; the first leaves states at ``depths``;
    ``account`` is what the second can make of them."""

    shared_tokens: int
    depths: tuple[int, ...]
    account: Account


def meeting(
    trace: Trace, first: str, second: str, geometry: Geometry, rule: str | Rule = "absolute", **settings: Any
) -> Meeting:
    """Where two requests of a trace part, and which checkpoint serves the second (``settings``: those of ``serve``).

    Raises ValueError, naming the nearest, for an id that is not in the trace.
    """
    known = {request.request_id: request for request in trace}
    pair = [replace(_known(name, known), after=None) for name in (first, second)]
    depths: list[int] = []

    def note(event: object) -> None:
        if isinstance(event, Donated):
            depths.append(event.node_end)

    serve(pair[:1], geometry, rule, **settings, watch=note)
    made = explain(replace(trace, requests=tuple(pair)), geometry, rule, **settings)
    account = made.account(second)
    return Meeting(account.seen_tokens, tuple(sorted(set(depths))), account)


def _known(request: str, known: Mapping[str, _T]) -> _T:
    if request in known:
        return known[request]
    near = get_close_matches(request, known, n=1, cutoff=0.0)
    raise ValueError(
        f"request={request!r}: is not in the trace" + (f"; nearest: {near[0]!r}" if near else "")
    )


def checkpoint_grid(rule: Rule, geometry: Geometry) -> int:
    """Depths at which the rule can leave a state, counted from the start of a text: whole tree pages where its kernel
    stores any depth or its steps end on them, else the checkpoint grid."""
    on_page = rule.cuts_final and rule.cut_grid(geometry) % geometry.tree_page == 0
    return geometry.tree_page if rule.snapshots == "any" or on_page else geometry.checkpoint_grid


class _Ledger:
    """Reads a run's events in order and answers for each request as it is matched."""

    def __init__(
        self, trace: Iterable[TraceRequest], geometry: Geometry, grid: int, index: PrefixIndex
    ) -> None:
        self.page, self.grid, self.index = geometry.tree_page, grid, index
        self.requests = {request.request_id: request for request in trace}
        self.accounts: dict[str, Account] = {}
        self.running: dict[str, Ids] = {}  # ids of all pages that the request computes
        self.owner: dict[int, str] = {}  # page -> who computed it last
        self.inserted: set[int] = set()
        self.held: dict[int, int] = {}  # node -> the page at whose end its state is
        self.ever: set[int] = set()  # pages at whose end a state has been
        self.deeper: dict[int, int] = {}  # page -> depth of a state that has been below it
        self.trees: dict[str, PrefixTree] = {}

    def __call__(self, event: object) -> None:
        match event:
            case Matched(request, tokens, kv_tokens) if request not in self.accounts:
                self._matched(self.requests[request], tokens, kv_tokens)
            case NodeAdded(_, _, start, end, request) if request in self.running:
                self.inserted.update(self.running[request][start // self.page : end // self.page])
            case Donated(request, node, _, _, end) if request in self.running:
                self._donated(self.running[request], node, end // self.page)
            case StateDropped(node):
                self.held.pop(node, None)
            case Finished(request) | Aborted(request) | Rejected(request):
                self.running.pop(request, None)

    def all_accounts(self) -> Iterable[Account]:
        """In the order of matching, then the requests that were never served."""
        yield from self.accounts.values()
        for name, request in self.requests.items():
            if name not in self.accounts:
                prompt = request.prompt_tokens
                yield Account(name, prompt, 0, 0, 0, 0, {"too_large": prompt})

    def _matched(self, request: TraceRequest, reused: int, kv_tokens: int) -> None:
        whole = canonical((*request.prompt, *request.output))
        computed = request.prompt_tokens + max(
            request.output_tokens - 1, 0
        )  # the last token's KV is never computed
        namespace = request.extra_key or ""
        ids = Text(self.index, whole, namespace).ids(computed)
        tree = self.trees.setdefault(namespace, PrefixTree())
        seen = tree.match(request.prompt)
        self.accounts[request.request_id] = self._account(request, ids, seen, kv_tokens, reused)
        tree.insert(slice_runs(whole, 0, computed))
        self.running[request.request_id] = ids
        self.owner.update(dict.fromkeys(ids, request.request_id))

    def _donated(self, ids: Ids, node: int, pages: int) -> None:
        self.held[node] = ids[pages - 1]
        self.ever.add(ids[pages - 1])
        for page in reversed(ids[: pages - 1]):
            if page in self.deeper:
                break
            self.deeper[page] = pages * self.page

    def _account(self, request: TraceRequest, ids: Ids, seen: int, kv: int, reused: int) -> Account:
        page, prompt = self.page, request.prompt_tokens
        whole = seen // page * page
        possible = min(whole, (prompt - 1) // page * page)
        source = self.owner.get(ids[whole // page - 1], "") if whole else ""
        reasons: Counter[str] = Counter()
        reasons["never_seen"] = prompt - seen
        reasons["off_tree_page" if whole else "shorter_than_page"] = seen - whole
        reasons["last_token"] = whole - possible
        for at in range(kv // page, possible // page):
            reasons[self._why_no_kv(ids[at])] += page
        evicted, deeper = self._why_no_state(ids, possible, kv, reused, reasons)
        shown = {name: reasons[name] for name in REASONS if reasons[name]}
        return Account(request.request_id, prompt, seen, possible, kv, reused, shown, source, evicted, deeper)

    def _why_no_kv(self, page: int) -> str:
        if self.owner.get(page) in self.running:
            return "not_inserted_yet"
        return "kv_evicted" if page in self.inserted else "cut_fell_short"

    def _why_no_state(
        self, ids: Ids, possible: int, kv: int, reused: int, reasons: Counter[str]
    ) -> tuple[int, int]:
        """Split ``[reused, kv)``: up to the deepest state that was there once, up to the last depth of the grid, and the
        rest. Answers the depth of that state, and of one beyond the common text."""
        page, at = self.page, kv // self.page
        while at * page > reused and ids[at - 1] not in self.ever:
            at -= 1
        once, there_once = max(at * page, reused), False
        if once > reused:
            held = ids[at - 1] in self.held.values()
            reasons["not_restored" if held else "state_evicted"] = once - reused
            there_once = not held
        on_grid = max(kv // self.grid * self.grid, once)
        reasons["off_chunk_grid"] = kv - on_grid
        deeper = 0
        if on_grid > once:
            why, deeper = self._why_never(ids, on_grid, kv, possible)
            reasons[why] += on_grid - once
        return (once if there_once else 0), deeper

    def _why_never(self, ids: Ids, on_grid: int, kv: int, possible: int) -> tuple[str, int]:
        """Why no state was ever filed at depths on the grid, and the depth of one beyond the common text."""
        page = self.page
        if any(ids[at] in self.ever for at in range(kv // page, possible // page)):
            return "state_evicted", 0  # it lay deeper in the common text and went with its KV
        deeper = self.deeper.get(ids[kv // page - 1], 0)
        if deeper:
            return "unique_tokens", deeper
        runs = self.owner.get(ids[on_grid // page - 1]) in self.running
        return ("not_inserted_yet" if runs else "cut_fell_short"), 0


# --- what would help --------------------------------------------------------------------------------------


def try_changes(
    trace: Trace,
    geometry: Geometry,
    name: str,
    *,
    kv_tokens: int,
    state_slots: int,
    advance: Callable[[int], object] | None = None,
) -> list[Trial]:
    """Serve the trace under each change of one setting of the bundle ``name``: what it recovers, the most first, flags
    before other bundles before more memory where they recover as much."""

    def reused(g: Geometry, bundle: str, kv: int, slots: int, **more: Any) -> int:
        settings = preset(bundle).apply(g, kv, slots).settings | more
        return serve(trace, g, **settings, advance=advance).reused_tokens

    base = reused(geometry, name, kv_tokens, state_slots)
    trials = []
    for change, kind, g, bundle, kv, slots, more in _changes(geometry, name, kv_tokens, state_slots):
        tokens = reused(g, bundle, kv, slots, **more)
        trials.append(Trial(change, kind, tokens, tokens - base))
    order = {"flag": 0, "release": 1, "memory": 2}
    return sorted(trials, key=lambda trial: (-trial.recovered_tokens, order[trial.kind]))


_Change = tuple[str, str, Geometry, str, int, int, dict[str, Any]]


def _changes(g: Geometry, name: str, kv: int, slots: int) -> Iterable[_Change]:
    for field in ("page_size", "chunked_prefill_size"):
        for part in (2, 4, 8):
            value = getattr(g, field) // part
            try:
                yield (
                    f"{field} {getattr(g, field)} -> {value}",
                    "flag",
                    replace(g, **{field: value}),
                    name,
                    kv,
                    slots,
                    {},
                )
            except ValueError:
                continue
    for policy in ("coverage", "flops"):
        yield f"state eviction by {policy}", "flag", g, name, kv, slots, {"state_eviction": policy}
    family = name.partition("-")[0]
    for other in PRESETS:
        if other != name and (other.partition("-")[0] == family or other == "depthchart"):
            yield f"bundle {other}", "release", g, other, kv, slots, {}
    yield f"state_slots {slots} -> {2 * slots}", "memory", g, name, kv, 2 * slots, {}
    yield f"kv_tokens {kv} -> {2 * kv}", "memory", g, name, 2 * kv, slots, {}
