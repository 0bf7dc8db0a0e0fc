"""Decode context parallelism, measured: one workload with its KV over D ranks, against one rank.

The same function runs in one process (emulated ranks) and in each process of a ``torch.distributed`` group, which
``python -m depthchart.engine.dcp_process`` is started as, by torchrun. Every rank runs its own scheduler: plans depend
on texts and counts alone, never on the clock, so all ranks plan the same step.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depthchart.engine.model import HybridModel
from depthchart.engine.ranks import EmulatedRanks, Ranks
from depthchart.engine.serving import Engine
from depthchart.events import Matched
from depthchart.geometry import Geometry

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DcpRun", "compare_processes", "conversations", "dcp_sweep", "run_dcp", "run_processes"]


@dataclass(frozen=True)
class DcpRun:
    """What one rank saw of a workload.

    ``peak_kv_bytes``: of this rank's share of the pages in use, at most; ``decode_bytes``: what this rank sent to
    others in ``decode_steps`` steps without prefill, which gave ``decoded`` tokens; ``sent_bytes``: in all steps;
    ``reused_tokens``: matched at admission, all requests; ``outputs``: sampled tokens by request; ``logits`` [rows,
    vocab]: of the sampling rows, request by request.
    """

    geometry: Geometry
    peak_kv_bytes: int
    decode_bytes: int
    decode_steps: int
    decoded: int
    sent_bytes: int
    reused_tokens: int
    outputs: dict[str, list[int]]
    logits: Tensor


def conversations(
    vocab: int, *, requests: int = 6, shared: int = 250, fresh: int = 24, seed: int = 0
) -> list[list[int]]:
    """A document of ``shared`` tokens, and prompts that go on from it with ``fresh`` tokens of their own (ids)."""
    dice = random.Random(seed)
    document = [dice.randrange(vocab) for _ in range(shared)]
    return [
        document,
        *(document + [dice.randrange(vocab) for _ in range(fresh)] for _ in range(requests - 1)),
    ]


@torch.no_grad()
def run_dcp(
    model: HybridModel,
    geometry: Geometry,
    prompts: Sequence[Sequence[int]],
    *,
    output_tokens: int = 24,
    ranks: Ranks | None = None,
    rule: str = "absolute",
) -> DcpRun:
    """Serve the first prompt alone and then the others together; ``ranks`` as in ``ModelExecutor``."""
    page = geometry.tree_page
    pages = sum(-(-(len(prompt) + output_tokens) // page) + 1 for prompt in prompts)
    slots = 6 * len(prompts) + 6
    engine = Engine(model, geometry, rule, kv_tokens=pages * page, state_slots=slots, ranks=ranks)
    executor, allocator = engine.executor, engine.memory.allocator
    peak = decode_bytes = decode_steps = decoded = 0
    for wave in (prompts[:1], prompts[1:]):
        for prompt in wave:
            engine.submit(
                f"r{len(engine.scheduler.done) + len(engine.scheduler.waiting)}", prompt, output_tokens
            )
        while True:
            before = executor.ranks.sent_bytes
            record = engine.scheduler.step()
            if record is None:
                break
            peak = max(peak, allocator.total_tokens - record.free_kv_tokens)
            if not record.prefill_rows:
                decode_bytes += executor.ranks.sent_bytes - before
                decode_steps, decoded = decode_steps + 1, decoded + record.decode_rows
    names = sorted(engine.scheduler.done)
    return DcpRun(
        geometry=geometry,
        peak_kv_bytes=executor.kv.rank_bytes * peak // allocator.total_tokens,
        decode_bytes=decode_bytes,
        decode_steps=decode_steps,
        decoded=decoded,
        sent_bytes=executor.ranks.sent_bytes,
        reused_tokens=sum(event.tokens for event in engine.log.of(Matched)),
        outputs={name: engine.output(name) for name in names},
        logits=torch.stack(
            [engine.logits[name][at] for name in names for at in sorted(engine.logits[name])]
        ).cpu(),
    )


def run_processes(
    size: int,
    *,
    preset: str = "kimi-linear",
    page_size: int = 16,
    chunk_width: int = 16,
    output_tokens: int = 24,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> tuple[dict[str, Any], Tensor]:
    """The same with ``size`` processes under torchrun: what ``dcp_process`` measured, and the logits of rank 0.

    Raises ValueError for an illegal geometry; RuntimeError with the first error that a process told of where one
    fails, or where all take longer than ``timeout_s``.
    """
    Geometry(page_size, size, chunk_width)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        options = {"preset": preset, "page-size": page_size, "chunk-width": chunk_width}
        options |= {"output-tokens": output_tokens, "seed": seed, "out": out}
        argv = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command = [sys.executable, *launcher, "-m", "depthchart.engine.dcp_process", *argv]
        env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            shown = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{size} ranks were not done after {timeout_s} s") from None
        if shown.returncode:
            raise RuntimeError(f"{size} ranks failed: {_first_error(shown.stderr)}")
        return json.loads(out.read_text()), torch.load(out.with_suffix(".pt"))


def _first_error(said: str) -> str:
    """The first line that names an error; the launcher's own report comes after it."""
    found = re.search(r"^.*?(\w*(?:Error|Failed|Mismatch|Exhausted): .*|error: .*)$", said, re.MULTILINE)
    return found[1] if found else f"...{said[-1000:]}"


def dcp_sweep(
    model: HybridModel,
    page_size: int = 16,
    *,
    sizes: Iterable[int] = (1, 2, 4, 8),
    chunk_width: int = 16,
    output_tokens: int = 24,
    rule: str = "absolute",
    seed: int = 0,
) -> pd.DataFrame:
    """One row for each DCP size (columns.DCP), the same prompts on emulated ranks; differences are to one rank."""
    import pandas as pd

    from depthchart.columns import DCP

    prompts = conversations(model.config.vocab, seed=seed)
    alone = run_dcp(
        model, Geometry(page_size, 1, chunk_width), prompts, output_tokens=output_tokens, rule=rule
    )
    rows = []
    for size in sizes:
        geometry = Geometry(page_size, size, chunk_width)
        run = run_dcp(
            model, geometry, prompts, output_tokens=output_tokens, ranks=EmulatedRanks(size), rule=rule
        )
        rows.append(
            (
                size,
                geometry.tree_page,
                run.peak_kv_bytes,
                run.decode_bytes / max(run.decode_steps, 1),
                run.decode_bytes / max(run.decoded, 1),
                run.reused_tokens,
                float((run.logits - alone.logits).abs().max()),
                run.outputs == alone.outputs,
            )
        )
    return pd.DataFrame(rows, columns=list(DCP))


def compare_processes(
    size: int,
    *,
    preset: str = "kimi-linear",
    page_size: int = 16,
    chunk_width: int = 16,
    output_tokens: int = 24,
    seed: int = 0,
) -> pd.DataFrame:
    """Real processes, their emulation, and one rank, a row each: ranks, peak KV bytes a rank, bytes sent by a rank in
    all steps, tokens reused, largest difference of logits to one rank, whether the sampled tokens are the same."""
    import pandas as pd

    from depthchart.engine.config import preset as configuration
    from depthchart.engine.model import build_model

    found, logits = run_processes(
        size,
        preset=preset,
        page_size=page_size,
        chunk_width=chunk_width,
        output_tokens=output_tokens,
        seed=seed,
    )
    model = build_model(configuration(preset, seed=seed), chunk_width=16)
    prompts = conversations(model.config.vocab, seed=seed)
    alone, emulated = (
        run_dcp(model, Geometry(page_size, ranks, chunk_width), prompts, output_tokens=output_tokens)
        for ranks in (1, size)
    )
    peak, sent = found["peak_kv_bytes"][0], found["sent_bytes"][0]
    rows = {
        "one rank": (
            1,
            alone.peak_kv_bytes,
            alone.sent_bytes,
            alone.reused_tokens,
            alone.logits,
            alone.outputs,
        ),
        "emulated": (
            size,
            emulated.peak_kv_bytes,
            emulated.sent_bytes,
            emulated.reused_tokens,
            emulated.logits,
            emulated.outputs,
        ),
        "processes": (size, peak, sent, found["reused_tokens"], logits, found["outputs"]),
    }
    columns = ["ranks", "rank_kv_bytes", "sent_bytes", "reused_tokens", "largest_difference", "same_tokens"]
    table = [
        (*numbers, float((values - alone.logits).abs().max()), outputs == alone.outputs)
        for *numbers, values, outputs in rows.values()
    ]
    return pd.DataFrame(table, columns=columns, index=list(rows))
