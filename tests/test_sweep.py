"""Sweeps: every combination once, illegal ones listed, results resumable and the same on every executor."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from depthchart import sweep as room
from depthchart import sweep_store as store
from depthchart.charts.parallel import parallel
from depthchart.charts.sweeps import heat_map, pareto, pareto_front
from depthchart.cli import main
from depthchart.columns import SWEEP
from depthchart.geometry import Geometry
from depthchart.kernel_tables import KernelTable
from depthchart.models import MODELS
from depthchart.presets import preset
from depthchart.roofline import Roofline
from depthchart.serial import serve
from depthchart.simulate import simulate
from depthchart.sweep import Inline, sweep
from depthchart.sweep_task import run_job
from depthchart.traces import load_trace
from depthchart.traces.overlap import reusable, seen_prefixes

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
    assert cell["tpot_mean_s"] == pytest.approx(alone["tpot_mean_s"])
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


def test_every_cell_tells_what_was_possible():
    """One at a time, in the order of the trace: what describe calls the ideal reuse, whatever the pools."""
    frame = run(page_size=[64, 128]).frame
    seen = list(seen_prefixes(TRACE))
    for page in (64, 128):
        possible = sum(reusable(s, r.prompt_tokens, page) for s, r in zip(seen, TRACE, strict=True))
        assert set(frame.loc[frame["page_size"] == page, "possible_tokens"]) == {possible}
    assert set(frame["seen_tokens"]) == {sum(seen)}
    assert (frame["kv_hit_tokens"] <= frame["possible_tokens"]).all()
    timed = run(preset="sglang", kv_tokens=1 << 16, state_slots=24, timed=True).frame.iloc[0]
    assert timed["kv_hit_tokens"] <= timed["possible_tokens"] <= timed["seen_tokens"]


def test_requests_that_never_fit_leave_nothing_to_find():
    large = max(r.prompt_tokens + r.output_tokens for r in TRACE)
    frame = run(kv_tokens=[large // 64 * 64 - 64, 1 << 16], preset="sglang", state_slots=24).frame
    assert frame["seen_tokens"].iloc[0] < frame["seen_tokens"].iloc[1]


def test_a_named_device_times_the_cells():
    """The same reuse, and the times of the roofline of that model on that device."""
    few = {"preset": "sglang", "kv_tokens": 1 << 16, "state_slots": 24, "timed": True}
    frame = run(**few, model="qwen3.5-9b", hardware=["h100", "a100"]).frame
    settings = preset("sglang").apply(Geometry(64), 1 << 16, 24).settings
    for at, device in enumerate(("h100", "a100")):
        cost = Roofline.of("qwen3.5-9b", device, table=KernelTable.bundled())
        alone = simulate(TRACE, Geometry(64), **settings, cost=cost).summary()
        assert frame["ttft_mean_s"].iloc[at] == pytest.approx(alone["ttft_mean_s"])
    assert frame["ttft_mean_s"].iloc[0] < frame["ttft_mean_s"].iloc[1]


def test_times_say_what_they_rest_on():
    few = {"preset": "sglang", "kv_tokens": 1 << 16, "state_slots": 24}
    made = run(**few, model="qwen3.5-9b", hardware=["h100", "a100", None], timed=True)
    assert len(made.assumptions) == 3
    assert any("linear time model" in words for words in made.assumptions)
    assert run(**few).assumptions == ()


def test_a_device_without_a_model_is_a_reason():
    made = run(preset="sglang", hardware="h100", timed=True)
    assert "model: is missing" in made.skipped["reason"].iloc[0]
    made = run(preset="sglang", model="qwen3.5-9b", hardware="h1000")
    assert "nearest" in made.skipped["reason"].iloc[0]


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
    assert len(list(tmp_path.glob("results/*"))) == 3
    assert not (tmp_path / "results.csv").exists()
    monkeypatch.undo()
    resumed = run(out=tmp_path)
    assert resumed.computed == 5
    same(resumed.frame, run().frame)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_the_store_is_one_parquet_table(tmp_path):
    pytest.importorskip("pyarrow")
    frame = run(out=tmp_path).frame
    stored = pd.read_parquet(tmp_path / "results")
    assert stored["key"].is_unique
    assert sorted(stored["reused_tokens"]) == sorted(frame["reused_tokens"])
    assert {tuple(json.loads(config).items()) for config in stored["config"]} == {
        tuple(row.items()) for row in frame[list(GRID)].astype(object).to_dict("records")
    }


def test_without_pyarrow_the_store_is_json_and_both_are_read(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    run(out=tmp_path, state_slots=8)
    with monkeypatch.context() as patch:
        patch.setattr(store, "find_spec", lambda name: None)
        assert run(out=tmp_path / "plain", state_slots=24).computed == 4
        with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'depthchart\[parquet\]'"):
            run(out=tmp_path, state_slots=8)
    for path in (tmp_path / "plain/results").iterdir():
        assert set(json.loads(path.read_text())) == {"config", "result", "provenance"}
        path.rename(tmp_path / "results" / path.name)
    assert run(out=tmp_path).computed == 0


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_damaged_result_is_named(tmp_path, kind):
    run(out=tmp_path, state_slots=8)
    for path in list((tmp_path / "results").iterdir()):
        path.unlink()
        path.with_suffix(f".{kind}").write_text("no result")
    with pytest.raises(ValueError, match=r"results/.*is no result of a sweep .* delete it"):
        run(out=tmp_path, state_slots=8)


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


def test_axes_may_be_arrays_and_ranges(tmp_path):
    made = run(
        kv_tokens=np.array([1 << 15, 1 << 16]),
        state_slots=range(8, 25, 16),
        page_size=np.int64(64),
        out=tmp_path,
    )
    same(made.frame, run().frame)
    assert json.loads((tmp_path / "sweep.json").read_text())["grid"]["kv_tokens"] == [1 << 15, 1 << 16]


def test_what_is_missing_is_a_reason():
    assert (
        "kv_tokens: is missing"
        in sweep(TRACE, progress=False, page_size=64, rule="absolute").skipped["reason"].iloc[0]
    )


def test_parquet_holds_the_frame(tmp_path):
    pytest.importorskip("pyarrow")
    frame = run(out=tmp_path, max_states_per_path=[None, 4]).frame
    stored = pd.read_parquet(tmp_path / "results.parquet")
    assert list(stored.columns) == list(frame.columns)
    assert list(stored["reused_tokens"]) == list(frame["reused_tokens"])


def test_parallel_coordinates_draw_every_configuration():
    frame = run().frame
    chart = parallel(frame, ["preset", "kv_tokens", "state_slots"], "reuse")
    ax = chart.axes[0]
    assert len(ax.lines) - 4 == len(frame)  # one line each, and the four axes
    assert [tick.get_text() for tick in ax.get_xticklabels()][-1] == "share of prompt tokens reused"
    with pytest.raises(ValueError, match="no row that worked"):
        parallel(frame.assign(status="failed"), ["preset"], "reuse")


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
        "parallel.png",
        *(["results.parquet"] if find_spec("pyarrow") else []),
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


def test_verb_where_nothing_is_legal(capsys):
    assert main(["sweep", "--limit", "5", "--grid", "page_size=64", "--grid", "preset=sglang"]) == 1
    assert "kv_tokens: is missing" in capsys.readouterr().out
