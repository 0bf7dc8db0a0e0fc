"""``depthchart demo``: the seed bug and an agentic trace, in one report."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

from depthchart import frames
from depthchart.cases.replay import Replay
from depthchart.cases.script import Script, find_script
from depthchart.cases.story import tell
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.compare import compare_chart
from depthchart.charts.requests import reuse_chart
from depthchart.charts.timeline import schedule_chart
from depthchart.commands.flags import add_verb
from depthchart.depth import RULES
from depthchart.display import geometry_html
from depthchart.events import Violation
from depthchart.geometry import Geometry
from depthchart.redraw import redraw
from depthchart.report import Page, frame_rows
from depthchart.report.repeat import repeat_lines
from depthchart.report.runs import run_facts
from depthchart.run import Run
from depthchart.simulate import simulate
from depthchart.traces import Trace, load_trace

NAME = "demo"
HELP = "replay the seed bug, simulate a trace under three settings, write an HTML report"

SEED_SCRIPT = "sglang-39115-absolute"
WIDE = Geometry(64, dcp_size=8, chunk_width=64)  # as Kimi K3 is served: page 64, DCP 8
NARROW = Geometry(64, chunk_width=64)
KV_TOKENS, STATE_SLOTS = 65_536, 48  # tight: five requests' worth of context, so that much is evicted


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP)
    parser.add_argument(
        "--out", default="out/demo.html", metavar="FILE", help="where to write it (default: out/demo.html)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="simulate only the trace's first N requests")


def run(args: argparse.Namespace) -> int:
    """Run everything, write the report, print where it lies; 1 where the sound rule broke an invariant."""
    started = time.monotonic()
    trace = load_trace("agentic", limit=args.limit)
    runs = _simulate(trace)
    page = _page(trace, runs)
    path = page.write(args.out).resolve()
    _print(runs)
    print(f"\nreport: {path}  ({time.monotonic() - started:.0f} s)")
    sound = (runs.absolute, runs.narrow)
    return int(any(run.fault or run.violations for run in sound))


@dataclass(frozen=True)
class _Runs:
    """``strict`` stopped at its first broken invariant, ``silent`` ran on past it."""

    absolute: Run
    strict: Run
    silent: Run
    narrow: Run

    def labelled(self) -> dict[str, Run]:
        return {
            "absolute, DCP 8": self.absolute,
            "prefix_relative, DCP 8": self.strict,
            "prefix_relative, DCP 8, checks off": self.silent,
            "absolute, DCP 1": self.narrow,
        }


def _simulate(trace: Trace) -> _Runs:
    def go(label: str, geometry: Geometry, rule: str, strict: bool = True) -> Run:
        print(f"simulating {len(trace)} requests: {label}", flush=True)
        return simulate(
            trace,
            geometry,
            rule,
            strict=strict,
            kv_tokens=KV_TOKENS,
            state_slots=STATE_SLOTS,
            progress=sys.stderr.isatty(),
        )

    return _Runs(
        go("rule absolute, page 64 x DCP 8", WIDE, "absolute"),
        go("rule prefix_relative, page 64 x DCP 8", WIDE, "prefix_relative"),
        go("rule prefix_relative, page 64 x DCP 8, checks off", WIDE, "prefix_relative", strict=False),
        go("rule absolute, page 64 without DCP", NARROW, "absolute"),
    )


def _print(runs: _Runs) -> None:
    print()
    for label, run in runs.labelled().items():
        summary = run.summary()
        end = "stopped: " + run.fault.kind if run.fault else f"{summary['violations']} broken invariants"
        print(f"  {label:<36} {summary['finished']:>4} finished, reuse {summary['reuse']:.1%}, {end}")


# --- the page ---------------------------------------------------------------------------------------------


def _page(trace: Trace, runs: _Runs) -> Page:
    page = Page(
        "depthchart: where checkpoints land",
        "A hybrid language model can go on from a cached prefix only where the radix tree has a node and the node has a "
        "recurrent state of exactly that depth. This report replays the bug that this toolkit grew out of, then runs a "
        "trace through the same cache under a sound rule, an unsound one, and another geometry.",
    )
    _seed_bug(page)
    _geometry(page)
    _comparison(page, trace, runs)
    _sound_run(page, runs.absolute)
    _faulty_run(page, runs)
    page.section("To repeat it").listing(["depthchart demo", "", "# or each run by itself:"])
    for label, run in runs.labelled().items():
        page.listing(repeat_lines(run), label)
    for label, run in runs.labelled().items():
        page.section(f"Provenance: {label}")
        page.table([("what", "value"), *run_facts(run).items()])
    return page


def _seed_bug(page: Page) -> None:
    page.section(
        "The seed bug in five steps",
        "With decode context parallelism 8 the radix tree's page is 64 × 8 = 512 tokens wide. A prefill is cut at token 64, "
        "the next extend runs from there to token 605. A rule that measures from the prefix puts the checkpoint at "
        "64 + 512 = 576, where no node can end; measured from the start of the text it lies at 512.",
    )
    script = find_script(SEED_SCRIPT)
    wrong = script.under(rule="prefix_relative", strict=False)
    page.figure(
        _script_chart(wrong),
        "Under prefix_relative with the check off, the node at 512 holds a state that has consumed 576 tokens: "
        "the next request that matches it runs 64 tokens through the recurrence twice.",
    )
    page.figure(
        _script_chart(script),
        "Under absolute, the state that has consumed 512 tokens lies on the node at 512.",
    )
    page.listing(
        tell(script.under(rule="prefix_relative"))[0], "The steps under prefix_relative, with the check on"
    )
    page.listing(tell(wrong)[0], "The steps under prefix_relative, with the check off")
    page.listing(tell(script)[0], "The steps under absolute")


def _script_chart(script: Script) -> Any:
    replayed = Replay(script)
    replayed.run()
    nodes, checkpoints = frames.nodes(redraw(replayed.log)), frames.checkpoints(replayed.log)
    computed = float(checkpoints["end_tokens"].max())  # one axis for both rules
    title = f"{script.source}: rule {script.rule}"
    return checkpoint_chart(nodes, checkpoints, script.geometry, title=title, window=(0.0, computed * 1.1))


def _geometry(page: Page) -> None:
    page.section(
        "The geometry", "The grids that decide where a checkpoint can be taken and which node can hold it."
    )
    page.html(geometry_html(WIDE))
    page.table(
        [("rule", "checkpoint at", "donates", "why"), *_decisions(64, 604)], (1,),
        "What every rule answers for the extend [64, 604) on this geometry.",
    )  # fmt: skip
    page.table(
        [("weight", "advice"), *((a.severity, a.text) for a in WIDE.advice("absolute"))],
        (),
        "What this geometry costs.",
    )


def _decisions(prefix: int, end: int) -> list[tuple[str, str, str, str]]:
    answers = [(name, rule(WIDE, prefix, end)) for name, rule in RULES.items()]
    return [
        (
            name,
            "–" if answer.depth is None else str(answer.depth),
            "yes" if answer.donate else "no",
            answer.reason,
        )
        for name, answer in answers
    ]


def _comparison(page: Page, trace: Trace, runs: _Runs) -> None:
    page.section(
        f"A trace of {len(trace)} agentic requests",
        f"{trace.source}. {trace.prompt_tokens:,} prompt tokens; pools of {KV_TOKENS:,} KV tokens and "
        f"{STATE_SLOTS} state slots, which is tight. H is what the KV of a prompt's prefix alone would have given, C what "
        "could be reused because a state was there; lost = H − C.",
    )
    head = (
        "setting",
        "requests finished",
        "prompt tokens",
        "reused (C)",
        "lost (H − C)",
        "reuse",
        "retractions",
        "mean TTFT (s)",
        "ended",
    )
    rows = [_summary_row(label, run) for label, run in runs.labelled().items()]
    page.table(
        [head, *rows],
        range(1, 8),
        "Times are simulated seconds. A run that stopped counts only what it had admitted until then.",
    )
    lines = runs.labelled()
    stopped = {label: run.fault.time_s for label, run in lines.items() if run.fault}
    page.figure(
        compare_chart({label: run.requests for label, run in lines.items()}, stopped),
        "Tokens reused, and tokens found in the KV but thrown away because no state was there, as the trace goes on. "
        "The narrow tree page matches more KV, so it can also lose more.",
    )


def _summary_row(label: str, run: Run) -> tuple[object, ...]:
    s = run.summary()
    ttft = "–" if s["ttft_mean_s"] is None else f"{s['ttft_mean_s']:.2f}"
    end = f"at its first broken invariant, {run.fault.time_s:.1f} s" if run.fault else "complete"
    if not run.fault and s["violations"]:
        end = f"complete, with {s['violations']} broken invariants"
    return (
        label,
        f"{s['finished']:,}",
        f"{s['prompt_tokens']:,}",
        f"{s['reused_tokens']:,}",
        f"{s['lost_tokens']:,}",
        f"{s['reuse']:.1%}",
        s["retractions"],
        ttft,
        end,
    )


def _sound_run(page: Page, run: Run) -> None:
    page.section(
        "Under the absolute rule", "Every state lies on a node of its own depth, to the end of the trace."
    )
    page.figure(schedule_chart(run.steps), "What each step did, and how full the pools were.")
    page.figure(reuse_chart(run.requests), "What became of the prompts' tokens.")
    page.figure(
        _tree_chart(run, None, "The tree at the end, rule absolute"),
        "The radix tree when the last request has finished.",
    )
    counts = run.checkpoints.groupby(["kind", "outcome"]).size().reset_index(name="checkpoints")
    page.table(frame_rows(counts), (2,), "What became of the checkpoints.")


def _faulty_run(page: Page, runs: _Runs) -> None:
    page.section("Under the prefix-relative rule")
    fault = runs.strict.fault
    if fault is None:
        page.prose("No invariant broke in this part of the trace.")
        return
    page.prose(
        f"Strict mode stops in step {fault.step}, after {fault.time_s:.1f} simulated seconds: {fault.message}."
    )
    first = next(entry for entry in runs.silent.log if isinstance(entry.event, Violation))
    page.figure(
        _tree_chart(runs.silent, first.time_s, f"The tree at {first.time_s:.1f} s, checks off"),
        "The same moment with the checks off: the state is filed, on a node of another depth.",
    )
    wrong = frames.wrong_reuse(runs.silent.log)
    page.prose(
        f"With the checks off the run goes on and looks healthy: {runs.silent.summary()['finished']} requests finish. "
        f"{len(wrong)} of them took over a state of other tokens than their prefix, so their text is wrong, without "
        "any error."
    )
    if len(wrong):
        page.table(frame_rows(wrong), range(1, 5), "Requests that silently went on from a wrong state.")


def _tree_chart(run: Run, at: float | None, title: str) -> Any:
    nodes = run.nodes(at)
    checkpoints = run.checkpoints
    here = checkpoints[checkpoints["request"].isin(nodes["request"])]
    if at is not None:
        here = here[here["time_s"] <= at]
    return checkpoint_chart(nodes, here, run.geometry, title=title)
