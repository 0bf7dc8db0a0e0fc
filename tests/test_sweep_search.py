"""Search by Optuna: known optima are found, interrupted searches go on, repeats are free, illegal ones are told."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import product

import pandas as pd
import pytest

from depthchart import sweep as room
from depthchart.cli import main
from depthchart.sweep import Search, sweep
from depthchart.sweep_search import pick, search_grid
from depthchart.sweep_task import run_job
from depthchart.traces import load_trace

pytest.importorskip("optuna")

TRACE = load_trace("agentic", limit=40)
GRID = {
    "page_size": [16, 64, 96],  # 96 goes with no chunk of 64
    "preset": ["sglang", "depthchart"],
    "kv_tokens": [1 << 14, 1 << 15, 1 << 16],
    "state_slots": [3, 8, 24],  # 3 are too few for a request
}
LEGAL = 2 * 2 * 3 * 2


def run(trials=6, **more):
    search = Search(trials=trials, **{k: more.pop(k) for k in ("objectives", "seed", "batch") if k in more})
    return sweep(TRACE, progress=False, search=search, **{"workers": 1, **GRID, **more})


# --- the search itself, on a landscape made by hand --------------------------------------------------------------

HILL = {
    "kv_tokens": list(range(20)),
    "state_slots": list(range(20)),
    "rule": ["a", "b", "c", "d"],
}
TOP = {"kv_tokens": 13, "state_slots": 6, "rule": "c"}


def hill(configs):
    """One top, 1.0; lower by the distance to it, and by 0.3 for each other word; nothing beyond 17 slots is legal."""
    for config in configs:
        if config["state_slots"] > 17:
            yield "too many"
        else:
            away = sum(((config[name] - TOP[name]) / 20) ** 2 for name in ("kv_tokens", "state_slots"))
            yield {"status": "ok", "reason": "", "reuse": 1.0 - away - 0.3 * (config["rule"] != TOP["rule"])}


@pytest.mark.parametrize("seed", range(3))
def test_the_top_of_a_hill_is_found_in_a_tenth_of_the_grid(seed):
    """1,600 combinations, 160 trials: a random sample of 160 misses the top nine times in ten."""
    trials = search_grid(HILL, Search(trials=160, seed=seed), lambda asked: list(hill(asked)))
    best = max((t for t in trials if t.scores), key=lambda t: t.scores)
    assert best.config == TOP
    assert best.scores == (1.0,)


def test_a_small_grid_is_gone_through_whole_and_once():
    axes = {"kv_tokens": [1, 2, 3], "rule": ["a", "b"], "preset": ["only"]}
    asked = []

    def worth(configs):
        asked.extend(configs)
        return [{"status": "ok", "reason": "", "reuse": float(config["kv_tokens"])} for config in configs]

    trials = search_grid(axes, Search(trials=100, batch=2), worth)
    counted = [t.config for t in trials if t.state != "repeated"]
    assert sorted(map(str, counted)) == sorted(
        str(dict(zip(axes, values, strict=True))) for values in product(*axes.values())
    )


def test_nothing_but_illegal_combinations_ends():
    axes = {"kv_tokens": list(range(1000)), "state_slots": list(range(1000))}
    trials = search_grid(axes, Search(trials=2), lambda configs: ["no"] * len(configs))
    assert {t.state for t in trials} <= {"illegal", "repeated"}
    assert len(trials) == 40


def test_combinations_by_number_are_those_of_the_product():
    made = [pick(HILL, number) for number in (0, 1, 79, 1599)]
    every = [dict(zip(HILL, values, strict=True)) for values in product(*HILL.values())]
    assert made == [every[number] for number in (0, 1, 79, 1599)]


# --- through sweep -------------------------------------------------------------------------------------------


def test_a_search_as_long_as_the_grid_finds_the_grids_best():
    whole = sweep(TRACE, progress=False, workers=1, **GRID)
    found = run(trials=LEGAL)
    assert len(found.frame) == len(whole.frame) == LEGAL
    assert found.best["reuse"].iloc[0] == whole.frame["reuse"].max()
    assert set(found.trials.loc[found.trials["state"] == "illegal", "reason"]) <= set(whole.skipped["reason"])


def test_illegal_combinations_are_told_with_their_reasons_and_do_not_count():
    made = run(trials=6)
    states = made.trials["state"].value_counts()
    assert states["ok"] == len(made.frame) == made.computed == 6
    illegal = made.trials[made.trials["state"] == "illegal"]
    assert len(illegal) == len(made.skipped) > 0
    assert illegal["reason"].str.contains("page_size=96|state_slots=3").all()
    assert illegal["reuse"].isna().all()


def test_a_repeated_search_is_free_and_a_longer_one_goes_on(tmp_path):
    first, again = run(out=tmp_path), run(out=tmp_path)
    assert (first.computed, again.computed) == (6, 0)
    pd.testing.assert_frame_equal(first.trials, again.trials)
    assert run(trials=9, out=tmp_path, batch=8).computed <= 9
    assert run(trials=6, out=tmp_path, seed=1, batch=8).computed < 6 or LEGAL > 12
    stored = pd.read_csv(tmp_path / "trials.csv")
    assert list(stored["state"]) == list(run(trials=6, out=tmp_path, seed=1, batch=8).trials["state"])


def test_an_interrupted_search_goes_on(tmp_path, monkeypatch):
    """Ctrl-C after four results; the same call runs the other five and ends as if it had never been stopped."""
    calls = []

    def stop(job, **kwargs):
        calls.append(job)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return run_job(job, **kwargs)

    monkeypatch.setattr(room, "run_job", stop)
    with pytest.raises(KeyboardInterrupt):
        run(trials=9, batch=3, out=tmp_path)
    monkeypatch.undo()
    resumed = run(trials=9, batch=3, out=tmp_path)
    assert resumed.computed == 5
    pd.testing.assert_frame_equal(resumed.trials, run(trials=9, batch=3).trials)


def test_every_executor_searches_alike():
    with ProcessPoolExecutor(2) as executor:
        pd.testing.assert_frame_equal(run(executor=executor).trials, run().trials)


def test_several_objectives_give_a_front():
    """More KV reuses more and costs more bytes: by the frame itself, no row of the front is beaten in both."""
    found = run(trials=LEGAL, objectives=["reuse", "memory"], model="qwen3.5-9b")
    assert found.objectives == ("reuse", "memory_bytes")
    front = {(row.reuse, row.memory_bytes) for row in found.best.itertuples()}
    points = {(row.reuse, row.memory_bytes) for row in found.frame.itertuples()}
    by_hand = {p for p in points if not any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in points)}
    assert front == by_hand
    assert len(front) > 1


def test_what_fails_is_told_as_failed(monkeypatch):
    from depthchart import sweep_task

    def broken(*args, **kwargs):
        raise AssertionError("on purpose")

    monkeypatch.setattr(sweep_task, "serve", broken)
    trials = run(trials=3).trials
    assert set(trials["state"]) <= {"failed", "illegal", "repeated"}
    assert "AssertionError: on purpose" in set(trials["reason"])


WRONG = [
    ({"objectives": ["reus"]}, "nearest: 'reuse'"),
    ({"objectives": []}, "at least one"),
    ({"objectives": ["ttft"]}, "timed=True"),
    ({"objectives": ["memory"]}, "axis model"),
    ({"trials": 0}, "trials=0"),
    ({"batch": 0}, "batch=0"),
    ({"sample": 3}, "only one of them"),
]


@pytest.mark.parametrize(("more", "says"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_wrong_searches(more, says):
    with pytest.raises(ValueError, match=says):
        run(**more)


# --- the verb ------------------------------------------------------------------------------------------------


def test_verb(tmp_path, capsys):
    config = tmp_path / "search.toml"
    config.write_text(
        'trace = "agentic"\nlimit = 30\nworkers = 1\n[grid]\npage_size = [16, 64]\npreset = ["sglang", "depthchart"]\n'
        "kv_tokens = {low = 16384, high = 65536, step = 16384}\nstate_slots = [3, 24]\n"
        '[search]\nkind = "optuna"\ntrials = 5\nobjectives = ["reuse"]\n'
    )
    out = tmp_path / "out"
    assert main(["sweep", str(config), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "best of reuse" in text
    assert "5 configurations, 5 run now" in text
    assert (out / "trials.csv").exists()
    assert set(pd.read_csv(out / "results.csv")["kv_tokens"]) <= {16384, 32768, 49152, 65536}
    assert main(["sweep", str(config), "--out", str(out)]) == 0
    assert "5 configurations, 0 run now" in capsys.readouterr().out
    assert main(["sweep", str(config), "--search", "random", "--trials", "4"]) == 2
    assert "objectives" in capsys.readouterr().err
    config.write_text(
        config.read_text().replace('kind = "optuna"', 'kind = "random"').replace("objectives", "#")
    )
    assert main(["sweep", str(config), "--trials", "4"]) == 0
    words = capsys.readouterr().out
    assert (
        sum(map(int, (words.split(" configurations")[0].split()[-1], words.split(" skipped")[0].split()[-1])))
        == 4
    )


def test_verb_says_what_is_wrong(tmp_path, capsys):
    grid = "[grid]\npage_size = 64\npreset = 'sglang'\nkv_tokens = 65536\nstate_slots = [8, 24]\n"
    rows = [
        (grid + "[search]\nkind = 'optima'\n", [], "nearest: 'optuna'"),
        (grid + "[search]\ntrails = 5\n", [], "nearest: 'trials'"),
        (grid.replace("[8, 24]", "{low = 8}"), [], "low and high"),
        (grid.replace("[8, 24]", "{lo = 8, high = 9}"), [], "nearest: 'low'"),
        (grid, ["--trials", "3"], "add --search optuna"),
        (grid, ["--search", "optuna", "--objectives", "reuse,ttft"], "timed=True"),
    ]
    for text, words, says in rows:
        config = tmp_path / "search.toml"
        config.write_text(text)
        assert main(["sweep", str(config), "--limit", "5", *words]) == 2
        assert says in capsys.readouterr().err
