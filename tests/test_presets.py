"""Engine bundles: the public numbers of vLLM, llama.cpp and SGLang come out (thread ids in the row ids)."""

from __future__ import annotations

import pytest

from depthchart.cache.memory import Memory
from depthchart.geometry import Geometry
from depthchart.presets import ENGINES, PRESETS, llamacpp, preset, sglang_at
from depthchart.rules import marked
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.serial import serve
from depthchart.simulate import simulate
from depthchart.tokens import Text
from depthchart.traces import load_trace
from depthchart.traces.trace import Trace, TraceRequest

VLLM_528 = Geometry(528, chunk_width=16, chunked_prefill_size=8192)


def requests(*prompts, output=()):
    return [
        TraceRequest(f"r{at}", float(at), tuple(prompt), tuple(output)) for at, prompt in enumerate(prompts)
    ]


def reuse(name, geometry, prompts, kv=1 << 20, slots=1024):
    chosen = preset(name) if isinstance(name, str) else name
    served = serve(requests(*prompts), geometry, **chosen.apply(geometry, kv, slots).settings)
    assert not served.wrong_requests
    return [one.reused_tokens for one in served.requests]


# --- vLLM ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "expected"), [(480, 0), (552, 528), (979, 528)], ids=["40696-480", "40696-552", "40696-979"]
)
def test_vllm_40696(tokens, expected):
    prompt = [(1, 0, tokens)]
    assert reuse("vllm-align", VLLM_528, [prompt, prompt]) == [0, expected]


def groups_of_eight(shared, unique):
    """64 prompts in 8 groups: the first tokens are the group's own, the rest the request's."""
    return [[(1 + at % 8, 0, shared), (100 + at, 0, unique)] for at in range(64)]


BUDGET_2048 = Geometry(528, chunk_width=16, chunked_prefill_size=2048)


@pytest.mark.parametrize(
    ("name", "shared", "hits", "depth"),
    [
        # the thread reports 52 of 64 for requests that overlap; one at a time all but the first of each group hit
        ("vllm-align", 1600, 56, 1584),
        ("vllm-align", 1500, 0, 0),
        # a junction helps from the third request on: 64 - 2 * 8 (the thread reports 40 of 64 for overlapping ones)
        ("vllm-junction", 1500, 48, 1056),
    ],
    ids=["45238-1600-600", "45238-1500-700", "37898-1500-700"],
)
def test_vllm_45238(name, shared, hits, depth):
    reused = reuse(name, BUDGET_2048, groups_of_eight(shared, 2200 - shared))
    assert sum(tokens > 0 for tokens in reused) == hits
    assert set(reused) <= {0, depth}


def test_vllm_45238_in_the_step_loop_reuses_nothing_either():
    trace = Trace("45238", tuple(requests(*groups_of_eight(1500, 700), output=[(900, 0, 4)])))
    setup = preset("vllm-align").apply(BUDGET_2048, 1 << 20, 1024)
    run = simulate(trace, BUDGET_2048, **setup.settings)
    assert run.summary()["reused_tokens"] == 0
    # the reason: KV was found, 1056 tokens of it, and the states lie at 1584 and 2112, among the request's own tokens
    assert set(run.requests["lost_tokens"].iloc[8:]) == {1056}
    assert set(run.checkpoints["depth_tokens"].dropna()) == {1584, 2112}


@pytest.mark.parametrize("tokens", [1000, 1056, 1500, 2111, 2112, 2200, 3000])
@pytest.mark.parametrize("shared", [528, 700, 1056, 1600, 2112])
def test_vllm_keeps_only_the_last_boundary_of_a_prompt_in_one_step(tokens, shared):
    """bug_reports C5: reuse > 0 iff floor(N / B) * B <= shared (B = 528)."""
    if shared > tokens - 1:
        return
    first, second = [(1, 0, shared), (2, 0, tokens - shared)], [(1, 0, shared), (3, 0, tokens - shared)]
    last = tokens // 528 * 528
    assert reuse("vllm-align", VLLM_528, [first, second])[1] == (last if last <= shared else 0)


def test_vllm_50409_a_prompt_of_whole_blocks_hits_nothing():
    prompt = [(1, 0, 1056)]
    assert reuse("vllm-align", VLLM_528, [prompt, prompt]) == [0, 0]
    assert reuse("depthchart", VLLM_528, [prompt, prompt]) == [0, 528]


def test_vllm_all_keeps_a_state_at_every_block():
    first = [(1, 0, 2200)]
    cut = [[(1, 0, 600), (2, 0, 10)], [(1, 0, 1100), (3, 0, 10)], [(1, 0, 2200), (4, 0, 10)]]
    assert reuse("vllm-all", VLLM_528, [first, *cut]) == [0, 528, 1056, 2112]
    setup = preset("vllm-all").apply(VLLM_528, 528 * 100, 20)
    assert (setup.kv_tokens, setup.state_slots) == (528 * 60, 60)  # 120 blocks, half of them for states
    # pages of 64 hold no state, which is taken as 1,024 tokens: half of 65,536 + 40 * 1,024 = 106,496 for each
    small = preset("vllm-all").apply(Geometry(64), 1 << 16, 40)
    assert (small.kv_tokens, small.state_slots) == (53_248, 52)


# --- llama.cpp ----------------------------------------------------------------------------------------------

TOKEN = Geometry(1, chunk_width=1, chunked_prefill_size=2048, track_interval=1)


def llama_24035(chosen, shared):
    """A slot with checkpoints at 9676 and 11719, then a prompt that shares ``shared`` tokens with it."""
    setup = chosen.apply(TOKEN, 1 << 15, 64)
    memory = Memory(TOKEN, setup.kv_tokens, setup.state_slots, **setup.policies)
    life = Lifecycle(memory, setup.rule)
    first = life.begin("first", Text(memory.index, [(1, 0, 11719)]))
    for end in (9676, 11719):
        life.commit_extend(life.plan_extend(first, end))
        life.checkpoint(first)
    life.finish(first)
    again = life.begin("again", Text(memory.index, [(1, 0, shared), (2, 0, 500)]))
    return again.computed


def test_llamacpp_24035_restores_the_nearest_earlier_checkpoint():
    assert llama_24035(llamacpp(), 11586) == 9676
    assert 11586 - 9676 == 1910  # the tokens that the thread reports as run again


def test_llamacpp_24035_faulty_runs_the_whole_prompt_again():
    assert llama_24035(llamacpp(restores=False), 11586) == 0
    assert (
        llama_24035(llamacpp(restores=False), 11719) == 11719
    )  # the live state at the end of the slot still serves


@pytest.mark.parametrize(
    ("edit_at", "resumes_at"),
    [(10_500, 10_000), (9_500, 9_000), (8_999, 8_000), (7_500, 0)],
    ids=["past-all", "late", "earlier", "older-than-k"],
)
def test_llamacpp_every_n_at_most_k(edit_at, resumes_at):
    """n = 1000, k = 3, a prompt of 11,000: 8000, 9000 and 10,000 stay beside the live state at 11,000."""
    prompts = [[(1, 0, 11_000)], [(1, 0, edit_at), (2, 0, 400)]]
    geometry = Geometry(1, chunk_width=1, chunked_prefill_size=1 << 14)
    assert reuse(llamacpp(1000, 3), geometry, prompts, kv=1 << 15, slots=64) == [0, resumes_at]


# --- SGLang -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "rule"),
    [
        ("2026-03-01", "chunk_grid_on_interval"),
        ("2026-08-13", "chunk_grid_on_interval"),
        ("2026-08-14", "prefix_relative_on_interval"),
        ("2026-08-20", "prefix_relative"),
        ("2026-09-11", "absolute"),
        ("2026-11-30", "dcp_gated"),
    ],
)
def test_sglang_by_date(day, rule):
    assert preset(f"sglang@{day}") is sglang_at(day)
    assert sglang_at(day).make_rule(Geometry(64), 1, 1).name == rule


DCP = Geometry(64, dcp_size=8)


@pytest.mark.parametrize(
    ("name", "sound"),
    [("sglang-before-34808", False), ("sglang-39115", True), ("sglang", True), ("depthchart", True)],
)
def test_wrong_reuse_under_dcp(name, sound):
    trace = load_trace("agentic", limit=120)
    served = serve(trace, DCP, **preset(name).apply(DCP, 1 << 19, 128).settings)
    assert (served.wrong_requests == 0) is sound
    assert served.reused_tokens > 0


def test_sglang_35412_decode_state_on_the_node_before():
    """page 64, dcp 8, interval 256: a request that ends at 900 leaves the state of 768 on the node at 512."""
    prompts = requests([(1, 0, 500)], output=[(2, 0, 401)])
    follow = TraceRequest("next", 9.0, ((1, 0, 500), (2, 0, 401), (3, 0, 50)), ())
    wrong = {
        name: serve([*prompts, follow], DCP, **preset(name).apply(DCP, 1 << 16, 64).settings).requests[1]
        for name in ("sglang-34808", "sglang-35412")
    }
    assert (wrong["sglang-34808"].reused_tokens, wrong["sglang-34808"].wrong) == (512, True)
    assert (wrong["sglang-35412"].reused_tokens, wrong["sglang-35412"].wrong) == (512, False)


def test_sglang_36935_checkpoints_outnumber_slots():
    """Three chains of 32k with a state every 2048 (16 each) on slots for 44 of these 48 states beside the running request:
    the four oldest, of chain 0 up to 8192, are gone when a fork at 8192 asks for one of them."""
    geometry = Geometry(64, chunked_prefill_size=2048)
    prompts = [*([(at, 0, 32_768)] for at in (1, 2, 3)), [(1, 0, 8192), (9, 0, 64)]]
    assert reuse("sglang", geometry, prompts, slots=46)[3] == 0
    assert reuse("sglang", geometry, prompts, slots=47)[3] == 8192
    assert reuse("depthchart", geometry, prompts, slots=46)[3] == 8192


def test_sglang_31648_refreshing_a_whole_path_keeps_the_wrong_states():
    """128 sessions of 12 turns on 512 slots, interleaved: the report sees 0.61 become 0.83."""
    import random

    dice = random.Random(0)
    turns = [session for session in range(128) for _ in range(12)]
    dice.shuffle(turns)
    seen, prompts = dict.fromkeys(range(128), 0), []
    for session in turns:
        seen[session] += 1
        prompts.append([(1 + session, 0, 640 * seen[session])])
    share = {}
    for name in ("sglang-2025-12", "sglang-before-34808"):
        reused = reuse(name, Geometry(64), prompts, kv=1 << 21, slots=512)
        share[name] = sum(reused) / sum(640 * turn for turn in range(1, 13)) / 128
    assert share["sglang-before-34808"] - share["sglang-2025-12"] > 0.1


# --- all ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_in_the_step_loop(name):
    geometry = Geometry(64)
    setup = preset(name).apply(geometry, 1 << 16, 48)
    run = simulate(load_trace("agentic", limit=12), geometry, **setup.settings)
    assert run.fault is None
    assert run.summary()["reused_tokens"] > 0
    assert not run.violations


def test_names():
    assert "depthchart" not in ENGINES
    assert set(ENGINES) < set(PRESETS)
    with pytest.raises(ValueError, match="nearest: 'vllm-align'"):
        preset("vllm-aligned")
    with pytest.raises(ValueError, match="ISO date"):
        preset("sglang@yesterday")
    with pytest.raises(ValueError, match="nearest: 2025-12-10"):
        preset("sglang@2025-01-01")
    with pytest.raises(ValueError, match="keep=0"):
        llamacpp(keep=0)


# --- marks of the application ---------------------------------------------------------------------------------


def test_a_mark_keeps_the_state_of_a_shared_anchor():
    """vllm#55697: requests share 624 tokens (39 pages of 16) and nothing after; only a state at the mark serves them."""
    geometry = Geometry(16, chunk_width=16)
    prompts = requests(*[[(1, 0, 624), (at, 0, 500)] for at in range(2, 8)])
    pools = {"kv_tokens": 1 << 14, "state_slots": 24}
    reused = [one.reused_tokens for one in serve(prompts, geometry, marked(624), **pools).requests]
    assert reused == [0] + 5 * [624]
    unmarked = [one.reused_tokens for one in serve(prompts, geometry, "absolute", **pools).requests]
    assert unmarked[1] == 0


def test_a_mark_inside_a_page_counts_for_the_page_before():
    chosen, geometry = marked(100, 700), Geometry(64)
    assert chosen(geometry, 0, 1000).depths == (64, 640, 960)
    assert chosen(geometry, 64, 650).depths == (640,)
    assert chosen(geometry, 640, 650).depths == ()
    for wrong in ((), (0,), (-5, 9)):
        with pytest.raises(ValueError, match="at least 1"):
            marked(*wrong)
