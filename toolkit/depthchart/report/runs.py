"""The report of one run, or of several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd

from depthchart import frames
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.compare import MOST_RUNS, compare_chart
from depthchart.charts.hits import hit_chart
from depthchart.charts.requests import reuse_chart
from depthchart.charts.timeline import schedule_chart
from depthchart.display import geometry_html, geometry_text
from depthchart.events import Violation
from depthchart.moments import headline, moment_chart, moment_words
from depthchart.report.blocks import Frame
from depthchart.report.page import Page, frame_rows
from depthchart.report.repeat import repeat_lines
from depthchart.rewind import Moment, Rewind
from depthchart.run import Run

__all__ = ["report_runs", "run_facts", "run_page"]

FILM_FRAMES = 40
FILM_NODES = 80  # nodes a picture of the film shows at most
MOST_ROWS = 2_000


def report_runs(
    runs: Mapping[str, Run],
    path: str | Path,
    *,
    title: str | None = None,
    format: str | None = None,
    data: str | Path | None = None,
    data_format: str = "csv",
    advance: Callable[[int, int], object] | None = None,
) -> Path:
    """Write the report of runs (by the label that each is to have) and return its path; see ``Page.write``."""
    page = run_page(runs, title=title)
    return page.write(path, format=format, data=data, data_format=data_format, advance=advance)


def run_page(runs: Mapping[str, Run], *, title: str | None = None) -> Page:
    """The report as a page, to be added to or written. Raises ValueError where there is no run."""
    if not runs:
        raise ValueError("runs: is empty; a report needs at least one run")
    page = Page(title or _title(runs), _lead(runs))
    page.section("Summary")
    page.table(_summary(runs), range(1, 9), "Times are simulated seconds.")
    if len(runs) > 1:
        _comparison(page, runs)
    for label, run in runs.items():
        _run(page, label if len(runs) > 1 else "", run)
    _repeat(page, runs)
    return page


def _title(runs: Mapping[str, Run]) -> str:
    traces = list(dict.fromkeys(str(run.settings["trace"]) for run in runs.values()))
    if len(runs) > 1:
        return f"{len(runs)} runs of {', '.join(traces)}"
    (run,) = runs.values()
    return f"{traces[0]} under {run.settings['rule']}"


def _lead(runs: Mapping[str, Run]) -> str:
    sources = list(dict.fromkeys(run.source for run in runs.values()))
    return (
        f"Source of the requests: {'; '.join(sources)}. A hybrid model can go on from a cached prefix only where the radix "
        "tree has a node and the node has a recurrent state of exactly that depth. H is what the KV of a prompt's prefix "
        "alone would have given, C what was reused because a state was there; lost = H − C."
    )


def _summary(runs: Mapping[str, Run]) -> list[tuple[object, ...]]:
    head = ("run", "requests", "finished", "prompt tokens", "reused (C)", "lost (H − C)", "reuse", "retractions",
            "mean TTFT (s)", "ended")  # fmt: skip
    return [head, *(_summary_row(label, run) for label, run in runs.items())]


def _summary_row(label: str, run: Run) -> tuple[object, ...]:
    s = run.summary()
    broken = s["violations"] + len(run.violations)
    end = f"complete, {_broken_count(broken)}" if broken else "complete, every invariant held"
    if run.fault is not None:
        end = f"stopped at {run.fault.time_s:,.2f} s: {run.fault.kind}"
    whole = [
        f"{s[name]:,}" for name in ("requests", "finished", "prompt_tokens", "reused_tokens", "lost_tokens")
    ]
    ttft = "–" if s["ttft_mean_s"] is None else f"{s['ttft_mean_s']:.2f}"
    return (label, *whole, f"{s['reuse']:.1%}", s["retractions"], ttft, end)


def _comparison(page: Page, runs: Mapping[str, Run]) -> None:
    page.section("Side by side")
    shown = dict(list(runs.items())[:MOST_RUNS])
    requests = {label: run.requests for label, run in shown.items()}
    stopped = {label: run.fault.time_s for label, run in shown.items() if run.fault}
    left = f" The first {MOST_RUNS} of {len(runs)} runs." if len(shown) < len(runs) else ""
    columns = ["admitted_s", "reused_tokens", "lost_tokens"]
    data = pd.concat([frame[columns].assign(run=label) for label, frame in requests.items()])
    page.figure(
        compare_chart(requests, stopped, theme="light"),
        f"Tokens reused, and tokens found in the KV but thrown away, as the trace goes on.{left}",
        {"reuse": data},
    )


def _run(page: Page, label: str, run: Run) -> None:
    """One run: what went wrong, its schedule, reuse, checkpoints, and the tree through time."""
    of = f": {label}" if label else ""
    requests, steps = run.requests, run.steps
    if run.fault is not None or _broken(run):
        page.section(f"What broke{of}")
        _faults(page, run)
    page.section(f"Schedule and reuse{of}")
    page.figure(
        schedule_chart(steps, theme="light"),
        "What each step did, and how full the pools were.",
        {"steps": steps},
    )
    page.figure(
        reuse_chart(requests, theme="light"), "What became of the prompts' tokens.", {"requests": requests}
    )
    hits = ["request", "kv_hit_tokens", "reused_tokens", "lost_tokens"]
    hist = hit_chart(requests, theme="light")
    page.figure(hist, "How many requests found how much in the cache.", {"hits": requests[hits]})
    page.section(f"The tree through time{of}")
    _film(page, run)
    page.section(f"Checkpoints{of}")
    _checkpoints(page, run)
    page.section(f"Requests{of}")
    page.table(
        frame_rows(requests.head(MOST_ROWS), 2),
        [
            at
            for at, name in enumerate(requests.columns)
            if name.endswith(("_s", "_tokens", "steps", "retractions"))
        ],
        f"Times in seconds; {_first(len(requests))}. Click a heading to sort.",
    )


def _broken(run: Run) -> list[str]:
    return [*(event.message for event in run.log.of(Violation)), *run.violations]


def _faults(page: Page, run: Run) -> None:
    if run.fault is not None:
        page.prose(
            f"Strict mode stopped in step {run.fault.step:,}, after {run.fault.time_s:,.2f} simulated seconds, at request "
            f"{run.fault.request or 'none'}: {run.fault.kind}: {run.fault.message}"
        )
        return
    broken = _broken(run)
    if broken:
        page.prose(f"{_broken_count(len(broken))}; the first: {broken[0]}")
        wrong = frames.wrong_reuse(run.log)
        if len(wrong):
            page.prose(
                f"{len(wrong):,} matches took over a state of other tokens than their prefix: wrong text, no error."
            )
            page.table(frame_rows(wrong.head(MOST_ROWS), 2), range(1, 5))


def _film(page: Page, run: Run) -> None:
    rewind = Rewind(run.log)
    chosen = _chosen(rewind)
    shown = [_film_frame(rewind, moment, run) for moment in chosen]
    at = next((i for i, m in enumerate(chosen) if _is_broken(rewind, m)), len(chosen) - 1)
    page.film(
        shown,
        "The radix tree as it grows and is evicted. What has just changed is framed.",
        {"nodes": _film_nodes(rewind, chosen), "checkpoints": run.checkpoints},
        start=at,
    )
    final = run.nodes()
    page.figure(
        checkpoint_chart(final, None, run.geometry, title="The tree when the run ended", theme="light"),
        "The radix tree when the run ended.",
        {"nodes": final},
    )


def _chosen(rewind: Rewind) -> list[Moment]:
    """Evenly over the moments in which the tree changed, and the first in which an invariant broke."""
    moments = rewind.moments()[1:]
    if not moments:
        return []
    count = min(FILM_FRAMES, len(moments))
    picked = {round(i * (len(moments) - 1) / max(1, count - 1)) for i in range(count)}
    broken = next((i for i, moment in enumerate(moments) if _is_broken(rewind, moment)), None)
    return [moments[i] for i in sorted(picked | ({broken} if broken is not None else set()))]


def _is_broken(rewind: Rewind, moment: Moment) -> bool:
    return any(isinstance(e.event, Violation) for e in rewind.entries[moment.first : moment.count])


def _film_frame(rewind: Rewind, moment: Moment, run: Run) -> Frame:
    draw = partial(moment_chart, rewind, moment, run.geometry, max_nodes=FILM_NODES)
    return Frame(draw, headline(rewind, moment), moment_words(rewind, moment, most=5))


def _film_nodes(rewind: Rewind, chosen: list[Moment]) -> pd.DataFrame:
    parts = [
        frames.nodes(rewind.at(m.count)).assign(step=m.step, time_s=m.time_s, events=m.count) for m in chosen
    ]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts) if parts else frames.nodes(rewind.at(0))


def _checkpoints(page: Page, run: Run) -> None:
    table = run.checkpoints
    counts = table.groupby(["kind", "outcome"]).size().reset_index(name="checkpoints")
    page.table(frame_rows(counts), (2,), "What became of the checkpoints.")
    odd = table[table["outcome"].ne("donated")]
    if len(odd):
        columns = [
            "request",
            "step",
            "kind",
            "prefix_tokens",
            "end_tokens",
            "depth_tokens",
            "outcome",
            "reason",
        ]
        page.table(
            frame_rows(odd[columns].head(MOST_ROWS)), (1, 3, 4, 5),
            f"Decisions that left no usable checkpoint; {_first(len(odd))}.",
        )  # fmt: skip


def _repeat(page: Page, runs: Mapping[str, Run]) -> None:
    page.section("To repeat it", "The same settings and the same trace give the same events.")
    for label, run in runs.items():
        page.listing(repeat_lines(run), label if len(runs) > 1 else "")
    for geometry in dict.fromkeys(run.geometry for run in runs.values()):
        page.html(geometry_html(geometry), geometry_text(geometry).splitlines()[0])
    for label, run in runs.items():
        page.section(f"Provenance{f': {label}' if len(runs) > 1 else ''}")
        page.table([("what", "value"), *run_facts(run).items()])


def run_facts(run: Run) -> dict[str, str]:
    """Where a run's numbers come from: its settings, its trace, its time model, versions and machine."""
    return {
        "geometry": ", ".join(f"{name}={value}" for name, value in asdict(run.geometry).items()),
        "settings": ", ".join(f"{name}={value}" for name, value in run.settings.items()),
        "trace": _read(run),
        "source": run.source,
        "notes on the trace": "; ".join(run.notes) or "none",
        "time": run.assumptions,
        **run.provenance,
    }


def _read(run: Run) -> str:
    given = ", ".join(f"{name} {value}" for name, value in run.loaded.items())
    return f"{run.settings['trace']} ({given or 'made in Python'})"


def _broken_count(count: int) -> str:
    return f"{count:,} broken invariant{'' if count == 1 else 's'}"


def _first(count: int) -> str:
    return f"the first {MOST_ROWS:,} of {count:,}" if count > MOST_ROWS else f"all {count:,}"
