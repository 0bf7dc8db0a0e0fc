"""Random multi-turn workloads on tight pools, run through the engine, every row of logits kept."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from depthchart import Geometry
from depthchart.cache.eviction import POLICIES
from depthchart.engine import PRESETS, Engine, build_model, preset
from depthchart.engine.executor import Logits
from depthchart.events import (
    Aborted,
    Donated,
    Extended,
    Matched,
    NodeRemoved,
    Retracted,
    StateDropped,
    Tracked,
)
from depthchart.scheduler.reserve import OutputReserve

VOCAB = 128
SMALL = {"vocab": VOCAB, "width": 32, "mlp_width": 48, "heads": 2, "kv_heads": 1, "head_dim": 8, "latent_dim": 12,
         "state_heads": 2, "key_dim": 8, "value_dim": 12, "half_lives": (3.0, 300.0)}  # fmt: skip

GEOMETRIES = [
    Geometry(8, 1, 8, chunked_prefill_size=32, track_interval=8),  # tree page 8
    Geometry(4, 2, 8, chunked_prefill_size=40, track_interval=16),  # 8, cuts inside the tree page
    Geometry(2, 4, 4, chunked_prefill_size=24, track_interval=8),  # 8
    Geometry(2, 8, 16, chunked_prefill_size=48, track_interval=16),  # 16
    Geometry(8, 2, 4, chunked_prefill_size=64, track_interval=16),  # 16: page above chunk
    Geometry(2, 3, 4, chunked_prefill_size=30, track_interval=12),  # 6 and 4: neither divides the other
    Geometry(2, 1, 4, index_pool=4, chunked_prefill_size=20, track_interval=8),  # widened without DCP
    Geometry(1, 8, 8, chunked_prefill_size=17, track_interval=8),  # 8: one token a rank
    Geometry(16, 4, 16, chunked_prefill_size=96, track_interval=64),  # 64: the seed's shape, a quarter
]
SOUND = ["absolute", "page_exact", "vllm_align", "marconi"]
FROM_THE_PREFIX = ["chunk_grid", "prefix_relative", "dcp_gated"]


def is_sound(rule, g):
    if rule in SOUND or g.tree_page == g.page_size:
        return True
    return rule == "dcp_gated" and g.dcp_size > 1


CHOICES = [(g, rule) for g in GEOMETRIES for rule in SOUND + FROM_THE_PREFIX if is_sound(rule, g)]


@dataclass
class Lived:
    """One workload's engine after its end, the texts of all requests, every row of logits in the order of the run."""

    engine: Engine
    rows: list[Logits] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)

    def happened(self):
        """How often each thing happened that could spoil a state."""
        log = self.engine.log
        extends = log.of(Extended)
        return {
            "reuse": sum(m.tokens > 0 for m in log.of(Matched)),
            "branch points": sum(m.branch is not None for m in log.of(Matched)),
            "evicted states": len(log.of(StateDropped)),
            "evicted pages": len(log.of(NodeRemoved)),
            "retractions": len(log.of(Retracted)),
            "aborts": len(log.of(Aborted)),
            "chunk cuts": len(extends) - len({e.request for e in extends}),
            "cuts inside a tree page": sum(e.end % self.engine.geometry.tree_page > 0 for e in extends),
            "decode checkpoints": sum(t.kind == "decode" for t in log.of(Tracked)),
            "donations": len(log.of(Donated)),
        }


_MODELS = {}


def small_model(name, seed=0, *, dtype=torch.float32, device="cpu", **sizes):
    """Models are frozen: one of each kind serves all tests."""
    key = name, seed, dtype, device, tuple(sizes.items())
    if key not in _MODELS:
        heads = {"kimi-linear": 2}.get(name, 1)
        config = preset(name, seed=seed, key_heads=heads, **{**SMALL, **sizes})
        _MODELS[key] = build_model(config, chunk_width=16, dtype=dtype, device=device)
    return _MODELS[key]


def live(seed, *, turns=3, model_options=None, **options):
    """Run workload ``seed`` to its end."""
    dice = random.Random(seed)
    geometry, rule = dice.choice(CHOICES)
    model = small_model(dice.choice(sorted(PRESETS)), **(model_options or {}))
    longest = 40 + 3 * geometry.tree_page
    tight = dice.random() < 0.5  # decoding requests outgrow the pool: somebody is retracted
    output = 40 if tight else 16
    pages = -(-(longest + output) * (1 if tight else 2) // geometry.tree_page) + dice.randrange(
        1, 2 if tight else 14
    )
    engine = Engine(
        model,
        geometry,
        rule,
        kv_tokens=pages * geometry.tree_page,
        state_slots=dice.randrange(4, 18),
        max_running=6 if tight else dice.choice([2, 3, 6]),
        mixed=dice.random() < 0.5,
        policy=dice.choice(["fcfs", "fcfs", "lpm"]),
        reserve=OutputReserve(0.02, 0.01) if tight else OutputReserve(1.0, 1.0),
        spare_pages=dice.randrange(2),
        memory_options={
            "eviction": dice.choice(sorted(POLICIES)),
            "keep_tombstones": dice.random() < 0.5,
            "max_states_per_path": dice.choice([None, None, 1, 2]),
        },
        **options,
    )
    lived = Lived(engine)
    engine.executor.watch, engine.executor.watch_all = lived.rows.append, True
    _drive(lived, dice, longest, turns, output)
    done = engine.scheduler.done
    lived.texts = {name: engine.text(name) for name in done if done[name].status != "rejected"}
    return lived


def _drive(lived, dice, longest, turns, output):
    """Sessions begin with one of two documents, part from it anywhere, and go on from their own replies."""
    engine = lived.engine
    documents = [[dice.randrange(VOCAB) for _ in range(2 * longest)] for _ in range(2)]
    sessions = {}
    waiting = []
    for number in range(dice.randrange(3, 6)):
        shared = dice.randrange(longest)
        fresh = [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 12))]
        sessions[number] = dice.choice(documents)[:shared] + fresh
        waiting += [number] * dice.randrange(1, turns + 1)
    dice.shuffle(waiting)
    busy = {}
    while waiting or busy:
        for number in [n for n in dict.fromkeys(waiting) if n not in busy.values()]:
            if dice.random() < 0.5:
                waiting.remove(number)
                name = f"s{number}t{len(engine.scheduler.done) + len(busy)}"
                key = "lora" if number == 2 else None
                engine.submit(name, sessions[number], dice.randrange(output), extra_key=key)
                busy[name] = number
        engine.step()
        engine.scheduler.lifecycle.check_invariants()
        _poison_free(engine)
        if busy and dice.random() < 0.01:
            name = dice.choice(sorted(busy))
            if name not in engine.scheduler.done:
                engine.scheduler.abort(name)
        for name in [name for name in busy if name in engine.scheduler.done]:
            number = busy.pop(name)
            grown = engine.text(name) + [dice.randrange(VOCAB) for _ in range(dice.randrange(1, 9))]
            sessions[number] = (
                grown if len(grown) < longest else sessions[number][: dice.randrange(1, longest)]
            )


def _poison_free(engine):
    """Whatever is free holds NaN: a read of it shows in the logits."""
    memory, executor = engine.memory, engine.executor
    for layer in executor.kv.layers:
        layer[:, torch.tensor(memory.allocator._stack[memory.allocator._top :], dtype=torch.long)] = float("nan")
    slots = torch.tensor(memory.states._free, dtype=torch.long)
    for pool in [*executor.states.states, *executor.states.windows]:
        pool[slots] = float("nan")
