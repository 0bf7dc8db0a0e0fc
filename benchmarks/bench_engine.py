"""What the engine adds to its kernels: a prefill of 4,096 tokens, its time split by who spends it.

    python benchmarks/bench_engine.py [--tokens 4096] [--repeat 3] [--out engine.csv]

Every call is charged to one of five accounts, time in calls below not counted twice:

    kernels    every function of depthchart_kernels, and the matrix products of the model's layers
    model      the rest of the forward pass: norms, activations, reshapes, the head, calling it all
    plan       the batch as tensors
    cache      lifecycle: match, pages and slots, checkpoints, tree
    scheduler  everything else in a step

CPU time of the process on one thread, so that other work on the machine counts for little; the fastest of the repeats.
``overhead`` is all that is not kernels, over kernels; ``beside the model`` is plan + cache + scheduler over kernels + model.
"""

from __future__ import annotations

import argparse
import csv
import functools
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch

from depthchart import Geometry
from depthchart.engine import Engine, attention, build_model, executor, mixers, pools, preset, ranks
from depthchart.files import whole_file
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.loop import Scheduler

ACCOUNTS = ("kernels", "model", "plan", "cache", "scheduler")
OPERATORS = (
    *(
        "causal_conv1d",
        "causal_conv1d_step",
        "gated_delta",
        "gated_delta_step",
        "kda",
        "kda_step",
        "ssd",
        "ssd_step",
    ),
    *("beta_gate", "gated_delta_gate", "kda_gate", "l2norm", "ssd_gate"),
)
LARGE = {"vocab": 4096, "width": 512, "mlp_width": 1024, "heads": 8, "kv_heads": 2, "head_dim": 64, "latent_dim": 128,
         "state_heads": 8, "key_dim": 64, "value_dim": 64}  # fmt: skip
CASES = [
    ("kimi-linear", {**LARGE, "key_heads": 8}, 8192),
    ("qwen3-next", {**LARGE, "key_heads": 4}, 8192),
    ("nemotron-h", {**LARGE, "key_heads": 1}, 8192),
    ("kimi-linear", {**LARGE, "key_heads": 8}, 512),
    ("kimi-linear", {}, 8192),
]


class Ledger:
    """Charges CPU seconds to the innermost account that is open."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(ACCOUNTS, 0.0)
        self._open = []
        self._since = 0.0

    @contextmanager
    def charge(self, account):
        self._settle()
        self._open.append(account)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def _settle(self):
        now = time.process_time()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now

    def wrap(self, function, account):
        @functools.wraps(function)
        def charged(*args, **kwargs):
            with self.charge(account):
                return function(*args, **kwargs)

        return charged


@contextmanager
def charged(ledger):
    """Patch every door between the accounts."""
    doors = [(mixers.kernels, name, "kernels") for name in OPERATORS]
    doors += [(attention, "paged_attention", "kernels"), (ranks, "merge_attention", "kernels")]
    doors += [(pools, "copy_states", "kernels"), (torch.nn.functional, "linear", "kernels")]
    doors += [(executor, "plan_step", "plan"), (executor.ModelExecutor, "run", "model")]
    names = ["begin", "plan_extend", "commit_extend", "checkpoint", "plan_decode", "commit_decode", "finish"]
    doors += [(Lifecycle, name, "cache") for name in names]
    doors += [(Scheduler, name, "scheduler") for name in ("submit", "step")]
    with ExitStack() as stack:
        for home, name, account in doors:
            stack.enter_context(mock.patch.object(home, name, ledger.wrap(getattr(home, name), account)))
        yield


def measure(model, tokens, budget):
    """CPU seconds by account, and the number of steps, of one prompt of ``tokens`` tokens on an empty engine."""
    geometry = Geometry(64, 1, 64, chunked_prefill_size=budget)
    engine = Engine(model, geometry, kv_tokens=tokens + 256, state_slots=16, record="none")
    prompt = torch.randint(model.config.vocab, [tokens], generator=torch.Generator().manual_seed(0)).tolist()
    ledger = Ledger()
    with charged(ledger):
        engine.generate("a", prompt, 1)
    return ledger.spent, engine.scheduler.steps


def rows(tokens, repeat):
    for name, sizes, budget in CASES:
        model = build_model(preset(name, **sizes))
        measure(model, min(tokens, 256), budget)  # warm up
        runs = [measure(model, tokens, budget) for _ in range(repeat)]
        spent, steps = min(runs, key=lambda run: sum(run[0].values()))
        total, kernel = sum(spent.values()), spent["kernels"]
        beside = (spent["plan"] + spent["cache"] + spent["scheduler"]) / (kernel + spent["model"])
        yield {
            "case": f"{name} {'large' if sizes else 'small'}",
            "tokens": tokens,
            "steps": steps,
            **{f"{account}_ms": round(1000 * spent[account], 2) for account in ACCOUNTS},
            "total_ms": round(1000 * total, 2),
            "overhead": f"{100 * (total - kernel) / kernel:.1f} %",
            "beside the model": f"{100 * beside:.2f} %",
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="length of the prompt")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; the fastest counts")
    parser.add_argument("--out", type=Path, help="write the table as CSV, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = []
    for row in rows(options.tokens, options.repeat):
        if not table:
            print("  ".join(f"{name:>14}" for name in row))
        print("  ".join(f"{value:>14}" for value in row.values()), flush=True)
        table.append(row)
    if options.out:
        with whole_file(options.out) as draft, draft.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
