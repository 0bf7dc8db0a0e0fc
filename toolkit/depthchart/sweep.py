"""Many configurations of one trace: a grid or a random sample of it, on any executor, resumable.

Each result is a file of its own, named by a key of the configuration, the trace and the version of its format, and
whole or absent: an interrupted sweep goes on where it stopped, and a repeated one reads what is there.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart import __version__
from depthchart.columns import SWEEP
from depthchart.files import whole_file, write_text
from depthchart.provenance import provenance
from depthchart.sweep_task import AXES, Config, Job, check, run_job
from depthchart.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AXES", "Inline", "Sweep", "sweep"]

FORMAT = 1  # part of every key: raise it when a result's meaning changes


@dataclass(frozen=True)
class Sweep:
    """``frame``: one row per configuration, its settings and then ``columns.SWEEP``; ``skipped``: illegal
    combinations with their ``reason``; ``computed`` were run now, the others read from ``folder``."""

    frame: pd.DataFrame
    skipped: pd.DataFrame
    computed: int
    folder: Path | None
    provenance: Mapping[str, str]

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
    seed: int = 0,
    timed: bool = False,
    progress: bool = True,
    **grid: Any,
) -> Sweep:
    """Run every combination of the ``grid`` axes (a value, or a sequence of values; ``AXES`` lists them).

    Args:
        trace: the requests.
        out: folder of the results; None keeps them in memory only.
        executor: any ``concurrent.futures`` executor, such as ``dask.distributed.Client(...).get_executor()``; by
            default a pool of ``workers`` processes (all cores), closed at the end.
        workers: processes of the default pool; 1 runs in this process.
        sample: so many combinations drawn at random (``seed``) in place of all.
        seed: of the sample.
        timed: through scheduler and time model (TTFT, throughput) in place of one request at a time (reuse alone, quick).
        progress: a tqdm bar.
        grid: ``page_size=[16, 64], preset=["sglang", "depthchart"], kv_tokens=[...], state_slots=[...]``, ...

    Raises ValueError for an unknown axis or one without values. Illegal combinations are listed in ``skipped``;
    what fails while running has ``status`` "failed" and a reason. On Ctrl-C what is finished stays on disk.
    """
    configs = _combinations(grid, sample, seed)
    digest = _digest(trace, timed)
    legal, skipped = _sorted_out(configs)
    folder = None if out is None else Path(out)
    keys = {_key(config, digest): config for config in legal}
    rows = _known(keys, folder)
    jobs = [Job(config, key, timed) for key, config in keys.items() if key not in rows]
    computed = len(jobs)
    own = None
    if executor is None:
        own = executor = Inline() if workers == 1 or len(jobs) <= 1 else ProcessPoolExecutor(workers)
    try:
        for key, row in _run(jobs, trace, digest, executor, workers, progress):
            rows[key] = row
            if folder is not None:
                write_text(
                    _place(folder, key),
                    json.dumps({"config": keys[key], "result": row, "provenance": provenance()}),
                )
    finally:
        if own is not None:
            own.shutdown(wait=False, cancel_futures=True)
    made = Sweep(_frame(keys, rows), _skipped_frame(skipped), computed, folder, provenance())
    if folder is not None:
        _write_tables(made, trace, grid, folder, timed)
    return made


def _combinations(grid: Mapping[str, Any], sample: int | None, seed: int) -> list[Config]:
    axes: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if name not in AXES:
            from difflib import get_close_matches

            near = get_close_matches(name, AXES, n=1)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise ValueError(f"{name}: is no axis of a sweep{hint}; there are {', '.join(AXES)}")
        several = isinstance(values, Sequence) and not isinstance(values, str)
        axes[name] = list(values) if several or isinstance(values, range) else [values]
        if not axes[name]:
            raise ValueError(f"{name}=[]: an axis needs at least one value")
    total = 1
    for values in axes.values():
        total *= len(values)
    if sample is None or sample >= total:
        return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]
    if sample < 1:
        raise ValueError(f"sample={sample}: must be at least 1; nearest legal: 1")
    return [_pick(axes, number) for number in sorted(random.Random(seed).sample(range(total), sample))]


def _pick(axes: Mapping[str, list[Any]], number: int) -> Config:
    """The combination of that number, without making all of them."""
    chosen: Config = {}
    for name, values in reversed(list(axes.items())):
        number, at = divmod(number, len(values))
        chosen[name] = values[at]
    return {name: chosen[name] for name in axes}


def _sorted_out(configs: list[Config]) -> tuple[list[Config], list[tuple[Config, str]]]:
    legal, skipped = [], []
    for config in configs:
        reason = check(config)
        if reason is None:
            legal.append(config)
        else:
            skipped.append((config, reason))
    return legal, skipped


def _run(
    jobs: list[Job], trace: Trace, digest: str, executor: Executor, workers: int | None, progress: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keep a few tasks more than workers in flight, so that a stop loses little and results come out at once."""
    from tqdm import tqdm

    blob = pickle.dumps(trace)
    task = partial(run_job, blob=blob, digest=digest)
    # tasks of one tree page in a row, so that a worker interns the trace's prefixes once a page
    queue = sorted(
        jobs, key=lambda job: job.config["page_size"] * job.config.get("dcp_size", 1), reverse=True
    )
    depth = 1 if isinstance(executor, Inline) else 2 * (workers or os.cpu_count() or 1)
    waiting: dict[Future[Any], Job] = {}
    with tqdm(total=len(jobs), unit="run", disable=not progress) as bar:
        try:
            while queue or waiting:
                while queue and len(waiting) < depth:
                    job = queue.pop()
                    waiting[executor.submit(task, job)] = job
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    job = waiting.pop(future)
                    bar.update(1)
                    yield job.key, future.result()
        finally:
            for future in waiting:
                future.cancel()


# --- the store --------------------------------------------------------------------------------------------


def _digest(trace: Trace, timed: bool) -> str:
    parts = [
        (r.prompt, r.output, r.extra_key, r.priority, *((r.arrival_s, r.after, r.think_s) if timed else ()))
        for r in trace
    ]
    return sha256(repr((FORMAT, __version__, timed, parts)).encode()).hexdigest()


def _key(config: Config, digest: str) -> str:
    return sha256((json.dumps(config, sort_keys=True) + digest).encode()).hexdigest()[:20]


def _place(folder: Path, key: str) -> Path:
    return folder / "results" / f"{key}.json"


def _known(keys: Mapping[str, Config], folder: Path | None) -> dict[str, dict[str, Any]]:
    if folder is None:
        return {}
    found = {key: _place(folder, key) for key in keys}
    return {key: json.loads(path.read_text())["result"] for key, path in found.items() if path.exists()}


def _frame(keys: Mapping[str, Config], rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    settings = list(dict.fromkeys(name for config in keys.values() for name in config))
    table = [{**config, **rows[key]} for key, config in keys.items()]
    frame = pd.DataFrame(table, columns=[*settings, *SWEEP])
    whole = [
        name
        for name in SWEEP
        if name.endswith(("_tokens", "_requests")) or name in ("violations", "memory_bytes")
    ]
    return frame.astype(
        {**dict.fromkeys(whole, "Int64"), **{name: "float64" for name in SWEEP if name.endswith("_s")}}
    )


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
    for name, frame in (("results", made.frame), ("skipped", made.skipped)):
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
        "grid": {name: list(v) if isinstance(v, (list, tuple, range)) else v for name, v in grid.items()},
        "timed": timed,
        "provenance": dict(made.provenance),
    }
    write_text(folder / "sweep.json", json.dumps(facts, indent=2) + "\n")
