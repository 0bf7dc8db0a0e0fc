"""The bench: its counts by hand, its table, and what it refuses."""

import csv

import pytest
import torch

from depthchart_kernels import bench


def test_work_is_counted_as_stated():
    # C = 64, K = V = 128, one head, one token: 6·128·128 + 64·1024 + 2/3·64² FLOPs
    case = bench.Case("gated_delta", "chunked", 64, 1, 1, "bf16", 0, 1)
    flops, moved = bench.work(case)
    assert flops == pytest.approx(98_304 + 65_536 + 2730.67, abs=0.01)
    assert moved == 1024 + 8 + 4 * 128 * 128  # q, k, v, o in bf16, gate and beta, and the final state
    ssd = bench.Case("ssd", "chunked", 64, 1, 1, "bf16", 1, 1)
    flops, moved = bench.work(ssd)
    assert flops == 2 * (4 * 128 * 64 + 2 * 64 * 64) + 2 * 64 * 128
    assert moved == 2 * (256 + 4) + 512 + 2 * 4 * 2 * 64 * 128


def test_sweep_writes_a_table_with_its_origin(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "ceilings", lambda device: bench.Ceilings(1e11, 1e10))
    out = tmp_path / "table.csv"
    argv = ["--op", "ssd", "--width", "16", "--length", "40", "--snapshots", "0", "2", "--heads", "1"]
    assert bench.main([*argv, "--rounds", "2", "--against", "reference", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [(row["impl"], row["snapshots"]) for row in rows] == [
        ("chunked", "0"),
        ("chunked", "2"),
        ("reference", "0"),
    ]
    assert float(rows[2]["times_reference"]) == 1.0
    assert all(float(row["best_s"]) > 0 and row["torch"] == torch.__version__ for row in rows)
    assert "--width 16" in rows[0]["command"]
    assert capsys.readouterr().out.count("\n") == 4
    assert list(tmp_path.iterdir()) == [out]


def test_a_wrong_result_is_not_timed(monkeypatch):
    case = bench.Case("ssd", "chunked", 16, 1, 1, "fp32", 0, 1)
    with pytest.raises(RuntimeError, match="differs from the reference by"):
        bench._check(case, torch.ones(2), torch.zeros(2) + 2)


def test_missing_gpu_is_said(capsys):
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    assert bench.main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
