"""Every bundle on one trace at equal memory, ranked by rightly reused tokens, beside the offline bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from depthchart.bounds import Bounds, bounds
from depthchart.geometry import Geometry
from depthchart.presets import ENGINES, PRESETS, Preset, preset
from depthchart.provenance import provenance
from depthchart.serial import serve
from depthchart.tokens import PrefixIndex
from depthchart.traces.trace import Trace

__all__ = ["Leaderboard", "Standing", "leaderboard"]


class Standing(NamedTuple):
    """One bundle. ``reused_tokens`` are rightly reused (wrong states do not count); ``of_bound`` is their share of
    the offline bound on the same pools; ``wrong_requests`` took over a state of another text."""

    preset: str
    reused_tokens: int
    reuse: float
    lost_tokens: int
    of_bound: float
    wrong_requests: int
    states_filed: int
    summary: str


@dataclass(frozen=True)
class Leaderboard:
    """``standings``: the best first; ``bound``: of the pools as given; ``ours_first``: whether our own bundle reuses
    more than every engine's, or as much where that is the bound itself."""

    trace: str
    source: str
    prompt_tokens: int
    settings: Mapping[str, Any]
    bound: Bounds
    standings: tuple[Standing, ...]
    provenance: Mapping[str, str]

    @property
    def ours_first(self) -> bool:
        engines = [row.reused_tokens for row in self.standings if row.preset in ENGINES]
        ours = [row.reused_tokens for row in self.standings if row.preset == "depthchart"]
        return bool(ours) and all(
            ours[0] > tokens or ours[0] == tokens == self.bound.least for tokens in engines
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """The table with its header, for ``display.table_text``."""
        head = ("preset", "reused tokens", "of prompt", "of bound", "found, thrown away", "wrong requests")
        body = [
            (
                s.preset,
                f"{s.reused_tokens:,}",
                f"{s.reuse:.2%}",
                f"{s.of_bound:.2%}",
                f"{s.lost_tokens:,}",
                s.wrong_requests,
            )
            for s in self.standings
        ]
        return [head, *body]

    def _repr_html_(self) -> str:
        from depthchart.display import table_html

        return table_html(self.rows(), numeric=(1, 2, 3, 4, 5))


def leaderboard(
    trace: Trace,
    geometry: Geometry,
    *,
    kv_tokens: int,
    state_slots: int,
    presets: Iterable[str | Preset] = tuple(PRESETS),
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    advance: Callable[[int], object] | None = None,
) -> Leaderboard:
    """Serve the trace one request at a time under each bundle (``serial``: nothing depends on timing).

    Args:
        trace: the requests.
        geometry: for all bundles alike; an engine with blocks takes the tree page as its block.
        kv_tokens: KV pool in tokens, for all alike.
        state_slots: state pool in slots, for all alike; a bundle with a joint pool splits the same blocks in its own way,
            and is compared with the bound of that split.
        presets: names or presets.
        extra: further entries by name: keyword arguments of ``serve`` beside the pools, such as ``{"mine": {"rule":
            "my_rule", "state_eviction": "gain"}}``.
        advance: called with 1 after each request of each bundle.
    """
    index = PrefixIndex(geometry.tree_page)
    setups = {
        made.name: (made.apply(geometry, kv_tokens, state_slots).settings, made.summary)
        for made in map(_preset, presets)
    }
    for name, settings in (extra or {}).items():
        setups[name] = ({"kv_tokens": kv_tokens, "state_slots": state_slots, **settings}, "yours")
    found: dict[tuple[int, int], Bounds] = {}

    def bound_of(pools: tuple[int, int]) -> Bounds:
        if pools not in found:
            found[pools] = bounds(trace, geometry, *pools, index=index)
        return found[pools]

    standings = []
    for name, (settings, summary) in setups.items():
        service = serve(trace, geometry, **settings, index=index, advance=advance)
        best = bound_of((settings["kv_tokens"], settings["state_slots"])).least
        reused, prompt = service.reused_tokens, service.prompt_tokens
        standings.append(
            Standing(
                name,
                reused,
                reused / prompt if prompt else 0.0,
                service.lost_tokens,
                reused / best if best else 1.0,
                service.wrong_requests,
                service.counts.get("Donated", 0),
                summary,
            )
        )
    standings.sort(key=lambda row: -row.reused_tokens)
    shown = {
        "kv_tokens": kv_tokens,
        "state_slots": state_slots,
        "order": "one request at a time, in the order of the trace",
    }
    return Leaderboard(
        trace.name,
        trace.source,
        trace.prompt_tokens,
        shown,
        bound_of((kv_tokens, state_slots)),
        tuple(standings),
        provenance(),
    )


def _preset(given: str | Preset) -> Preset:
    return preset(given) if isinstance(given, str) else given
