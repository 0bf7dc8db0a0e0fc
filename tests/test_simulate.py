"""Simulated runs: arithmetic of small ones, and what events and frames tell of larger ones."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from depthchart import columns, frames
from depthchart.cache.memory import Memory
from depthchart.cost import LinearCost
from depthchart.events import Donated, EventLog, NodeAdded, Violation
from depthchart.geometry import Geometry
from depthchart.redraw import redraw
from depthchart.scheduler.loop import Scheduler
from depthchart.scheduler.reserve import OutputReserve
from depthchart.scheduler.work import Work
from depthchart.simulate import SimulatedExecutor, simulate
from depthchart.tokens import slice_runs
from depthchart.traces import Trace, TraceRequest, load_trace
from depthchart.traces.trace import canonical, common_prefix

SMALL = Geometry(4, chunk_width=4, chunked_prefill_size=16, track_interval=8)
SEED = Geometry(64, dcp_size=8, chunk_width=64, chunked_prefill_size=640)
ONE_SECOND = LinearCost(base_s=1.0, prefill_token_s=0, decode_row_s=0, context_token_s=0, state_copy_s=0)


def request(number, tokens, output=1, at=0.0, segment=None, **more):
    prompt = ((segment or 100 + number, 0, tokens),)
    return TraceRequest(f"r{number}", at, prompt, ((1000 + number, 0, output),) if output else (), **more)


def trace(*requests):
    return Trace("small", requests)


@pytest.fixture(scope="module")
def agentic():
    """200 requests on tight pools: evictions and retractions happen."""
    return simulate(
        load_trace("agentic", limit=200),
        Geometry(64, dcp_size=8, chunk_width=64),
        kv_tokens=24_576,
        state_slots=24,
    )


def test_times_by_hand():
    run = simulate(trace(request(1, 10, 3, at=5.0)), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND)
    (row,) = run.requests.to_dict("records")
    assert row["arrival_s"] == row["admitted_s"] == 5.0
    assert row["first_token_s"] == 6.0
    assert row["finished_s"] == 8.0
    assert (row["prompt_tokens"], row["output_tokens"], row["status"]) == (10, 3, "finished")
    assert run.end_s == 8.0
    assert run.steps["duration_s"].tolist() == [1.0, 1.0, 1.0]


def test_linear_cost_by_hand():
    cost = LinearCost(base_s=1, prefill_token_s=10, decode_row_s=100, context_token_s=1000, state_copy_s=7)
    # 4 prefill tokens after 6: contexts 6, 7, 8, 9 and half of each token itself = 6 * 4 + 4 * 4 / 2 = 32
    work = Work(prefill=((6, 4),), decode=(20, 30), state_copies=2)
    assert cost.step_s(work) == 1 + 4 * 10 + 2 * 100 + 1000 * (32 + 50) + 2 * 7


def test_h_c_and_lost_by_hand():
    """The KV of r1 reaches 16 tokens, its states 8 (prefill of 10) — r2 shares 15 tokens: H 12, C 8."""
    first = request(1, 10, 7, segment=7)
    shared = ((7, 0, 10), (1001, 0, 5), (9, 0, 5))
    second = TraceRequest("r2", 50.0, shared, ((1002, 0, 1),))
    run = simulate(trace(first, second), SMALL, kv_tokens=128, state_slots=8, cost=ONE_SECOND)
    # r1 computes 10 + 6 = 16 tokens; the decode checkpoint at 16 takes the KV [8, 16) into the tree with it
    row = run.requests.set_index("request").loc["r2"]
    assert (row["kv_hit_tokens"], row["reused_tokens"], row["lost_tokens"]) == (12, 8, 4)


@pytest.mark.parametrize(
    ("mode", "arrival"),
    [("trace", 1.0), ("causal", 3.0), ("closed", 3.5)],
)
def test_arrivals(mode, arrival):
    """r1 runs from 0 to 3 s; r2 follows it, recorded at 1 s, with half a second of thinking."""
    second = request(2, 5, at=1.0, after="r1", think_s=0.5)
    run = simulate(
        trace(request(1, 5, 3), second), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND, arrivals=mode
    )
    row = run.requests.set_index("request").loc["r2"]
    assert row["arrival_s"] == arrival


def test_a_request_that_comes_in_the_middle_of_a_step_waits_from_then_on():
    """r1's prefill runs from 0 to 1 s; r2 comes at 0.25 s, is seen at 1 s and has its token at 2 s."""
    run = simulate(
        trace(request(1, 5), request(2, 5, at=0.25)), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND
    )
    row = run.requests.set_index("request").loc["r2"]
    assert (row["arrival_s"], row["admitted_s"], row["first_token_s"]) == (0.25, 1.0, 2.0)
    assert run.summary()["ttft_mean_s"] == (1.0 + 1.75) / 2


def test_reuse_is_a_share_of_what_was_admitted():
    """r2 repeats r1's 9 tokens and reuses 8; r3 can never fit and counts nowhere."""
    requests = (request(1, 9, segment=7), request(2, 9, at=5.0, segment=7), request(3, 999, at=9.0))
    summary = simulate(trace(*requests), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND).summary()
    assert (summary["requests"], summary["finished"], summary["rejected"]) == (3, 2, 1)
    assert (summary["prompt_tokens"], summary["reused_tokens"], summary["reuse"]) == (18, 8, 8 / 18)


def test_a_state_that_inherited_an_error_is_misplaced_too():
    """r3 goes on from r2's wrong state and donates at 1024: the state has read 1024 + 64 tokens, and the frame,
    the tree and the events say the same."""
    requests = (
        request(1, 576),
        request(2, 604, 2, segment=50),
        request(3, 1100, 1, at=100.0, segment=50),
    )
    run = simulate(
        trace(*requests),
        SEED,
        "prefix_relative",
        kv_tokens=8192,
        state_slots=16,
        cost=ONE_SECOND,
        strict=False,
    )
    row = run.checkpoints.query("request == 'r3' and depth_tokens == 1024").iloc[0]
    assert (row["state_depth_tokens"], row["node_end_tokens"], row["outcome"]) == (1088, 1024, "misplaced")
    wrong = {
        entry.event.node_id for entry in run.log if isinstance(entry.event, Donated) and not entry.event.fits
    }
    assert wrong == set(run.checkpoints.query("outcome == 'misplaced'")["node_id"])
    nodes = run.nodes().set_index("node_id")
    assert nodes.loc[row["node_id"], "status"] == "misplaced"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_step_must_take_a_sensible_time(seconds):
    class Broken:
        assumptions = "broken"

        def step_s(self, work):
            return seconds

    with pytest.raises(ValueError, match=r"seconds=.*: a step must take a finite time"):
        simulate(trace(request(1, 5)), SMALL, kv_tokens=64, state_slots=8, cost=Broken())


def test_a_rejected_request_lets_its_followers_come():
    run = simulate(
        trace(request(1, 100), request(2, 5, at=0.0, after="r1")),
        SMALL,
        kv_tokens=64,
        state_slots=8,
        cost=ONE_SECOND,
    )
    assert run.requests.set_index("request")["status"].to_dict() == {"r1": "rejected", "r2": "finished"}


def test_strict_stops_and_lenient_goes_on():
    """r1 takes 576 of the step's 640 tokens, so r2 is cut at 64: the seed bug. r3 then matches r2's node."""
    requests = (
        request(1, 576),
        request(2, 604, 2, segment=50),
        request(3, 700, 1, at=100.0, segment=50),
    )
    pools = {"kv_tokens": 8192, "state_slots": 16, "cost": ONE_SECOND}
    strict = simulate(trace(*requests), SEED, "prefix_relative", **pools)
    assert strict.fault.kind == "MisplacedStateError"
    assert strict.fault.request == "r2"
    assert "576" in strict.fault.message
    assert strict.violations == []  # the refusal left the books in order
    lenient = simulate(trace(*requests), SEED, "prefix_relative", strict=False, **pools)
    assert lenient.fault is None
    assert set(lenient.requests["status"]) == {"finished"}
    (wrong,) = frames.wrong_reuse(lenient.log).to_dict("records")
    assert (wrong["request"], wrong["reused_tokens"], wrong["state_depth_tokens"]) == ("r3", 512, 576)
    sound = simulate(trace(*requests), SEED, "absolute", **pools)
    assert sound.fault is None
    assert not sound.log.of(Violation)
    assert len(frames.wrong_reuse(sound.log)) == 0


def test_the_same_run_twice_is_the_same():
    def once():
        run = simulate(
            load_trace("agentic", limit=40), SEED, kv_tokens=65_536, state_slots=64, policy="random", seed=5
        )
        return [entry.event for entry in run.log]

    assert once() == once()


def test_tight_pools_are_used_hard_and_stay_sound(agentic):
    summary = agentic.summary()
    assert summary["finished"] == 200
    assert summary["violations"] == 0
    assert agentic.violations == []
    assert (agentic.events["event"] == "NodeRemoved").sum() > 50
    assert 0 < summary["reused_tokens"] < summary["prompt_tokens"]


def test_tokens_are_conserved(agentic):
    """Every prompt token was reused or run through a prefill step; retracted requests run some again."""
    requests, steps = agentic.requests, agentic.steps
    computed = int(steps["prefill_tokens"].sum())
    once = int((requests["prompt_tokens"] - requests["reused_tokens"]).sum())
    if not requests["retractions"].sum():
        assert computed == once
    else:
        assert computed >= once
    decoded = int(steps["decode_rows"].sum())
    assert decoded <= int(requests["output_tokens"].sum())


def test_pools_never_exceed_their_size(agentic):
    steps = agentic.steps
    assert (steps["free_kv_tokens"] + steps["evictable_kv_tokens"] <= 24_576).all()
    assert (steps["free_state_slots"] + steps["evictable_state_slots"] <= 24).all()
    assert (
        (steps[["free_kv_tokens", "evictable_kv_tokens", "free_state_slots", "evictable_state_slots"]] >= 0)
        .all()
        .all()
    )


def test_steps_do_not_overlap(agentic):
    start, length = (agentic.steps[name].to_numpy() for name in ("time_s", "duration_s"))
    assert (start[1:] >= start[:-1] + length[:-1] - 1e-9).all()


def brute_seen(requests):
    """For each request the longest common prefix with any earlier one's prompt and reply but for its last token."""
    before = []
    for request in requests:
        yield max((common_prefix(request.prompt, whole) for whole in before), default=0)
        whole = canonical((*request.prompt, *request.output))
        before.append(slice_runs(whole, 0, request.prompt_tokens + max(0, request.output_tokens - 1)))


def test_each_request_tells_the_best_possible_hit():
    """Requests far apart in time, so that the order of the trace is the order of serving."""
    loaded = load_trace("agentic", limit=60)
    apart = replace(
        loaded, requests=tuple(replace(r, arrival_s=1000.0 * at, after=None) for at, r in enumerate(loaded))
    )
    run = simulate(apart, Geometry(64, 2), kv_tokens=1 << 16, state_slots=8)
    table, seen = run.requests, list(brute_seen(apart))
    assert list(table["seen_tokens"]) == seen
    possible = [min(tokens, r.prompt_tokens - 1) // 128 * 128 for tokens, r in zip(seen, apart, strict=True)]
    assert list(table["possible_tokens"]) == possible
    assert (table["lost_tokens"] == table["kv_hit_tokens"] - table["reused_tokens"]).all()
    assert (table["reused_tokens"] <= table["kv_hit_tokens"]).all()
    assert (table["kv_hit_tokens"] <= table["possible_tokens"]).all()
    told = run.summary()
    assert (told["possible_tokens"], told["seen_tokens"]) == (sum(possible), sum(seen))
    assert told["kv_hit_tokens"] - told["reused_tokens"] == told["lost_tokens"] > 0


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "lof"])
def test_no_order_of_admission_reuses_more_than_is_possible(policy):
    table = simulate(
        load_trace("agentic", limit=80), Geometry(64), kv_tokens=1 << 16, state_slots=24, policy=policy
    ).requests
    assert (table["kv_hit_tokens"] <= table["possible_tokens"]).all()


def test_times_of_one_request_by_hand():
    """A second a step: 40 prompt tokens in 16 a step take three, of which the last gives the first token; five more tokens
    take five."""
    run = simulate(trace(request(1, 40, output=6)), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND)
    told = run.summary()
    assert (told["ttft_mean_s"], told["tpot_mean_s"], told["simulated_s"]) == (3.0, 1.0, 8.0)
    assert (told["prompt_tokens_per_s"], told["output_tokens_per_s"]) == (40 / 8, 6 / 8)
    alone = simulate(
        trace(request(1, 40, output=1)), SMALL, kv_tokens=64, state_slots=8, cost=ONE_SECOND
    ).summary()
    assert alone["tpot_mean_s"] is None


def test_the_histogram_of_hits_by_hand():
    """Page 64: bins 0, below a page, then 64, 128, 256, ...; the request that was never admitted counts nowhere."""
    table = pd.DataFrame(
        {"kv_hit_tokens": [0, 64, 200, 256, None], "reused_tokens": [0, 0, 64, 256, None],
         "lost_tokens": [0, 64, 136, 0, None]}
    )  # fmt: skip
    assert frames.hits(table, 64).to_dict("list") == {
        "from_tokens": [0, 1, 64, 128, 256],
        "to_tokens": [1, 64, 128, 256, 512],
        "kv_hit_requests": [1, 0, 1, 1, 1],
        "reused_requests": [2, 0, 1, 0, 1],
        "lost_requests": [2, 0, 1, 1, 0],
    }
    assert frames.hits(table.iloc[4:], 1).to_dict("list")["reused_requests"] == [0]


def test_a_saved_run_keeps_what_was_possible(agentic, tmp_path):
    again = type(agentic).load(agentic.save(tmp_path))
    pd.testing.assert_frame_equal(again.requests, agentic.requests)
    assert again.hits[["reused_requests"]].sum().item() == len(agentic.requests)


@pytest.mark.parametrize("frame", ["REQUESTS", "HITS", "STEPS", "EVENTS", "CHECKPOINTS", "NODES"])
def test_frames_have_the_promised_columns(agentic, frame):
    table = {
        "REQUESTS": agentic.requests,
        "HITS": agentic.hits,
        "STEPS": agentic.steps,
        "EVENTS": agentic.events,
        "CHECKPOINTS": agentic.checkpoints,
        "NODES": agentic.nodes(),
    }[frame]
    assert tuple(table.columns) == getattr(columns, frame)
    assert len(table)
    empty = {
        "REQUESTS": frames.requests([]),
        "HITS": frames.hits(frames.requests([]), 64),
        "STEPS": frames.steps([]),
        "EVENTS": frames.events([]),
        "CHECKPOINTS": frames.checkpoints([]),
        "NODES": frames.nodes(redraw([])),
    }[frame]
    assert tuple(empty.columns) == getattr(columns, frame)


def test_checkpoints_account_for_every_donation(agentic):
    table = agentic.checkpoints
    assert set(table["outcome"]) <= set(columns.OUTCOMES)
    assert (table["outcome"] == "donated").sum() == len(agentic.log.of(Donated))
    donated = table[table["outcome"] == "donated"]
    assert (donated["depth_tokens"] == donated["node_end_tokens"]).all()
    assert table.loc[table["outcome"] == "refused", "reason"].str.len().gt(0).all()
    assert "pending" not in set(table["outcome"])


def test_redrawing_at_any_step_gives_the_live_tree():
    """After every step: the tree redrawn from the events equals the tree in memory, node by node."""
    trace_ = load_trace("agentic", limit=60)
    log = EventLog()
    memory = Memory(Geometry(64, dcp_size=8, chunk_width=64), 24_576, 24, emit=log)
    loop = Scheduler(
        memory, SimulatedExecutor(LinearCost(), trace_), log=log, reserve=OutputReserve(0.2, 0.2)
    )
    for asked in trace_:
        loop.submit(asked)
    compared = 0
    while not loop.idle:
        loop.step()
        if loop.steps % 25:
            continue
        view = redraw(log)
        live = {node.node_id: node for node in memory.tree.root.walk()}
        assert set(view.nodes) == set(live)
        for number, node in live.items():
            drawn = view.nodes[number]
            parent = node.parent.node_id if node.parent is not memory.tree.root else -1
            assert (drawn.start, drawn.end, drawn.parent_id) == (node.start, node.end, parent)
            assert (drawn.kv_locks, drawn.state_locks) == (node.kv_locks, node.state_locks)
            assert (drawn.state_depth is None) == (node.state is None)
            assert drawn.had_state == node.had_state
            if node.state is not None:
                assert drawn.state_depth == memory.states.tags[node.state].depth
        compared += len(live)
    assert compared > 200


def test_nodes_at_a_time(agentic):
    assert len(agentic.nodes(-1.0)) == 0
    added = [entry.time_s for entry in agentic.log if isinstance(entry.event, NodeAdded)]
    first = agentic.nodes(added[0])
    assert len(first) >= 1
    assert first["created_s"].max() <= added[0]
    assert agentic.nodes(agentic.end_s).equals(agentic.nodes())


def test_a_summary_is_json(agentic):
    assert json.loads(json.dumps(agentic.summary()))["requests"] == 200
    assert "agentic" in repr(agentic)
    assert "<table" in agentic._repr_html_()
    assert {"depthchart", "commit", "python", "numpy", "device", "made"} <= set(agentic.provenance)
    assert "assumed" in agentic.assumptions


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"arrivals": "open"}, r"arrivals='open': must be one of causal, trace, closed"),
        ({"rule": "prefix"}, r"rule='prefix': no such rule"),
        ({"policy": "lifo"}, r"policy='lifo': no such queue policy"),
        ({"eviction": "lur"}, r"eviction='lur': must be one of lru"),
        ({"kv_tokens": 3}, r"kv_tokens=3: must hold at least one page; nearest legal: 4"),
        ({"state_slots": 0}, r"state_slots=0: must be positive"),
        ({"state_slots": 2}, r"state_slots=2: .*nearest legal: 4"),
        ({"arrivals": "closd"}, r"arrivals='closd': .*nearest: 'closed'"),
        ({"eviction": "fifi"}, r"eviction='fifi': .*nearest: 'fifo'"),
        ({"rule": None}, r"rule=None: must be a rule or its name"),
        ({"max_running": 1.5}, r"max_running=1\.5: must be a positive whole number"),
        ({"max_states_per_path": 1.5}, r"max_states_per_path=1\.5: must be a whole number"),
        ({"max_running": -1}, r"max_running=-1: must be positive; nearest legal: 1"),
        ({"max_states_per_path": 0}, r"max_states_per_path=0: must be a whole number of at least 1, or None"),
    ],
)
def test_bad_settings(kwargs, words):
    settings = {"kv_tokens": 64, "state_slots": 8, **kwargs}
    with pytest.raises(ValueError, match=words):
        simulate(trace(request(1, 5)), SMALL, **settings)


def test_a_trace_must_be_one():
    with pytest.raises(ValueError, match="trace='agentic': must be a Trace; load_trace reads one"):
        simulate("agentic", SMALL, kv_tokens=64, state_slots=8)


def test_a_refusal_names_the_deepest_node_that_its_request_had_reached():
    """The seed example: at 64 there is no node yet; the second request goes on from the node at 512 and is refused there."""
    from depthchart.cases.one_path import one_path

    path = one_path(Geometry(64, dcp_size=8, chunk_width=64), "absolute")
    refused = path.checkpoints[path.checkpoints["outcome"].eq("refused")]
    (node,) = path.nodes["node_id"]
    assert refused["request"].tolist() == ["first", "second"]
    assert refused["node_id"].isna().tolist() == [True, False]
    assert refused["node_id"].iloc[1] == node
    assert path.nodes["end_tokens"].tolist() == [512]
