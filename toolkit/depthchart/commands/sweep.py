"""``depthchart sweep``: many configurations of one trace, resumable."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart.commands.flags import add_verb
from depthchart.display import table_text
from depthchart.errors import one_of
from depthchart.sweep_search import OBJECTIVES
from depthchart.sweep_task import AXES

if TYPE_CHECKING:
    from depthchart.sweep import Sweep

NAME = "sweep"
HELP = "run many configurations of a trace and keep the results; goes on where it was stopped"
_OPTIONS = ("trace", "limit", "sample", "seed", "timed", "workers")
_SEARCH = {"optuna": ("trials", "objectives", "seed", "batch"), "random": ("trials", "seed"), "grid": ()}
_EXAMPLES = """a configuration file:
  trace = "agentic"
  limit = 300
  timed = false
  [grid]
  page_size = [16, 64, 512]
  preset = ["sglang", "vllm-junction", "depthchart"]
  kv_tokens = [65536, 131072]
  state_slots = [24, 48, 96]
  # state_slots = {low = 24, high = 96, step = 8}   the same as a range
  # [search]                                        in place of every combination
  # kind = "optuna"                                 or "random", or "grid"
  # trials = 30
  # objectives = ["reuse", "ttft", "memory"]        ttft wants timed = true, memory a model

examples:
  depthchart sweep grid.toml --out sweep/
  depthchart sweep --grid page_size=64 --grid preset=sglang,depthchart --grid kv_tokens=65536,131072 \\
      --grid state_slots=24,48 --out sweep/
  depthchart sweep grid.toml --search optuna --trials 30 --objectives reuse,memory --out sweep/

writes results.csv (with pyarrow also .parquet), skipped.csv, trials.csv of a search, sweep.json, figures, and one file a
result under results/, from which a stopped sweep goes on
exit code: 0 done, 1 some configuration failed or none is legal, 2 the call is wrong, 130 stopped (what is done is kept)"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="trace, options and a table [grid]")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="AXIS=A,B",
        help=f"values of an axis: {', '.join(AXES)}",
    )
    parser.add_argument("--trace", help="a trace file, or a bundled trace (default: agentic)")
    parser.add_argument("--limit", type=int, metavar="N", help="read only so many requests")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="so many combinations at random in place of all"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the sample or the search (default: 0)")
    parser.add_argument(
        "--search", choices=tuple(_SEARCH), help="how to go through the grid (default: grid, all of it)"
    )
    parser.add_argument(
        "--trials", type=int, metavar="N", help="different combinations of a search (default: 50)"
    )
    parser.add_argument(
        "--objectives",
        metavar="A,B",
        help=f"aims of --search optuna (default: reuse): {', '.join(OBJECTIVES)}",
    )
    parser.add_argument(
        "--timed",
        action=argparse.BooleanOptionalAction,
        help="with scheduler and time model (slower; gives TTFT)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--out", metavar="DIR", help="folder of the results (default: only print)")


def run(args: argparse.Namespace) -> int:
    """Sweep and print; 1 where a configuration failed, or none is legal."""
    from depthchart.sweep import sweep
    from depthchart.traces import load_trace

    options, grid = _read(args)
    try:
        trace = load_trace(options.pop("trace", "agentic"), limit=options.pop("limit", None))
    except OSError as fault:
        raise ValueError(str(fault)) from fault
    try:
        made = sweep(trace, out=args.out, progress=sys.stderr.isatty(), **options, **grid)
    except KeyboardInterrupt:
        if args.out:
            done = sum(path.suffix in (".json", ".parquet") for path in Path(args.out).glob("results/[!.]*"))
            print(
                f"depthchart: stopped; {done} results are kept in {args.out}: the same call goes on from there",
                file=sys.stderr,
            )
        raise
    _show(made)
    if args.out:
        _draw(made, list(grid), Path(args.out), f"{trace.name} ({trace.source})")
        print(f"wrote {args.out}", file=sys.stderr)
    return int(made.frame.empty or (made.frame["status"] != "ok").any())


def _read(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and grid: those of the file, with what was given beside it on top."""
    facts: dict[str, Any] = {}
    if args.config:
        try:
            facts = tomllib.loads(Path(args.config).read_text())
        except OSError as fault:
            raise ValueError(f"{args.config}: {fault.strerror or fault}") from fault
        except tomllib.TOMLDecodeError as fault:
            raise ValueError(f"{args.config}: {fault}") from fault
    grid = {name: _range(name, values) for name, values in dict(facts.pop("grid", {})).items()}
    search = dict(facts.pop("search", {}))
    unknown = [name for name in facts if name not in _OPTIONS]
    if unknown:
        raise ValueError(
            f"{args.config}: {unknown[0]} is no option; there are {', '.join(_OPTIONS)} and the tables [grid], [search]"
        )
    for word in args.grid:
        name, sign, values = word.partition("=")
        if not sign or not values:
            raise ValueError(f"--grid {word!r}: must be AXIS=VALUE,VALUE")
        grid[name] = [_value(value) for value in values.split(",")]
    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if not grid:
        raise ValueError("grid: is empty; give a table [grid] in the file, or --grid AXIS=A,B")
    return _searching({**facts, **given}, search, args), grid


def _searching(options: dict[str, Any], search: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The options with what [search], or the flags over it, makes of them: ``search`` or ``sample``."""
    from depthchart.sweep import Search

    flags = {"kind": args.search, "trials": args.trials, "seed": args.seed}
    flags["objectives"] = args.objectives and args.objectives.split(",")
    if not search and args.search is None:
        wrong = next((name for name in ("trials", "objectives") if flags[name] is not None), None)
        if wrong:
            raise ValueError(f"--{wrong}: belongs to a search; add --search optuna")
        return options
    search |= {name: value for name, value in flags.items() if value is not None}
    kind = one_of("search kind", search.pop("kind", "optuna"), _SEARCH)
    for name in search:
        one_of(f"an option of a {kind} search", name, _SEARCH[kind])
    if kind == "optuna":
        return options | {"search": Search(**{"seed": options.get("seed", 0), **search})}
    if kind == "random":
        return options | {
            "sample": search.get("trials", 50),
            "seed": search.get("seed", options.get("seed", 0)),
        }
    return options


def _range(name: str, values: Any) -> Any:
    """{low, high, step} as the whole numbers of a range, both ends included; other values as they are."""
    if not isinstance(values, dict):
        return values
    for word in values:
        one_of(f"{name}: part of a range", word, ("low", "high", "step"))
    if not all(isinstance(values.get(word), int) for word in ("low", "high")) or values.get("step", 1) < 1:
        raise ValueError(
            f"{name}={values}: a range has whole numbers low and high, and perhaps a step of at least 1"
        )
    return range(values["low"], values["high"] + 1, values.get("step", 1))


def _value(word: str) -> Any:
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)


def _show(made: Sweep) -> None:
    frame = made.frame
    settings = [name for name in frame.columns if name in AXES and frame[name].nunique(dropna=False) > 1]
    shown = [*settings, "reuse", "reused_tokens", "lost_tokens", "wrong_requests"]
    if frame["ttft_mean_s"].notna().any():
        shown += ["ttft_mean_s", "tpot_mean_s", "prompt_tokens_per_s"]
    ordered = frame.sort_values("reuse", ascending=False, kind="stable")
    rows = [tuple(_text(value) for value in row) for row in ordered[shown].itertuples(index=False)]
    if rows:
        print(table_text([tuple(shown), *rows[:40]], numeric=range(len(settings), len(shown))))
    if made.trials is not None:
        _show_search(made, settings)
    print(f"\n{len(frame)} configurations, {made.computed} run now, {len(made.skipped)} skipped as illegal")
    for words in made.assumptions:
        print(f"times: {words}")
    for reason, count in made.skipped["reason"].value_counts().items():
        print(f"  {count} x {reason}")
    for reason, count in frame.loc[frame["status"] != "ok", "reason"].value_counts().items():
        print(f"  failed {count} x {reason}")


def _show_search(made: Sweep, settings: list[str]) -> None:
    aims, trials = list(made.objectives), made.trials
    assert trials is not None
    counts = ", ".join(f"{count} {state}" for state, count in trials["state"].value_counts().items())
    print(f"\nthe search asked {len(trials)} times ({counts}); best of {' against '.join(aims)}:")
    shown = [*settings, *aims]
    rows = [tuple(_text(value) for value in row) for row in made.best[shown].itertuples(index=False)]
    print(table_text([tuple(shown), *rows], numeric=range(len(settings), len(shown))))


def _text(value: Any) -> str:
    return (
        f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def _draw(made: Sweep, axes: list[str], folder: Path, title: str) -> None:
    """A heat map of the two settings with most values, and the front over memory, as far as there are several values."""
    from depthchart.charts.parallel import parallel
    from depthchart.charts.style import to_png
    from depthchart.charts.sweeps import axes_to_draw, heat_map, pareto
    from depthchart.files import write_whole

    good = made.frame[made.frame["status"] == "ok"]
    varied = axes_to_draw(good, axes)
    if len(varied) >= 2:
        numbers = [name for name in varied if good[name].map(lambda v: isinstance(v, (int, float))).all()]
        x, y = (numbers + [name for name in varied if name not in numbers])[:2]
        panels = next(
            (name for name in ("preset", "rule", *varied) if name in varied and name not in (x, y)), None
        )
        rest = [name for name in varied if name not in (x, y, panels)]
        note = f"\nmean over {', '.join(rest)}" if rest else ""
        write_whole(
            folder / "heat.png", to_png(heat_map(good, x, y, panels=panels, title=title + note), dpi=150)
        )
    if len(varied) >= 2:
        chart = parallel(good, varied[:6], title=title)
        write_whole(folder / "parallel.png", to_png(chart, dpi=150))
    cost = (
        "memory_bytes"
        if good["memory_bytes"].notna().any()
        else "kv_tokens"
        if "kv_tokens" in varied
        else None
    )
    if cost is not None and good[cost].nunique() > 1:
        group = next(
            (name for name in ("preset", "rule", "eviction") if name in varied and good[name].nunique() <= 8),
            None,
        )
        shade = "ttft_mean_s" if good["ttft_mean_s"].notna().all() else None
        write_whole(
            folder / "pareto.png", to_png(pareto(good, cost, group=group, shade=shade, title=title), dpi=150)
        )
