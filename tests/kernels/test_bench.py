"""The bench: its counts by hand, its table, and what it refuses."""

import csv
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

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
    with pytest.raises(RuntimeError, match="differs from the reference"):
        bench._check(case, torch.ones(2), torch.zeros(2) + 2)


def test_missing_gpu_is_said(capsys):
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    assert bench.main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.peer
@pytest.mark.parametrize(
    ("peer", "module", "ops"),
    [
        ("fla-core", "fla", {"gated_delta", "kda", "ssd"}),
        ("transformers", "transformers", {"gated_delta", "kda", "ssd"}),
        ("mamba-ssm", "mamba_ssm", {"ssd"}),
    ],
    ids=["fla", "transformers", "mamba"],
)
def test_peers_agree_and_are_timed(peer, module, ops, monkeypatch):
    if find_spec(module) is None:
        pytest.skip(f"{peer} is not installed")
    monkeypatch.setattr(bench, "ceilings", lambda device: bench.Ceilings(1e11, 1e10))
    argv = ["--width", "16", "--length", "48", "--batch", "2", "--snapshots", "1", "--heads", "1"]
    rows = bench.measure(*argv, "--rounds", "1", "--against", "reference", peer)
    ours = [row for row in rows if row["impl"] == "chunked"]
    theirs = [row for row in rows if row["impl"].startswith(peer)]
    assert {row["op"] for row in theirs} == ops
    for row in ours:
        rivals = [other["best_s"] for other in theirs if other["op"] == row["op"]]
        if rivals:
            assert row["times_peer"] == pytest.approx(min(rivals) / row["best_s"], rel=1e-2)
    assert peer in rows[0]["peers"]


def test_peer_paths_are_named_by_package():
    from depthchart_kernels.peers import paths

    assert paths("mamba-ssm", "ssd") == ["mamba-ssm", "mamba-ssm-minimal"]
    assert paths("fla-core", "kda") == ["fla-core", "fla-core-steps"]
    assert paths("mamba-ssm", "kda") == []


def test_a_missing_peer_is_said(monkeypatch, capsys):
    from depthchart_kernels import peers

    monkeypatch.setattr(peers, "version", missing)
    monkeypatch.setattr(bench, "ceilings", lambda device: bench.Ceilings(1e11, 1e10))
    argv = ["--op", "kda", "--width", "16", "--length", "8", "--heads", "1", "--snapshots", "0"]
    assert bench.main([*argv, "--against", "fla-core"]) == 2
    assert "fla-core is not installed: pip install fla-core" in capsys.readouterr().err


def missing(name):
    raise PackageNotFoundError(name)
