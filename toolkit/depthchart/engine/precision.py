"""In which form may a checkpoint be kept? Divergence after n reuses, for float32, bfloat16 and int8 checkpoints.

A conversation grows turn by turn; each turn resumes from the checkpoint that the last one left, which itself was
computed from a stored checkpoint: rounding adds up along the chain, in states and in the KV computed from them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

from depthchart.depth import Rule
from depthchart.engine.model import HybridModel
from depthchart.engine.pools import CHECKPOINT_DTYPES
from depthchart.engine.serving import Engine, cold_logits
from depthchart.events import Matched
from depthchart.geometry import Geometry

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Reuse", "precision_sweep", "reuse_chain"]


class Reuse(NamedTuple):
    """One turn of a chain (columns.PRECISION): how far its logits are from those computed without reuse, over all
    its computed positions; ``same_choice``: the share of positions with the same greedy token."""

    checkpoint_dtype: str
    reuses: int
    reused_tokens: int
    computed_tokens: int
    largest_difference: float
    mean_difference: float
    same_choice: float
    checkpoint_bytes: int


def precision_sweep(
    model: HybridModel,
    geometry: Geometry,
    rule: str | Rule = "page_exact",
    *,
    dtypes: Iterable[str] = CHECKPOINT_DTYPES,
    turns: int = 9,
    turn_tokens: int = 48,
    seeds: Iterable[int] = range(3),
) -> pd.DataFrame:
    """A row for each dtype, seed and turn (columns.PRECISION and ``seed``)."""
    import pandas as pd

    chances = list(seeds)
    rows = [
        (*row, seed)
        for dtype in dtypes
        for seed in chances
        for row in reuse_chain(model, geometry, rule, dtype, turns=turns, turn_tokens=turn_tokens, seed=seed)
    ]
    return pd.DataFrame(rows, columns=[*Reuse._fields, "seed"])


def reuse_chain(
    model: HybridModel,
    geometry: Geometry,
    rule: str | Rule,
    checkpoint_dtype: str,
    *,
    turns: int = 9,
    turn_tokens: int = 48,
    seed: int = 0,
) -> list[Reuse]:
    """The turns of one growing text; turn n (from 0) has reused checkpoints n times. All turns read the same tokens
    whatever the dtype, so that differences come from the checkpoints alone.

    Raises ValueError where a turn is too short to leave a checkpoint at every turn.
    """
    if turn_tokens < geometry.checkpoint_grid:
        raise ValueError(
            f"turn_tokens={turn_tokens}: must be at least the checkpoint grid; nearest legal: {geometry.checkpoint_grid}"
        )
    dice = random.Random(seed)
    whole = [dice.randrange(model.config.vocab) for _ in range(turns * turn_tokens)]
    right = cold_logits(model, whole)
    pages = -(-len(whole) // geometry.tree_page) + 2
    engine = Engine(
        model,
        geometry,
        rule,
        kv_tokens=pages * geometry.tree_page,
        state_slots=turns * 4 + 8,
        checkpoint_dtype=checkpoint_dtype,
        record="all",
    )
    found = []
    for turn in range(turns):
        name = f"turn{turn}"
        engine.generate(name, whole[: (turn + 1) * turn_tokens], 0)
        found.append(_compare(engine, name, turn, right, checkpoint_dtype))
    return found


def _compare(engine: Engine, name: str, turn: int, right: torch.Tensor, dtype: str) -> Reuse:
    rows = engine.logits.pop(name)
    at = sorted(rows)
    got, want = torch.stack([rows[i] for i in at]), right[at]
    difference = (got - want).abs()
    return Reuse(
        checkpoint_dtype=dtype,
        reuses=turn,
        reused_tokens=next(m.tokens for m in engine.log.of(Matched) if m.request == name),
        computed_tokens=len(at),
        largest_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        same_choice=float((got.argmax(1) == want.argmax(1)).float().mean()),
        checkpoint_bytes=engine.executor.states.checkpoint_bytes,
    )
