"""One rank of a decode-context-parallel engine, as a process::

    torchrun --nproc-per-node 4 -m depthchart.engine.dcp_process --page-size 16 --out run.json

Gloo on CPU, nccl with a GPU for each rank. Every rank checks that all sampled the same tokens; rank 0 writes what it
measured, with its logits beside it (``run.pt``).
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from depthchart.engine.config import PRESETS, preset
from depthchart.engine.dcp import DcpRun, conversations, run_dcp
from depthchart.engine.model import build_model
from depthchart.engine.ranks import ProcessRanks
from depthchart.files import whole_file, write_text
from depthchart.geometry import Geometry

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """Join the group, run the workload, compare the ranks, write the result."""
    options = _options(argv)
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(
        os.environ.get("LOCAL_WORLD_SIZE", "1")
    )
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=options.timeout_s))
    try:
        ranks = ProcessRanks()
        geometry = Geometry(options.page_size, ranks.size, options.chunk_width)
        model = build_model(preset(options.preset, seed=options.seed), chunk_width=16, device=device)
        prompts = conversations(model.config.vocab, seed=options.seed)
        run = run_dcp(model, geometry, prompts, output_tokens=options.output_tokens, ranks=ranks)
        everybody: list[Any] = [None] * ranks.size
        dist.all_gather_object(everybody, (run.outputs, run.peak_kv_bytes, run.sent_bytes))
        _compare(everybody)
        if ranks.rank == 0:
            _write(options.out, run, everybody)
    finally:
        dist.destroy_process_group()


def _compare(everybody: list[Any]) -> None:
    for rank, (outputs, _, _) in enumerate(everybody):
        if outputs != everybody[0][0]:
            raise RuntimeError(f"rank {rank} has sampled other tokens than rank 0: their steps have parted")


def _write(out: Path, run: DcpRun, everybody: list[Any]) -> None:
    found = {
        "dcp_size": run.geometry.dcp_size,
        "tree_page_tokens": run.geometry.tree_page,
        "peak_kv_bytes": [peak for _, peak, _ in everybody],
        "sent_bytes": [sent for _, _, sent in everybody],
        "decode_bytes": run.decode_bytes,
        "decode_steps": run.decode_steps,
        "decoded": run.decoded,
        "reused_tokens": run.reused_tokens,
        "outputs": run.outputs,
    }
    with whole_file(out.with_suffix(".pt")) as draft:
        torch.save(run.logits, draft)
    write_text(out, json.dumps(found))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="depthchart.engine.dcp_process", description="One DCP rank as a process."
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="kimi-linear")
    parser.add_argument("--page-size", type=int, default=16, help="scheduler page, tokens")
    parser.add_argument("--chunk-width", type=int, default=16, help="chunk of the scan, tokens")
    parser.add_argument("--output-tokens", type=int, default=24, help="sampled by each request")
    parser.add_argument("--seed", type=int, default=0, help="of weights and prompts")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="seconds that a rank waits for another")
    parser.add_argument("--out", type=Path, required=True, help="result, JSON; logits go beside it as .pt")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
