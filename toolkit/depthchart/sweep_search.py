"""Search of a grid that is too large to run whole: Optuna proposes combinations, results tell it where to look next.

It asks for a batch, all of whose members run at once on any executor, then tells the results in the order of asking. Equal
seeds and batches therefore ask for the same combinations, whatever finishes first: an interrupted search,
repeated, takes what it did from the store and goes on from there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from depthchart.errors import one_of
from depthchart.sweep_task import Config

if TYPE_CHECKING:
    import optuna

__all__ = ["OBJECTIVES", "Search", "Trial", "pick", "search_grid"]

OBJECTIVES: Mapping[str, Literal["maximize", "minimize"]] = {
    "reuse": "maximize",
    "reused_tokens": "maximize",
    "prompt_tokens_per_s": "maximize",
    "lost_tokens": "minimize",
    "wrong_requests": "minimize",
    "ttft_mean_s": "minimize",
    "ttft_p95_s": "minimize",
    "tpot_mean_s": "minimize",
    "memory_bytes": "minimize",
}
"""Columns that a search may have as its aim, and which way is better."""
SHORT = {"ttft": "ttft_mean_s", "tpot": "tpot_mean_s", "memory": "memory_bytes"}
MOST_ASKS = 20
TIMED = ("prompt_tokens_per_s", "ttft_mean_s", "ttft_p95_s", "tpot_mean_s")

Outcome = Mapping[str, Any] | str
"""A row of results, or why the combination is illegal."""


@dataclass(frozen=True)
class Search:
    """A search driven by Optuna (its TPE sampler): ``trials`` combinations, legal and different.

    ``objectives`` are names of ``OBJECTIVES`` ("ttft", "tpot" and "memory" stand for ``ttft_mean_s``,
    ``tpot_mean_s`` and ``memory_bytes``);
    of several, the front of best compromises is looked for. ``batch`` combinations are asked for at once: as many as there
    are workers, or more, keep these busy; another number is another search. Raises ValueError for an unknown
    objective or a number below 1.
    """

    trials: int = 50
    objectives: Sequence[str] = ("reuse",)
    seed: int = 0
    batch: int = 8

    def __post_init__(self) -> None:
        given = (self.objectives,) if isinstance(self.objectives, str) else tuple(self.objectives)
        if not given:
            raise ValueError(f"objectives=[]: a search needs at least one; there are {', '.join(OBJECTIVES)}")
        names = tuple(dict.fromkeys(SHORT.get(name, name) for name in given))
        for name in names:
            one_of("objectives", name, OBJECTIVES)
        object.__setattr__(self, "objectives", names)
        for name in ("trials", "batch"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{name}={number!r}: must be a whole number of at least 1; nearest legal: 1")

    def check(self, axes: Mapping[str, Sequence[Any]], timed: bool) -> None:
        """Raise ValueError where an objective could never have a value, or Optuna is not there."""
        late = [name for name in self.objectives if name in TIMED]
        if late and not timed:
            raise ValueError(f"objectives: {late[0]} is known to timed runs only; set timed=True")
        if "memory_bytes" in self.objectives and None in axes.get("model", [None]):
            raise ValueError("objectives: memory_bytes needs an axis model, whose bytes are to be counted")
        if find_spec("optuna") is None:
            raise ValueError("search: Optuna is not installed: pip install 'depthchart[optuna]'")


class Trial(NamedTuple):
    """One combination that was asked for. ``state``: "ok", "repeated" (asked for before), "illegal" (told to Optuna
    as pruned) or "failed" (told as failed); ``scores``: the objectives' values, in order."""

    config: Config
    state: str
    scores: tuple[float, ...] | None
    reason: str = ""


def search_grid(
    axes: Mapping[str, Sequence[Any]],
    search: Search,
    run: Callable[[list[Config]], Sequence[Outcome]],
    advance: Callable[[int], object] | None = None,
) -> list[Trial]:
    """Ask, run and tell until ``search.trials`` different legal combinations were seen, or all there are.

    Repeats and illegal combinations cost nothing and do not count, up to ``MOST_ASKS`` asks for each trial.

    Args:
        axes: the values of each axis.
        search: what to look for.
        run: the outcomes of some combinations, in order.
        advance: called with the number of new legal combinations after each batch.
    """
    total = math.prod(map(len, axes.values()))
    trials: list[Trial] = []
    numbers: set[int] = set()  # combinations seen, as ``pick`` counts them
    left = search.trials
    rng = random.Random(search.seed)
    with _quiet():
        study = _study(search)
        space = _space(axes)
        while left and len(numbers) < total and len(trials) < MOST_ASKS * search.trials:
            asked = [study.ask(space) for _ in range(min(search.batch, left))]
            configs = [_config(axes, trial.params) for trial in asked]
            before, new = len(numbers), 0
            for trial, config, outcome in zip(asked, configs, run(configs), strict=True):
                number = _number(axes, config)
                told = _tell(study, trial, config, outcome, search.objectives)
                trials.append(told._replace(state="repeated") if number in numbers else told)
                new += number not in numbers and told.state != "illegal"
                numbers.add(number)
            left -= new
            if advance is not None:
                advance(new)
            if len(numbers) == before:  # nothing new: show it what it has not seen
                study.enqueue_trial(_params(axes, _unseen(rng, total, numbers)))
    return trials


def pick(axes: Mapping[str, Sequence[Any]], number: int) -> Config:
    """The combination of that number, the last axis counting fastest, without making all of them."""
    return {name: axes[name][at] for name, at in _places(axes, number).items()}


def _places(axes: Mapping[str, Sequence[Any]], number: int) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for name, values in reversed(list(axes.items())):
        number, chosen[name] = divmod(number, len(values))
    return {name: chosen[name] for name in axes}


def _number(axes: Mapping[str, Sequence[Any]], config: Config) -> int:
    number = 0
    for name, values in axes.items():
        number = number * len(values) + list(values).index(config[name])
    return number


def _unseen(rng: random.Random, total: int, seen: set[int]) -> int:
    while True:
        number = rng.randrange(total)
        if number not in seen:
            return number


# --- Optuna -----------------------------------------------------------------------------------------------


def _study(search: Search) -> optuna.Study:
    import optuna

    sampler = optuna.samplers.TPESampler(
        seed=search.seed, multivariate=True, n_startup_trials=min(10, max(2, search.trials // 3))
    )
    return optuna.create_study(sampler=sampler, directions=[OBJECTIVES[name] for name in search.objectives])


def _space(axes: Mapping[str, Sequence[Any]]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Places in the lists of values: numbers in order, so that what lies between two good ones is likely good; words as
    mere categories. Axes of one value are no question."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, values in axes.items():
        if len(values) > 1:
            space[name] = (
                IntDistribution(0, len(values) - 1)
                if _ordered(values)
                else CategoricalDistribution(range(len(values)))
            )
    return space


def _ordered(values: Sequence[Any]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and list(values) == sorted(values)


def _config(axes: Mapping[str, Sequence[Any]], params: Mapping[str, Any]) -> Config:
    return {name: values[params.get(name, 0)] for name, values in axes.items()}


def _params(axes: Mapping[str, Sequence[Any]], number: int) -> dict[str, int]:
    return {name: at for name, at in _places(axes, number).items() if len(axes[name]) > 1}


def _tell(
    study: optuna.Study, trial: optuna.Trial, config: Config, outcome: Outcome, objectives: Sequence[str]
) -> Trial:
    from optuna.trial import TrialState

    if isinstance(outcome, str):
        study.tell(trial, state=TrialState.PRUNED)
        return Trial(config, "illegal", None, outcome)
    found = [outcome[name] for name in objectives]
    if outcome["status"] != "ok" or None in found:
        study.tell(trial, state=TrialState.FAIL)
        return Trial(
            config, "failed", None, outcome["reason"] or f"{objectives[found.index(None)]} has no value"
        )
    values = tuple(float(value) for value in found)
    study.tell(trial, list(values))
    return Trial(config, "ok", values)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of each study and trial on stderr unless asked not to."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
