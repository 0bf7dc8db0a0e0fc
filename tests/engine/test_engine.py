"""The engine's parts: configurations, ids, pools, ranks, sampling, and the executor behind the scheduler."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from dense import dense_logits  # noqa: E402
from workloads import small_model  # noqa: E402

from depthchart import Geometry  # noqa: E402
from depthchart.cache import Memory  # noqa: E402
from depthchart.cost import LinearCost  # noqa: E402
from depthchart.device import RowTable  # noqa: E402
from depthchart.engine import (  # noqa: E402
    PRESETS,
    EmulatedRanks,
    Engine,
    ModelExecutor,
    Sampling,
    build_model,
    cold_logits,
    preset,
)
from depthchart.engine.attention import attend, plan_attention  # noqa: E402
from depthchart.engine.pools import KVPool, StatePools  # noqa: E402
from depthchart.engine.vocabulary import token_ids  # noqa: E402
from depthchart.events import Matched  # noqa: E402
from depthchart.scheduler.loop import Scheduler  # noqa: E402
from depthchart.simulate import SimulatedExecutor  # noqa: E402
from depthchart.tokens import raw  # noqa: E402
from depthchart.traces.synthesize import chat  # noqa: E402

TOLERANCE = 1e-4
G = Geometry(4, 2, 16, chunked_prefill_size=64, track_interval=16)


def ids(count, seed=0, vocab=128):
    return torch.randint(vocab, [count], generator=torch.Generator().manual_seed(seed)).tolist()


# --- configurations and weights ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pattern": ("kdaa",)}, r"pattern\[0\]='kdaa': must be one of .*; nearest: 'kda'"),
        ({"pattern": ()}, r"pattern=\(\): must have at least one block"),
        ({"heads": 3}, "heads=3: must be a multiple of kv_heads=2; nearest legal: 4"),
        ({"key_heads": 3}, "state_heads=4: must be a multiple of key_heads=3; nearest legal: 3"),
        ({"rope_dim": 5}, "rope_dim=5: must be even .* nearest legal: 4"),
        ({"conv_width": 1}, "conv_width=1: must be at least 2; nearest legal: 2"),
        ({"width": 0}, "width=0: must be at least 1; nearest legal: 1"),
    ],
)
def test_bad_configurations(change, message):
    with pytest.raises(ValueError, match=message):
        preset("kimi-linear", **change)


def test_unknown_preset():
    with pytest.raises(ValueError, match=r"preset='kimi': must be one of .*; nearest: 'kimi-linear'"):
        preset("kimi")


@pytest.mark.parametrize(
    ("name", "mixers"),
    [
        ("kimi-linear", ["kda", "kda", "kda", "mla"]),  # 3 : 1
        ("qwen3-next", ["gdn", "gdn", "gdn", "gqa"]),  # 3 : 1
        ("nemotron-h", ["mamba2", "mamba2", "mamba2", "gqa", "mamba2"]),
    ],
)
def test_patterns(name, mixers):
    assert [block for block in PRESETS[name].pattern if block != "mlp"] == mixers
    assert "mlp" in PRESETS[name].pattern


def test_weights_are_seeded():
    a, b, c = (build_model(preset("all-kinds", seed=seed)) for seed in (1, 1, 2))
    same = [torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)]
    assert all(same)
    assert not torch.equal(a.embedding, c.embedding)
    assert all(w.isfinite().all() for w in a.state_dict().values())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_text_alone_is_what_the_dense_model_says(name):
    model, text = small_model(name), ids(70)
    (right,) = dense_logits(model, [text])
    got = cold_logits(model, text)
    assert float((got - right).abs().max()) < TOLERANCE
    assert 0.5 < float(got.std()) < 2  # what the tolerances are measured against


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_greedy_text_is_no_repetition(name):
    """Otherwise equal tokens would prove little."""
    out = Engine(small_model(name), G, kv_tokens=256, state_slots=8).generate("a", ids(20), 40)
    assert len(set(out)) >= 15


# --- ids --------------------------------------------------------------------------------------------------


def test_token_ids():
    assert token_ids(raw([5, 0, 127]), 128).tolist() == [5, 0, 127]
    named = token_ids(((7, 0, 1000), (7, 10, 5)), 128)
    assert named[1000:].tolist() == named[10:15].tolist()
    assert len(set(named.tolist())) > 100
    assert named.min() >= 0
    assert named.max() < 128
    with pytest.raises(ValueError, match=r"token 1 is 128; the model knows \[0, 128\); nearest legal: 127"):
        token_ids(raw([5, 128]), 128)
    with pytest.raises(ValueError, match="token 0 is 500"):
        Engine(small_model("kimi-linear"), G, kv_tokens=64, state_slots=4).submit("a", [500], 1)


# --- pools ------------------------------------------------------------------------------------------------


def test_kv_is_interleaved_over_ranks():
    """Page 4 of 2 ranks: a tree page of 8 tokens has 4 on each; slot s lies on rank s mod 2 at s // 2."""
    config = preset("qwen3-next", pattern=("gqa",))
    pool = KVPool(config, 16, 8, ranks=2, local=(0, 1))
    values = torch.arange(4.0)[:, None, None].expand(4, *config.kv_shape("gqa"))
    pool.write(0, torch.tensor([8, 9, 10, 15]), values)
    assert pool.layers[0].shape == (2, 2, 4, 2, 32)
    assert pool.layers[0][0, 1, [0, 1], 0, 0].tolist() == [0, 2]
    assert pool.layers[0][1, 1, [0, 3], 0, 0].tolist() == [1, 3]
    assert pool.layers[0].isnan().any(-1).sum() == (16 - 4) * 2
    assert pool.rank_bytes == 8 * 2 * 32 * 4
    alone = KVPool(config, 16, 8, ranks=2, local=(1,))
    alone.write(0, torch.tensor([8, 9, 10, 15]), values)
    assert torch.equal(alone.layers[0][0].nan_to_num(-1), pool.layers[0][1].nan_to_num(-1))
    with pytest.raises(ValueError, match="page=7: must be a multiple of ranks=2; nearest legal: 8"):
        KVPool(config, 14, 7, ranks=2, local=(0, 1))


@pytest.mark.parametrize(("kind", "bound"), [("fp32", 0.0), ("bf16", 2**-8), ("int8", 1 / 254)])
def test_checkpoints_are_rounded_once(kind, bound):
    """bf16 keeps 8 bits; int8 is off by half a step of a 127th of a row's largest value."""
    pools = StatePools(preset("kimi-linear", pattern=("kda",)), 3, checkpoint_dtype=kind)
    state = torch.randn(pools.states[0][0].shape, generator=torch.Generator().manual_seed(0))
    state[0, 0] = 0.0  # a row of zeros has no scale
    pools.states[0][1], pools.windows[0][1] = state, 0.5
    pools.pack(torch.tensor([1]))
    pools.copy(torch.tensor([[1, 2]]))
    error = (pools.states[0][2] - state).abs() / state.abs().amax(-1, keepdim=True).clamp(min=1e-9)
    assert float(error.max()) <= bound
    assert (kind == "fp32") == (float(error.max()) == 0)
    assert (pools.windows[0][2] == 0.5).all()
    with pytest.raises(ValueError, match="checkpoint_dtype='fp8': must be one of fp32, bf16, int8"):
        StatePools(preset("kimi-linear"), 1, checkpoint_dtype="fp8")


# --- attention and ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_attention_on_scattered_pages(ranks):
    """A prefill row and two decode rows, pages in any order, against plain softmax attention of whole texts."""
    config = preset("qwen3-next", pattern=("gqa",))
    page, texts, starts = 16, [45, 30, 3], [20, 29, 2]
    dice = torch.Generator().manual_seed(ranks)
    table, pool = (
        RowTable(4, 64, page),
        KVPool(config, 160, page, ranks=ranks, local=range(ranks), dtype=torch.float64),
    )
    pages = torch.randperm(10, generator=dice).tolist()
    rows, kv = [], []
    for name, length in enumerate(texts):
        rows.append(table.update(str(name), [pages.pop() for _ in range(-(-length // page))]))
        kv.append(torch.randn([length, *config.kv_shape("gqa")], dtype=torch.float64, generator=dice))
        slots = table.token_slots(torch.full([length], rows[-1]), torch.arange(length))
        pool.write(0, slots, kv[-1])
    spans = list(zip(starts, texts, strict=True))
    q = torch.randn([sum(b - a for a, b in spans), 4, 16], dtype=torch.float64, generator=dice)
    plan = plan_attention(table, rows, spans, ranks, range(ranks))
    got = EmulatedRanks(ranks).merge(*attend(plan, q, pool.layers[0], 16, 0.25))
    at = 0
    for (start, end), values in zip(spans, kv, strict=True):
        for position in range(start, end):
            keys, vals = values[: position + 1].repeat_interleave(2, dim=1).split(16, dim=-1)
            weights = (torch.einsum("hk,thk->ht", q[at], keys) * 0.25).softmax(-1)
            torch.testing.assert_close(got[at], torch.einsum("ht,thk->hk", weights, vals))
            at += 1


def test_merge_by_hand():
    """Two ranks whose denominators are 1 and 3: a quarter of the first and three quarters of the second."""
    output, lse = torch.tensor([[[[4.0]]], [[[8.0]]]]), torch.tensor([[[1.0]], [[3.0]]]).log()
    assert EmulatedRanks(2).merge(output, lse).item() == pytest.approx(7.0)


def test_bytes_that_ranks_send():
    """4 ranks, 5 tokens, 2 heads of 8 numbers and one denominator: each sends 5·2·9·4 bytes to 3 others."""
    ranks = EmulatedRanks(4)
    ranks.merge(torch.zeros(4, 5, 2, 8), torch.zeros(4, 5, 2))
    assert ranks.sent_bytes == 3 * 5 * 2 * 9 * 4
    alone = EmulatedRanks(1)
    alone.merge(torch.zeros(1, 5, 2, 8), torch.zeros(1, 5, 2))
    assert alone.sent_bytes == 0
    with pytest.raises(ValueError, match="size=0: must be at least one rank; nearest legal: 1"):
        EmulatedRanks(0)


def test_ranks_must_be_those_of_the_geometry():
    with pytest.raises(ValueError, match="ranks: 4 of them, but the geometry has dcp_size=2"):
        ModelExecutor(small_model("kimi-linear"), Memory(G, 64, 4), ranks=EmulatedRanks(4))


# --- sampling ---------------------------------------------------------------------------------------------


def test_sampling_is_a_function_of_request_and_position():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    warm = Sampling(temperature=1.0, seed=3)
    assert Sampling().pick(logits, "a", 7) == int(logits.argmax())
    assert warm.pick(logits, "a", 7) == warm.pick(logits, "a", 7)
    drawn = {warm.pick(logits, "a", at) for at in range(100)}
    assert len(drawn) > 10
    assert [warm.pick(logits, "b", at) for at in range(20)] != [
        warm.pick(logits, "a", at) for at in range(20)
    ]
    few = {Sampling(temperature=5.0, top_k=3).pick(logits, "a", at) for at in range(100)}
    assert few == set(logits.topk(3).indices.tolist())
    with pytest.raises(ValueError, match=r"temperature=-1: must be at least 0"):
        Sampling(temperature=-1)


def test_sampling_follows_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0])
    counts = torch.zeros(3)
    for at in range(4000):
        counts[Sampling(temperature=1.0).pick(logits, "a", at)] += 1
    assert (counts / 4000 - logits.softmax(0)).abs().max() < 0.03  # four standard deviations


def test_seeded_text_does_not_depend_on_the_schedule():
    """Temperature 1; alone on a cold engine, and crowded on a warm one: the same words."""
    model, warm = small_model("all-kinds"), Sampling(temperature=1.0, seed=5)
    prompts = {str(n): ids(40 + n, seed=n % 3) + ids(5, seed=n) for n in range(6)}

    def engine():
        return Engine(model, G, kv_tokens=512, state_slots=16, sampling=warm, record="none", max_running=3)

    alone = {name: engine().generate(name, prompt, 20) for name, prompt in prompts.items()}
    crowded = engine()
    for name, prompt in prompts.items():
        crowded.submit(name, prompt, 20)
    crowded.run()
    assert {name: crowded.output(name) for name in prompts} == alone
    assert sum(m.tokens > 0 for m in crowded.log.of(Matched)) >= 2


# --- the executor behind the scheduler --------------------------------------------------------------------


def test_greedy_tokens_with_reuse_are_those_without():
    """Free-running conversations: nobody is told the right tokens. One warm engine, and a cold one for each turn."""
    warm = Engine(small_model("qwen3-next"), G, kv_tokens=1024, state_slots=24)
    text, reused = ids(30), 0
    for turn in range(8):
        name = f"turn{turn}"
        got = warm.generate(name, text, 17)
        cold = Engine(small_model("qwen3-next"), G, kv_tokens=1024, state_slots=24)
        assert got == cold.generate(name, text, 17)
        reused += warm.log.of(Matched)[-1].tokens
        text = text + got + ids(6, seed=turn)
    assert reused > 500


def test_the_executor_takes_the_simulators_place():
    """One trace, its outputs forced on the engine: the same schedule, event for event, as in the simulator."""
    trace = chat(
        3, requests=12, turns=(2, 4), system_tokens=(24, 24), user_tokens=(5, 30), output_tokens=(4, 20)
    )
    logs = []
    for real in (False, True):
        memory = Memory(G, 1024, 16)
        forced = SimulatedExecutor(LinearCost(), trace)
        executor = Forced(small_model("kimi-linear"), memory, forced) if real else forced
        scheduler = Scheduler(memory, executor)
        for request in trace:
            scheduler.submit(request)
        while scheduler.step() is not None:
            pass
        logs.append([entry.event for entry in scheduler.log])
        assert all(job.status == "finished" for job in scheduler.done.values())
    assert logs[0] == logs[1]


class Forced:
    """Runs the model, and samples what the trace recorded."""

    def __init__(self, model, memory, forced):
        self.model, self.forced = ModelExecutor(model, memory), forced

    def run(self, batch):
        assert set(self.model.run(batch).tokens) == set(batch.samples)
        return self.forced.run(batch)


def test_stop_tokens_end_a_request():
    engine = Engine(small_model("kimi-linear"), G, kv_tokens=256, state_slots=8)
    whole = engine.generate("a", ids(20), 12)
    engine.executor.stop = frozenset({whole[4]})
    engine.submit("b", ids(20), 12)
    engine.run()
    assert engine.output("b") == whole[: whole.index(whole[4]) + 1]


def test_rows_go_round_more_requests_than_the_table_has():
    engine = Engine(small_model("kimi-linear"), G, kv_tokens=1024, state_slots=30, max_running=2)
    for n in range(7):
        engine.submit(str(n), ids(30, seed=n), 5)
    engine.run()
    assert all(len(engine.output(str(n))) == 5 for n in range(7))


def test_what_the_engine_refuses():
    with pytest.raises(ValueError, match="record='some': must be 'none', 'sampled' or 'all'"):
        Engine(small_model("kimi-linear"), G, kv_tokens=64, state_slots=4, record="some")
    with pytest.raises(KeyError, match="'x': was never submitted"):
        Engine(small_model("kimi-linear"), G, kv_tokens=64, state_slots=4).output("x")


def test_recorded_logits_are_those_of_sampled_rows():
    engine = Engine(small_model("kimi-linear"), G, kv_tokens=128, state_slots=4)
    out = engine.generate("a", ids(20), 5)
    assert sorted(engine.logits["a"]) == [19, 20, 21, 22, 23]
    assert [int(engine.logits["a"][at].argmax()) for at in range(19, 24)] == out
