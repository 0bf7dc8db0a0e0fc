"""Sweeps: every combination once, illegal ones listed, results resumable and the same on every executor."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pandas as pd
import pytest

from depthchart import sweep as room
from depthchart.charts.sweeps import heat_map, pareto, pareto_front
from depthchart.cli import main
from depthchart.columns import SWEEP
from depthchart.geometry import Geometry
from depthchart.models import MODELS
from depthchart.presets import preset
from depthchart.serial import serve
from depthchart.simulate import simulate
from depthchart.sweep import Inline, sweep
from depthchart.sweep_task import run_job
from depthchart.traces import load_trace

TRACE = load_trace("agentic", limit=40)
GRID = {
    "page_size": 64,
    "preset": ["sglang", "depthchart"],
    "kv_tokens": [1 << 15, 1 << 16],
    "state_slots": [8, 24],
}


def run(**more):
    return sweep(TRACE, progress=False, **{"workers": 1, **GRID, **more})


def same(a, b):
    pd.testing.assert_frame_equal(a.reset_index(drop=True), b.reset_index(drop=True), check_dtype=False)


def test_a_cell_is_what_serving_gives():
    frame = run().frame
    assert len(frame) == 8
    assert list(frame.columns) == [
        "page_size",
        "preset",
        "kv_tokens",
        "state_slots",
        *SWEEP,
    ]
    cell = frame[
        (frame["preset"] == "sglang") & (frame["kv_tokens"] == 1 << 16) & (frame["state_slots"] == 8)
    ].iloc[0]
    alone = serve(TRACE, Geometry(64), **preset("sglang").apply(Geometry(64), 1 << 16, 8).settings)
    assert (cell["reused_tokens"], cell["lost_tokens"], cell["prompt_tokens"]) == (
        alone.reused_tokens,
        alone.lost_tokens,
        alone.prompt_tokens,
    )


def test_a_timed_cell_is_what_the_simulator_gives():
    cell = run(preset="sglang", kv_tokens=1 << 16, state_slots=24, timed=True).frame.iloc[0]
    alone = simulate(
        TRACE, Geometry(64), **preset("sglang").apply(Geometry(64), 1 << 16, 24).settings
    ).summary()
    assert cell["reused_tokens"] == alone["reused_tokens"]
    assert cell["ttft_mean_s"] == pytest.approx(alone["ttft_mean_s"])
    assert cell["simulated_s"] == pytest.approx(alone["simulated_s"])


@pytest.mark.parametrize(
    "make",
    [lambda: Inline(), lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2)],
    ids=["inline", "threads", "processes"],
)
def test_every_executor_gives_the_same(make):
    with make() as executor:
        same(run(executor=executor).frame, run().frame)


def test_a_dask_cluster_gives_the_same():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(run(executor=client.get_executor()).frame, run().frame)


def test_illegal_combinations_are_listed_with_their_reasons():
    made = run(page_size=[64, 96], state_slots=[3, 24])
    assert len(made.frame) == 4
    assert len(made.skipped) == 12
    reasons = set(made.skipped["reason"])
    assert any(
        "page_size=96" in reason and "nearest legal page_size: 64 or 128" in reason for reason in reasons
    )
    assert any("state_slots=3" in reason for reason in reasons)


def test_what_fails_is_a_row_with_a_reason(monkeypatch):
    from depthchart import sweep_task

    def broken(*args, **kwargs):
        raise AssertionError("on purpose")

    monkeypatch.setattr(sweep_task, "serve", broken)
    frame = run().frame
    assert set(frame["status"]) == {"failed"}
    assert set(frame["reason"]) == {"AssertionError: on purpose"}


def test_a_repeated_sweep_computes_nothing_and_a_wider_one_only_what_is_new(tmp_path):
    first = run(out=tmp_path)
    again = run(out=tmp_path)
    assert (first.computed, again.computed) == (8, 0)
    same(first.frame, again.frame)
    assert run(out=tmp_path, state_slots=[8, 24, 40]).computed == 4
    other = sweep(TRACE.head(30), out=tmp_path, progress=False, workers=1, **GRID)
    assert other.computed == 8  # another trace is another key


def test_an_interrupted_sweep_goes_on(tmp_path, monkeypatch):
    """Ctrl-C after three results: they are on disk, whole, and the next call computes the other five."""
    calls = []

    def stop(job, **kwargs):
        calls.append(job)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run_job(job, **kwargs)

    monkeypatch.setattr(room, "run_job", stop)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path)
    kept = list(tmp_path.glob("results/*.json"))
    assert len(kept) == 3
    assert not (tmp_path / "results.csv").exists()
    assert all(set(json.loads(path.read_text())) == {"config", "result", "provenance"} for path in kept)
    monkeypatch.undo()
    resumed = run(out=tmp_path)
    assert resumed.computed == 5
    same(resumed.frame, run().frame)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_a_sample_is_part_of_the_grid_and_repeats():
    frame = run(sample=3, seed=5).frame
    assert len(frame) == 3
    same(frame, run(sample=3, seed=5).frame)
    settings = list(GRID)
    assert len(frame[settings].merge(run().frame[settings])) == 3


def test_bytes_are_split_into_both_pools():
    model = MODELS["kimi-linear-48b-a3b"]
    frame = sweep(
        TRACE,
        progress=False,
        workers=1,
        page_size=64,
        rule="absolute",
        model=model.name,
        pool_bytes=[4e9, 8e9],
        state_share=0.25,
    ).frame
    kv, slots = int(6e9 / model.kv_bytes_per_token), int(2e9 / model.state_bytes)
    alone = serve(TRACE, Geometry(64), "absolute", kv_tokens=kv, state_slots=slots)
    assert frame["reused_tokens"].iloc[1] == alone.reused_tokens
    assert 0.99 * 8e9 < frame["memory_bytes"].iloc[1] <= 8e9


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"page_sise": 64}, "nearest: 'page_size'"),
        ({"page_size": []}, "at least one value"),
        ({"page_size": 64, "sample": 0, "kv_tokens": [1, 2]}, "sample=0"),
    ],
)
def test_wrong_calls(grid, says):
    with pytest.raises(ValueError, match=says):
        sweep(TRACE, progress=False, **grid)


def test_what_is_missing_is_a_reason():
    assert (
        "kv_tokens: is missing"
        in sweep(TRACE, progress=False, page_size=64, rule="absolute").skipped["reason"].iloc[0]
    )


def test_pareto_front_by_hand():
    frame = pd.DataFrame({"cost": [1, 1, 2, 3, 4], "reuse": [0.2, 0.3, 0.3, 0.5, 0.4]})
    assert list(pareto_front(frame, "cost", "reuse")["cost"]) == [1, 3]
    assert list(pareto_front(frame, "cost", "reuse")["reuse"]) == [0.3, 0.5]


def test_figures_say_what_they_show():
    frame = run().frame
    heat = heat_map(frame, "state_slots", "kv_tokens", panels="preset")
    texts = [text.get_text() for ax in heat.axes for text in ax.texts]
    assert len(texts) == 8
    assert all(text.endswith("%") for text in texts)
    front = pareto(frame, "kv_tokens", group="preset")
    assert front.axes[0].get_xlabel() == "KV pool (tokens)"
    with pytest.raises(ValueError, match="no row that worked"):
        heat_map(frame.assign(status="failed"), "state_slots", "kv_tokens")


def test_verb(tmp_path, capsys):
    config = tmp_path / "grid.toml"
    config.write_text(
        'trace = "agentic"\nlimit = 30\nworkers = 1\n[grid]\npage_size = 64\npreset = ["sglang", "depthchart"]\n'
        "kv_tokens = [32768, 65536]\nstate_slots = [3, 24]\n"
    )
    out = tmp_path / "out"
    assert main(["sweep", str(config), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "4 configurations, 4 run now, 4 skipped as illegal" in text
    assert "state_slots=3" in text
    assert {path.name for path in out.iterdir()} == {
        "results",
        "results.csv",
        "skipped.csv",
        "sweep.json",
        "heat.png",
        "pareto.png",
    }
    assert main(["sweep", str(config), "--out", str(out), "--grid", "state_slots=24,30"]) == 0
    assert "8 configurations, 4 run now" in capsys.readouterr().out
    assert json.loads((out / "sweep.json").read_text())["provenance"]["depthchart"]


def test_verb_says_what_is_wrong(tmp_path, capsys):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("traces = 1\n")
    for words, says in (
        ([str(wrong)], "traces is no option"),
        ([str(tmp_path / "none.toml")], "No such file"),
        (["--grid", "page_size"], "AXIS=VALUE"),
        ([], "grid: is empty"),
    ):
        assert main(["sweep", *words]) == 2
        assert says in capsys.readouterr().err
