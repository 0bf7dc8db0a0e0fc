"""Many configurations of one trace: a grid, a random sample of it or a search, on any executor, resumable.

Each result is kept under a key of its configuration (``sweep_store``): an interrupted sweep goes on where it stopped, and
a repeated one reads what is there.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart.columns import SWEEP
from depthchart.files import whole_file, write_text
from depthchart.provenance import provenance
from depthchart.sweep_search import OBJECTIVES, Search, Trial, pick, search_grid
from depthchart.sweep_store import WHOLE, Store
from depthchart.sweep_task import AXES, Config, Job, assumptions, check, run_job
from depthchart.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AXES", "Inline", "Search", "Sweep", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """``frame``: one row per configuration, its settings and then ``columns.SWEEP``; ``skipped``: illegal
    combinations with their ``reason``; ``computed`` were run now, the others read from ``folder``. Of a search, ``trials``
    has one row for each combination asked for, in order, and ``objectives`` is what was looked for. ``assumptions``
    are those that the times of timed runs rest on, each once."""

    frame: pd.DataFrame
    skipped: pd.DataFrame
    computed: int
    folder: Path | None
    provenance: Mapping[str, str]
    trials: pd.DataFrame | None = None
    objectives: tuple[str, ...] = ("reuse",)
    assumptions: tuple[str, ...] = ()

    @property
    def best(self) -> pd.DataFrame:
        """The rows that no other row beats in every objective: one objective's best, or the front of several."""
        return _front(self.frame, self.objectives)

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))


class Inline(Executor):
    """Runs each task at once in this process: for debugging, and where a pool costs more than it saves."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def sweep(
    trace: Trace,
    *,
    out: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    sample: int | None = None,
    search: Search | None = None,
    seed: int = 0,
    timed: bool = False,
    progress: bool = True,
    **grid: Any,
) -> Sweep:
    """Run combinations of the ``grid`` axes (a value, or a sequence of values; ``AXES`` lists them).

    Args:
        trace: the requests.
        out: folder of the results; None keeps them in memory only.
        executor: any ``concurrent.futures`` executor, such as ``dask.distributed.Client(...).get_executor()``; by
            default a pool of ``workers`` processes (all cores), closed at the end.
        workers: processes of the default pool; 1 runs in this process.
        sample: so many combinations drawn at random (``seed``) in place of all.
        search: combinations that Optuna proposes, in place of all.
        seed: of the sample.
        timed: through scheduler and time model (TTFT, throughput) in place of one request at a time (reuse alone, quick).
        progress: a tqdm bar.
        grid: ``page_size=[16, 64], preset=["sglang", "depthchart"], kv_tokens=[...], state_slots=[...]``, ...

    Raises ValueError for an unknown axis or one without values, and for an objective that could have no value. Illegal
    combinations are listed in ``skipped``; what fails while running has ``status`` "failed" and a reason. On Ctrl-C
    what is finished stays on disk.
    """
    axes = _axes(grid)
    if search is not None and sample is not None:
        raise ValueError("sample, search: only one of them; a search chooses its combinations itself")
    if search is not None:
        search.check(axes, timed)
    folder = None if out is None else Path(out)
    bench = _Bench(trace, Store(folder, trace, timed), timed, workers)
    configs = [] if search else _combinations(axes, sample, seed)
    total = min(search.trials, prod(map(len, axes.values()))) if search else bench.missing(configs)
    trials: list[Trial] | None = None
    with _pool(executor, workers, total) as pool, _bar(total, progress) as advance:
        if search is None:
            bench.run(configs, pool, advance)
        else:
            trials = search_grid(axes, search, lambda asked: bench.run(asked, pool), advance)
    objectives = tuple(search.objectives) if search else ("reuse",)
    made = Sweep(
        _frame(bench.rows), _skipped_frame(bench.skipped), bench.computed, folder, provenance(),
        None if trials is None else _trials_frame(trials, objectives), objectives,
        tuple(dict.fromkeys(assumptions(config) for config, _ in bench.rows)) if timed else (),
    )  # fmt: skip
    if folder is not None:
        _write_tables(made, trace, grid, folder, timed)
    return made


class _Bench:
    """Runs configurations that are not known yet and remembers all: ``rows`` (configuration, result) in the order of first
    asking, ``skipped`` (configuration, reason), ``computed`` how many were run."""

    def __init__(self, trace: Trace, store: Store, timed: bool, workers: int | None) -> None:
        self.store, self.timed, self.workers = store, timed, workers
        self.task = partial(run_job, blob=pickle.dumps(trace), digest=store.digest)
        self.computed = 0
        self._asked: dict[str, tuple[Config, str | None]] = {}  # by key: why it is illegal, or None

    def missing(self, configs: Sequence[Config]) -> int:
        """How many of them would have to run."""
        return len(self._jobs(configs))

    def run(
        self, configs: Sequence[Config], pool: Executor, advance: Callable[[int], object] | None = None
    ) -> list[Mapping[str, Any] | str]:
        """The result of each, or why it is illegal."""
        jobs = self._jobs(configs)
        by_key = {job.key: job.config for job in jobs}
        for key, row in _run(jobs, self.task, pool, self.workers):
            self.store.put(key, by_key[key], row)
            self.computed += 1
            if advance is not None:
                advance(1)
        keys = [self.store.key(config) for config in configs]
        return [self._asked[key][1] or self.store.rows[key] for key in keys]

    def _jobs(self, configs: Sequence[Config]) -> list[Job]:
        jobs = {}
        for config in configs:
            key = self.store.key(config)
            if key not in self._asked:
                self._asked[key] = config, check(config)
            if self._asked[key][1] is None and self.store.get(key) is None:
                jobs[key] = Job(config, key, self.timed)
        return list(jobs.values())

    @property
    def rows(self) -> list[tuple[Config, Mapping[str, Any]]]:
        return [(c, self.store.rows[key]) for key, (c, reason) in self._asked.items() if reason is None]

    @property
    def skipped(self) -> list[tuple[Config, str]]:
        return [(config, reason) for config, reason in self._asked.values() if reason is not None]


def _axes(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if name not in AXES:
            from difflib import get_close_matches

            near = get_close_matches(name, AXES, n=1)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise ValueError(f"{name}: is no axis of a sweep{hint}; there are {', '.join(AXES)}")
        if hasattr(values, "tolist"):  # an array, or one of its numbers
            values = values.tolist()
        axes[name] = (
            list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        )
        if not axes[name]:
            raise ValueError(f"{name}=[]: an axis needs at least one value")
    return axes


def _combinations(axes: Mapping[str, list[Any]], sample: int | None, seed: int) -> list[Config]:
    total = prod(map(len, axes.values()))
    if sample is None or sample >= total:
        return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]
    if sample < 1:
        raise ValueError(f"sample={sample}: must be at least 1; nearest legal: 1")
    return [pick(axes, number) for number in sorted(random.Random(seed).sample(range(total), sample))]


@contextmanager
def _pool(executor: Executor | None, workers: int | None, jobs: int) -> Iterator[Executor]:
    """The executor as given, or one of our own that is closed at the end."""
    if executor is not None:
        yield executor
        return
    own = Inline() if workers == 1 or jobs <= 1 else ProcessPoolExecutor(workers)
    try:
        yield own
    finally:
        own.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(total=total, unit="run", disable=not progress) as bar:
        yield bar.update


def _run(
    jobs: Sequence[Job], task: Callable[[Job], dict[str, Any]], executor: Executor, workers: int | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keep a few tasks more than workers in flight, so that a stop loses little and results come out at once."""
    # tasks of one tree page in a row, so that a worker interns the trace's prefixes once a page
    queue = sorted(
        jobs, key=lambda job: job.config["page_size"] * job.config.get("dcp_size", 1), reverse=True
    )
    depth = 1 if isinstance(executor, Inline) else 2 * (workers or os.cpu_count() or 1)
    waiting: dict[Future[Any], Job] = {}
    try:
        while queue or waiting:
            while queue and len(waiting) < depth:
                job = queue.pop()
                waiting[executor.submit(task, job)] = job
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future).key, future.result()
    finally:
        for future in waiting:
            future.cancel()


# --- tables -----------------------------------------------------------------------------------------------


def _frame(rows: Sequence[tuple[Config, Mapping[str, Any]]]) -> pd.DataFrame:
    import pandas as pd

    settings = list(dict.fromkeys(name for config, _ in rows for name in config))
    frame = pd.DataFrame([{**config, **row} for config, row in rows], columns=[*settings, *SWEEP])
    return frame.astype(
        {**dict.fromkeys(WHOLE, "Int64"), **{name: "float64" for name in SWEEP if name.endswith("_s")}}
    )


def _front(frame: pd.DataFrame, objectives: Sequence[str]) -> pd.DataFrame:
    good = frame[(frame["status"] == "ok") & frame[list(objectives)].notna().all(axis=1)]
    signs = [1.0 if OBJECTIVES[name] == "maximize" else -1.0 for name in objectives]
    values = good[list(objectives)].to_numpy(dtype=float) * signs
    beaten = [bool(((values >= mine).all(axis=1) & (values > mine).any(axis=1)).any()) for mine in values]
    return good[[not one for one in beaten]].sort_values(objectives[0], ascending=signs[0] < 0, kind="stable")


def _trials_frame(trials: Sequence[Trial], objectives: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    settings = list(dict.fromkeys(name for trial in trials for name in trial.config))
    rows = [
        {
            "trial": number,
            **trial.config,
            "state": trial.state,
            **dict(zip(objectives, trial.scores or (None,) * len(objectives), strict=True)),
            "reason": trial.reason,
        }
        for number, trial in enumerate(trials)
    ]
    return pd.DataFrame(rows, columns=["trial", *settings, "state", *objectives, "reason"])


def _as_table(frame: pd.DataFrame) -> pd.DataFrame:
    """A column of mixed types, such as a cap that is a number or none, goes as words: Parquet knows one type a column."""
    objects = [name for name in frame.columns if frame[name].dtype == object]
    mixed = [name for name in objects if len({type(value) for value in frame[name]}) > 1]
    return frame.assign(**{name: frame[name].map(lambda v: None if v is None else str(v)) for name in mixed})


def _skipped_frame(skipped: list[tuple[Config, str]]) -> pd.DataFrame:
    import pandas as pd

    columns = list(dict.fromkeys(name for config, _ in skipped for name in config))
    return pd.DataFrame(
        [{**config, "reason": reason} for config, reason in skipped], columns=[*columns, "reason"]
    )


def _write_tables(made: Sweep, trace: Trace, grid: Mapping[str, Any], folder: Path, timed: bool) -> None:
    tables = {"results": made.frame, "skipped": made.skipped}
    if made.trials is not None:
        tables["trials"] = made.trials
    for name, frame in tables.items():
        with whole_file(folder / f"{name}.csv") as draft:
            frame.to_csv(draft, index=False)
    if find_spec("pyarrow") is not None:
        with whole_file(folder / "results.parquet") as draft:
            _as_table(made.frame).to_parquet(draft, index=False)
    facts = {
        "trace": {
            "name": trace.name,
            "source": trace.source,
            "loaded": {key: v if isinstance(v, str | int | float) else str(v) for key, v in trace.loaded.items()},
            "requests": len(trace),
            "prompt_tokens": trace.prompt_tokens,
        },
        "grid": {name: values[0] if len(values) == 1 else values for name, values in _axes(grid).items()},
        "timed": timed,
        "assumptions": list(made.assumptions),
        **({} if made.trials is None else {"objectives": list(made.objectives), "trials": len(made.trials)}),
        "provenance": dict(made.provenance),
    }
    write_text(folder / "sweep.json", json.dumps(facts, indent=2) + "\n")
