"""What a misplaced state does to a text: one scenario, with reuse and without, position by position.

A request is cut inside a tree page and leaves a checkpoint; the next one begins with the same text. Where the
checkpoint has consumed more tokens than the node that holds it, the second request runs those tokens through the
recurrence twice, and its logits part from the right ones: nothing raises, the text is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from depthchart.depth import Rule
from depthchart.engine.model import HybridModel
from depthchart.engine.serving import Engine, cold_logits
from depthchart.events import Matched, Violation
from depthchart.geometry import Geometry

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Divergence", "Position", "Scenario", "compare_reuse", "divergence", "summary"]


class Position(NamedTuple):
    """One text position that the second request computed (columns.DIVERGENCE)."""

    position_tokens: int
    largest_difference: float
    mean_difference: float
    next_token: int
    right_token: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Lengths in tokens. The first request has a prompt of ``first`` tokens, whose first extend is cut at ``cut`` by a
    neighbour that uses up the rest of the step's budget (0: no neighbour); the second begins with the first one's
    ``shared`` tokens, goes on with ``fresh`` own ones and samples ``output``. ``seed``: of the texts."""

    first: int = 604
    cut: int = 64
    shared: int = 600
    fresh: int = 200
    output: int = 48
    seed: int = 0


@dataclass(frozen=True)
class Divergence:
    """The second request, with reuse against without. ``reused``: tokens matched; ``state_depth``: tokens that the
    taken state had consumed; ``positions``: where logits were compared, both reading the same text (the prompt, then
    what the request itself sampled); ``output`` and ``right_output``: the tokens sampled with reuse and without."""

    rule: str
    reused: int
    state_depth: int
    prompt: int
    positions: tuple[Position, ...]
    output: tuple[int, ...]
    right_output: tuple[int, ...]
    violations: int

    @property
    def counted_twice(self) -> int:
        """Tokens that went through the recurrence twice."""
        return max(0, self.state_depth - self.reused)

    @property
    def largest(self) -> float:
        """The largest difference of logits anywhere."""
        return max(row.largest_difference for row in self.positions)

    @property
    def first_changed(self) -> int | None:
        """Position in the text of the first sampled token that differs; None where all are equal."""
        pairs = zip(self.output, self.right_output, strict=True)
        return next((self.prompt + at for at, (a, b) in enumerate(pairs) if a != b), None)

    def frame(self) -> pd.DataFrame:
        """One row for each position (columns.DIVERGENCE)."""
        import pandas as pd

        return pd.DataFrame(list(self.positions), columns=list(Position._fields))


def divergence(
    model: HybridModel,
    geometry: Geometry,
    rule: str | Rule,
    scenario: Scenario | None = None,
    *,
    strict: bool = False,
    checkpoint_dtype: str = "fp32",
) -> Divergence:
    """Run a scenario under a rule. With ``strict`` off, a misplaced state is recorded and kept, as in an engine
    without the check; with it on, InvariantError is raised at the first."""
    plan = scenario or Scenario()
    dice = random.Random(plan.seed)
    vocab = model.config.vocab
    budget = geometry.chunked_prefill_size
    first = [dice.randrange(vocab) for _ in range(plan.first)]
    second = first[: plan.shared] + [dice.randrange(vocab) for _ in range(plan.fresh)]
    pages = sum(
        -(-tokens // geometry.tree_page) + 2 for tokens in (budget, len(first), len(second) + plan.output)
    )
    engine = Engine(
        model,
        geometry,
        rule,
        kv_tokens=pages * geometry.tree_page,
        state_slots=16,
        strict=strict,
        checkpoint_dtype=checkpoint_dtype,
        record="all",
    )
    if plan.cut:
        _check_cut(plan.cut, geometry)
        engine.submit("neighbour", [dice.randrange(vocab) for _ in range(budget - plan.cut)], 1)
    engine.generate("first", first, 1)
    engine.generate("second", second, plan.output)
    return compare_reuse(engine, "second")


def compare_reuse(engine: Engine, request: str) -> Divergence:
    """A finished request against the same text computed alone. Needs an engine with ``record="all"``."""
    matched = next(event for event in engine.log.of(Matched) if event.request == request)
    text, output = engine.text(request), engine.output(request)
    right = cold_logits(engine.model, text)
    rows = engine.logits[request]
    positions = tuple(_position(at, rows[at], right[at]) for at in sorted(rows))
    prompt = len(text) - len(output)
    return Divergence(
        rule=engine.scheduler.lifecycle.rule.name,
        reused=matched.tokens,
        state_depth=_state_depth(engine, matched),
        prompt=prompt,
        positions=positions,
        output=tuple(output),
        right_output=tuple(_cold_output(engine.model, text[:prompt], len(output))),
        violations=len(engine.log.of(Violation)),
    )


def summary(runs: Mapping[str, Divergence]) -> pd.DataFrame:
    """One row for each run: tokens reused, read by the state, counted twice; largest difference; first changed token."""
    import pandas as pd

    rows = {
        name: {
            "reused_tokens": run.reused,
            "state_depth_tokens": run.state_depth,
            "counted_twice_tokens": run.counted_twice,
            "largest_difference": run.largest,
            "first_changed_token": run.first_changed,
            "violations": run.violations,
        }
        for name, run in runs.items()
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return frame.rename_axis("rule").astype({"first_changed_token": "Int64"})


def _position(at: int, got: Tensor, right: Tensor) -> Position:
    difference = (got - right).abs()
    return Position(
        at, float(difference.max()), float(difference.mean()), int(got.argmax()), int(right.argmax())
    )


def _cold_output(model: HybridModel, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy tokens without any reuse."""
    geometry = Geometry(page_size=16, chunk_width=16, chunked_prefill_size=max(16, len(prompt)))
    room = (-(-(len(prompt) + tokens) // 16) + 1) * 16
    return Engine(model, geometry, kv_tokens=room, state_slots=4, record="none").generate(
        "cold", prompt, tokens
    )


def _state_depth(engine: Engine, matched: Matched) -> int:
    """Tokens that the matched node's state had consumed when the request took it."""
    from depthchart.redraw import TreeView

    view = TreeView()
    for entry in engine.log:
        if entry.event is matched:
            break
        view.apply(entry)
    node = view.nodes.get(matched.node_id)
    return 0 if node is None or node.state_depth is None else int(node.state_depth)


def _check_cut(cut: int, geometry: Geometry) -> None:
    if cut % geometry.page_size or not 0 < cut < geometry.chunked_prefill_size:
        nearest = max(1, round(cut / geometry.page_size)) * geometry.page_size
        raise ValueError(
            f"cut={cut}: must be a multiple of page_size={geometry.page_size} below "
            f"chunked_prefill_size={geometry.chunked_prefill_size}; nearest legal: {nearest}"
        )
