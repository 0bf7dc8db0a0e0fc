"""Capacity: published balance points and host sizes, pools by arithmetic, and the verb."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from depthchart.capacity import balance_ratio, capacity, host_tier, pool_bytes, splits
from depthchart.cli import main
from depthchart.geometry import Geometry
from depthchart.models import MODELS

G = Geometry(64, chunked_prefill_size=4096)
# one attention layer of one KV head: 2 * 50 numbers of 2 bytes = 200 B a token; one layer of state: 4000 B
TINY = replace(
    MODELS["qwen3.5-9b"],
    name="tiny",
    layers=2,
    attention_layers=1,
    kv_heads=1,
    qk_dim=50,
    v_dim=50,
    recurrent_layers=1,
    key_heads=1,
    value_heads=10,
    key_dim=10,
    value_dim=10,
    conv_kernel=1,
    params=1e6,
    active_params=1e6,
)


@pytest.mark.parametrize(
    ("slots", "dcp", "ratio"),
    [(5, 1, 0.41), (5, 8, 3.27), (4, 8, 2.62)],
    ids=["sglang#32763-overlap", "sglang#32763-dcp8", "sglang#32763-no-overlap"],
)
def test_balance_ratio_is_the_published_one(slots, dcp, ratio):
    assert round(balance_ratio(slots, 5360, dcp, 65536), 2) == ratio


def test_pools_by_arithmetic():
    """8.4 MB, half each: 4.2 MB / 200 B = 21,000 tokens, 328 pages of 64 = 20,992; 4.2 MB / 4,000 B = 1,050 states."""
    made = capacity(TINY, G, 8.4e6, state_share=0.5, mean_context=2000, slots_per_request=5)
    assert (made.kv_bytes_per_token, made.state_bytes) == (200, 4000)
    assert (made.kv_tokens, made.state_slots) == (20_992, 1050)
    assert (made.running_by_kv, made.running_by_states, made.binds) == (10, 210, "KV")
    assert (made.checkpoints, made.outnumbered) == (20_992 // 4096, False)
    assert made.balance_ratio == pytest.approx(5 * 20 / 2000)
    assert made.balance_share == pytest.approx(0.05 / 1.05)


def test_at_the_balance_neither_pool_binds():
    first = capacity(TINY, G, 8.4e6, mean_context=2000, slots_per_request=5)
    made = capacity(TINY, G, 8.4e6, state_share=first.balance_share, mean_context=2000, slots_per_request=5)
    assert abs(made.running_by_kv - made.running_by_states) <= 1


def test_dcp_multiplies_the_tokens_and_the_balance():
    model = MODELS["kimi-linear-48b-a3b"]
    one = capacity(model, Geometry(64), 2e10, tp=4)
    four = capacity(model, Geometry(64, dcp_size=4), 2e10, tp=4)
    assert four.kv_tokens == pytest.approx(4 * one.kv_tokens, rel=1e-4)
    assert four.balance_ratio == pytest.approx(4 * one.balance_ratio)
    assert (one.minimum_reusable_tokens, four.minimum_reusable_tokens) == (64, 256)


def test_checkpoints_outnumber_slots_up_to_the_step_that_is_named():
    """sglang#36935: trouble where KV tokens over the prefill step exceed the slots."""
    small = Geometry(64, chunked_prefill_size=512)
    made = capacity(TINY, small, 4.2e6, state_share=0.02)  # 20,580 -> 20,544 tokens, 21 slots
    assert (made.kv_tokens, made.state_slots, made.checkpoints, made.outnumbered) == (20_544, 21, 40, True)
    chunk = made.no_pressure_chunk
    assert chunk is not None
    assert chunk % 64 == 0
    assert made.kv_tokens // chunk <= 21 < made.kv_tokens // (chunk - 64)


def test_host_tier_by_sequences():
    """sglang#39436: 200 prompts of 8448 in steps of 4096 make three checkpoints each and hold 1,689,600 tokens."""
    made = capacity(TINY, G, 8.4e6, mean_context=8448)
    host = host_tier(made, 200)
    assert (host.all_slots, host.leaf_slots, host.kv_tokens) == (600, 200, 1_689_600)
    assert host.all_bytes == 1_689_600 * 200 + 600 * 4000
    assert host.leaf_bytes == 1_689_600 * 200 + 200 * 4000


def test_host_split_by_device_bytes_resumes_fewer():
    made = capacity(TINY, G, 8.4e6, state_share=0.5, mean_context=8448)
    host = host_tier(made, 200)  # half of 340.32 MB for KV: 850,800 tokens, 100 sequences
    assert host.split_sequences == 100


def test_weights_are_taken_off():
    assert pool_bytes(TINY, 1e7, memory_share=0.9) == 9e6 - 2e6
    assert pool_bytes(TINY, 1e7, tp=2, weight_dtype="float8") == 9e6 - 0.5e6
    with pytest.raises(ValueError, match="do not hold the 2,000,000 B"):
        pool_bytes(TINY, 2e6)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"state_share": 1.0}, "state_share=1.0"),
        ({"mean_context": 0}, "mean_context=0"),
        ({"slots_per_request": 0}, "slots_per_request=0"),
        ({"pool_bytes": 100.0}, "holds no page of KV; nearest legal"),
    ],
)
def test_wrong_calls(more, says):
    with pytest.raises(ValueError, match=says):
        capacity(TINY, G, more.pop("pool_bytes", 8.4e6), **more)


def test_splits_move_memory_from_one_pool_to_the_other():
    made = capacity(TINY, G, 8.4e6)
    rows = splits(made, G)
    for row in rows:
        assert row["kv_tokens"] * 200 + row["state_slots"] * 4000 == pytest.approx(8.4e6)
    assert (rows[0]["state_share"], rows[-1]["state_share"]) == (0.02, pytest.approx(0.98))


def test_verb(tmp_path, capsys):
    words = ["capacity", "--model", "qwen3.5-27b", "--hardware", "h200", "--resume", "100"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "minimum reusable prefix" in text
    assert "host tier for 100 sequences" in text
    assert {path.name for path in tmp_path.iterdir()} == {"capacity.png", "capacity.json"}
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["host"]["leaf_slots"] == 100
    weights = MODELS["qwen3.5-27b"].params * 2
    assert facts["pool_bytes"] == pytest.approx(141e9 * 0.9 - weights)
    code = main(["capacity", "--model", "qwen3.5-27b", "--pool-bytes", "20GiB", "--state-share", "0.03"])
    assert code == 1
    assert "outnumber" in capsys.readouterr().out


def test_verb_says_what_is_wrong(capsys):
    assert main(["capacity", "--model", "qwen3.5-9b"]) == 2
    assert "gpu_bytes: is missing" in capsys.readouterr().err
    assert main(["capacity", "--model", "qwen3.5-9x", "--pool-bytes", "8GB"]) == 2
    assert "nearest" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["capacity", "--model", "qwen3.5-9b", "--gpu-bytes", "eighty"])
    assert "such as 80GB" in capsys.readouterr().err
