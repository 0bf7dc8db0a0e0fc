"""Time models: hand-made sums, published kernel speeds, and what a hit is worth."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from depthchart.cost import LinearCost, hit_value_s, prefill_s
from depthchart.geometry import Geometry
from depthchart.hardware import HARDWARE, Hardware
from depthchart.kernel_tables import KernelTable, Shape
from depthchart.models import MODELS
from depthchart.roofline import Efficiency, Roofline, StepTime
from depthchart.scheduler.work import Work
from depthchart.simulate import simulate
from depthchart.traces.trace import Trace, TraceRequest

sys.path.insert(0, str(Path(__file__).parent))
from tiny_model import PLAIN as TINY

KV = 64  # bytes of a token: 2 heads, key and value of 8, 16 bits
STATE = 2 * 4 * 8 * 16 * 4  # bytes of a checkpoint in float32, no convolution
SCAN = 2 * 4 * (6 * 8 * 16 + 4 * 4 * (8 + 16) + 2 / 3 * 4**2)  # operations of a prefill token, both layers
TRAFFIC = 2 * (4 * 2 * 8 + 4 * (4 * 16 + 8))  # bytes of the same
IDEAL = Efficiency(dense=1, attention=1, bandwidth=1, scan=1, step_s=0)


def machine(flops=1.0, memory=1.0, **more):
    """A device of one operation and one byte a second unless said."""
    return Hardware("toy", (("bfloat16", flops),), memory, 1e12, **more)


def ideal(flops=1.0, memory=1.0, model=TINY, **settings):
    more = {
        key: settings.pop(key)
        for key in ("link_bytes_s", "link_latency_s", "scan_chunk_s")
        if key in settings
    }
    return Roofline(
        model, machine(flops, memory, **more), efficiency=settings.pop("efficiency", IDEAL), **settings
    )


FAST = 1e30  # a rate that costs nothing


# --- by hand ----------------------------------------------------------------------------------------------


def test_prefill_operations():
    parts = ideal(memory=FAST).parts(Work(((3, 2),)))
    assert parts.dense == 2 * 1000 * 2
    assert parts.prefill_attention == 2 * 4 * 16 * (4 + 5)
    assert parts.prefill_scan == pytest.approx(2 * SCAN)
    assert parts.total == pytest.approx(parts.dense + parts.prefill_attention + parts.prefill_scan)


def test_prefill_bytes():
    parts = ideal(flops=FAST).parts(Work(((3, 2), (0, 6))))
    assert parts.dense == 2 * 1000
    assert parts.prefill_attention == (5 + 6) * KV
    assert parts.prefill_scan == pytest.approx(8 * TRAFFIC + 2 * 2 * STATE)


def test_decode_operations():
    parts = ideal(memory=FAST).parts(Work((), (5, 7)))
    assert parts.dense == 2 * 1000 * 2
    assert parts.decode_attention == 2 * 4 * 16 * 12
    assert parts.decode_scan == 2 * 2 * 4 * 6 * 8 * 16


def test_decode_bytes():
    parts = ideal(flops=FAST).parts(Work((), (5, 7)))
    assert parts.dense == 2 * 1000
    assert parts.decode_attention == 12 * KV
    assert parts.decode_scan == 2 * 2 * STATE


def test_the_longer_of_operations_and_bytes_counts():
    work = Work(((0, 2),))
    slow, quick = ideal(flops=1, memory=1).parts(work), ideal(flops=1, memory=FAST).parts(work)
    assert slow.dense == max(2 * 1000 * 2, 2 * 1000)
    assert quick.dense == 4000
    assert slow.prefill_attention == max(2 * 4 * 16 * 3, 2 * KV)


def test_chunks_of_a_delta_rule_follow_one_another():
    cost = ideal(flops=FAST, memory=FAST, scan_chunk_s=0.5)
    assert cost.step_s(Work(((0, 9), (0, 4)))) == pytest.approx(2 * 3 * 0.5)  # two layers, three chunks of 4
    wide = ideal(flops=FAST, memory=FAST, scan_chunk_s=0.5, chunk_width=128)
    assert wide.step_s(Work(((0, 129),))) == pytest.approx(2 * 2 * 0.5 * 128 / 64)
    mamba = ideal(flops=FAST, memory=FAST, scan_chunk_s=0.5, model=replace(TINY, recurrent_kind="mamba2"))
    assert mamba.step_s(Work(((0, 9),))) < 1e-6


def test_copies_overhead_and_nothing_to_do():
    cost = ideal(flops=FAST, efficiency=replace(IDEAL, bandwidth=0.5, step_s=7))
    assert cost.parts(Work(state_copies=3)) == StepTime(state_copies=3 * 2 * STATE / 0.5, overhead=7)
    assert cost.step_s(Work()) == 0


def test_shares_of_the_peak_divide_the_rates():
    work = Work(((3, 2),))
    half = ideal(memory=FAST, efficiency=Efficiency(0.5, 0.25, 1, 0.125, 0)).parts(work)
    whole = ideal(memory=FAST).parts(work)
    assert half.dense == whole.dense / 0.5
    assert half.prefill_attention == whole.prefill_attention / 0.25
    assert half.prefill_scan == pytest.approx(whole.prefill_scan / 0.125)


def test_ranks_split_work_and_memory():
    work = Work(((3, 2),), (5, 7))
    one, two = ideal().parts(work), ideal(tp=2, link_bytes_s=FAST).parts(work)
    for part in ("dense", "prefill_attention", "decode_attention", "prefill_scan", "decode_scan"):
        assert getattr(two, part) == pytest.approx(getattr(one, part) / 2), part
    assert two.communication == 0 or two.communication < 1e-20


def test_shared_tokens_spare_what_held_heads_cost():
    """Four ranks and two KV heads: each head lies twice, unless two ranks share each sequence's tokens."""
    work = Work((), (8, 8))
    held = ideal(flops=FAST, tp=4, link_bytes_s=FAST).parts(work).decode_attention
    shared = ideal(flops=FAST, tp=4, dcp=2, link_bytes_s=FAST).parts(work).decode_attention
    assert (held, shared) == (16 * KV / 2, 16 * KV / 4)


def test_traffic_between_ranks():
    cost = ideal(flops=FAST, memory=FAST, tp=2, link_bytes_s=10, link_latency_s=3)
    sums = 2 * 3 * (2 * (1 / 2) * 5 * 32 * 2 / 10 + 3)  # twice a layer, 5 tokens of 32 numbers in 16 bits
    assert cost.parts(Work(((0, 4),), (9,))).communication == pytest.approx(sums)
    shared = ideal(flops=FAST, memory=FAST, tp=2, dcp=2, link_bytes_s=10, link_latency_s=3)
    merge = 1 * (1 * 4 / 2 * 1 * 16 * 2 / 10 + 2 * 3)  # one row, one attention layer
    assert shared.parts(Work(((0, 4),), (9,))).communication == pytest.approx(sums + merge)


def test_a_format_without_units_runs_in_the_next_wider():
    a100, h100 = HARDWARE["a100"], HARDWARE["h100"]
    assert a100.peak("float4") == a100.peak("float8") == a100.peak("bfloat16") == 312e12
    assert h100.peak("float4") == h100.peak("float8") == 1978.9e12
    with pytest.raises(ValueError, match="toy has rates for bfloat16"):
        machine().peak("float32")


def test_weights_in_fewer_bits_load_faster():
    row = Work((), (1,))
    wide, narrow = (
        Roofline.of("qwen3.5-27b", "h200", weight_dtype=d).parts(row).dense for d in ("bfloat16", "float8")
    )
    assert wide == pytest.approx(54e9 / (4.8e12 * 0.8))
    assert narrow == pytest.approx(wide / 2)


# --- published numbers ------------------------------------------------------------------------------------

# Data sheets: dense bf16 TFLOP/s, TB/s, GB.
PEAKS = [
    ("h100", 989.4, 3.35, 80),
    ("h200", 989.4, 4.8, 141),
    ("b200", 2250, 7.7, 180),
    ("a100", 312, 2.039, 80),
    ("mi300x", 1307.4, 5.3, 192),
]


@pytest.mark.parametrize("row", PEAKS, ids=[row[0] for row in PEAKS])
def test_peaks_are_those_of_the_data_sheets(row):
    name, tflops, bandwidth, memory = row
    device = HARDWARE[name]
    assert device.peak("bfloat16") == pytest.approx(tflops * 1e12)
    assert (device.memory_bytes_s, device.memory_bytes) == pytest.approx((bandwidth * 1e12, memory * 1e9))
    assert device.source


def test_unknown_hardware_names_the_nearest():
    with pytest.raises(ValueError, match=r"hardware='h20': no such hardware; nearest: 'h200', 'h100'"):
        HARDWARE["h20"]
    assert "cpu" in HARDWARE


# The share of the peak by kind and the step of a chunk were chosen once to fit these rows; the spread over shapes is
# what the tests hold. One layer of gated delta net on an H200: batch, tokens, key heads, value heads, milliseconds
# of flashinfer 0.6.13 in FlashQLA's table (github.com/QwenLM/FlashQLA, benchmark_results_H200.txt).
FLASHINFER = [
    (1, 2048, 16, 64, 0.105),
    (1, 8192, 16, 64, 0.392),
    (1, 32768, 16, 64, 1.552),
    (4, 8192, 16, 64, 0.827),
    (8, 1024, 16, 64, 0.232),
    (1, 8192, 16, 32, 0.394),
    (8, 1024, 16, 32, 0.119),
    (1, 8192, 2, 8, 0.417),
    (1, 32768, 2, 8, 1.655),
]


@pytest.mark.parametrize("row", FLASHINFER, ids=[f"{b}x{t} {k}/{v}" for b, t, k, v, _ in FLASHINFER])
def test_gated_delta_net_takes_what_was_published(row):
    batch, tokens, key_heads, value_heads, ms = row
    model = replace(MODELS["qwen3.5-122b-a10b"], key_heads=key_heads, value_heads=value_heads, conv_kernel=0)
    cost = Roofline.of(replace(model, layers=48, recurrent_layers=1), "h200")
    assert cost.parts(Work(((0, tokens),) * batch)).prefill_scan * 1e3 == pytest.approx(ms, rel=0.2)


# One layer, 8192 tokens: model with the heads of the measurement, device, milliseconds, source.
OTHERS = [
    ("kimi-k3", {}, "h100", 1.51),  # FlashKDA on H800 (same cores as H100), FlagGems-vllm PR 23
    (
        "nemotron-h-8b",
        {"key_heads": 1},
        "h100",
        8.192 / 22.7,
    ),  # fused Triton kernel of width 128, vllm PR 27299
]


@pytest.mark.parametrize("row", OTHERS, ids=[f"{row[0]} on {row[2]}" for row in OTHERS])
def test_other_scans_take_what_was_published(row):
    name, change, device, ms = row
    cost = Roofline.of(replace(MODELS[name], recurrent_layers=1, conv_kernel=0, **change), device)
    assert cost.parts(Work(((0, 8192),))).prefill_scan * 1e3 == pytest.approx(ms, rel=0.1)


def test_a_whole_prefill_is_near_a_published_one():
    """Qwen3.5-0.8B, 8K tokens on an H200: 192k tokens/s measured by LightLLM with its fastest kernel. The estimate
    may be faster (it knows no kernel of this small width), by less than a half."""
    seconds = Roofline.of("qwen3.5-0.8b", "h200").step_s(Work(((0, 8192),)))
    assert 1.0 < 8192 / seconds / 192e3 < 1.5


# --- measured tables --------------------------------------------------------------------------------------

SHAPE = Shape("toy", "gdn", 2, 4, 8, 16)
POINTS = [(SHAPE, 1, 16, 1.0), (SHAPE, 1, 64, 4.0), (SHAPE, 4, 16, 2.0), (SHAPE, 4, 64, 8.0)]


@pytest.mark.parametrize(
    ("batch", "tokens", "seconds"),
    [
        (1, 16, 1.0),
        (1, 32, 2.0),  # half way in the logarithms
        (4, 64, 8.0),
        (2, 16, 2.0**0.5),
        (1, 4, 1.0),  # below: the nearest point
        (1, 128, 8.0),  # above: in proportion
        (8, 64, 16.0),
    ],
)
def test_table_between_its_points(batch, tokens, seconds):
    assert KernelTable(POINTS).seconds(SHAPE, batch, tokens) == pytest.approx(seconds)


def test_table_between_heads():
    more = Shape("toy", "gdn", 8, 16, 8, 16)
    table = KernelTable([*POINTS, (more, 1, 16, 4.0)], "lab.csv", {SHAPE: "run 1", more: "run 2"})
    middle = Shape("toy", "gdn", 4, 8, 8, 16)
    assert table.seconds(middle, 1, 16) == pytest.approx(2.0)
    assert table.source(middle) == "lab.csv: between 4 and 16 heads; run 1; run 2"
    for other in (
        middle._replace(key_heads=8),
        middle._replace(hardware="h100"),
        Shape("toy", "gdn", 16, 32, 8, 16),
    ):
        assert table.bracket(other) == ()
        with pytest.raises(ValueError, match="was not measured"):
            table.seconds(other, 1, 16)


def test_measured_times_replace_the_estimate():
    cost = ideal(table=KernelTable(POINTS, "lab.csv"))
    assert cost.measured
    # two layers; two sequences of 32 tokens on average lie half way between 2 s (one) and 4 s (four)
    assert cost.parts(Work(((0, 40), (8, 24)))).prefill_scan == pytest.approx(2 * 2 * 2**0.5)
    assert "scan measured (lab.csv" in cost.assumptions
    split = ideal(table=KernelTable(POINTS, "lab.csv"), tp=2, link_bytes_s=1)
    assert not split.measured
    assert "lab.csv has no gdn of this shape on toy" in split.assumptions


def test_bundled_table():
    table = KernelTable.bundled()
    # the source's own numbers: scan 3.1018 and convolution 0.4664 ms a layer
    assert table.seconds(Shape("h200", "kda", 96, 96, 128, 128), 1, 8192) == pytest.approx(
        3.1018e-3 + 0.4664e-3, rel=1e-3
    )
    cost = Roofline.of("kimi-k3", "h200", tp=8, table=table)
    # 12 heads a rank: 0.6064 and 0.0716 ms
    assert cost.parts(Work(((0, 8192),))).prefill_scan == pytest.approx(69 * 0.6780e-3, rel=1e-3)
    assert Roofline.of("kimi-linear-48b-a3b", "h200", table=table).measured  # between 24 and 48 heads


HEADER = "hardware,kind,key_heads,value_heads,key_dim,value_dim,batch,tokens,seconds"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "lacks the columns hardware, kind"),
        (f"{HEADER}\ntoy,gdn,2,4,8,16,1,64,0.1\ntoy,gdn,2,4,8,16,1,64,fast\n", "line 3: could not convert"),
        (f"{HEADER}\ntoy,gdn,2,4,8,16,1,0,0.1\n", "line 2: batch=1, tokens=0"),
        (f"{HEADER}\ntoy,gdn,2,4\n", "line 2: "),
    ],
)
def test_damaged_table_says_where(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        KernelTable.read(path)


def test_table_of_ones_own(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"{HEADER},source\ntoy,gdn,2,4,8,16,1,64,0.25,bench of mine\n")
    table = KernelTable.read(path)
    assert (table.shapes, table.seconds(SHAPE, 1, 64)) == ([SHAPE], 0.25)
    assert table.source(SHAPE) == "table.csv: bench of mine"


# --- words, errors, processes -----------------------------------------------------------------------------


def test_assumptions_say_what_matters():
    words = Roofline.of("glm-5.3-flash", "h100", tp=2).assumptions
    for part in (
        "estimated, not measured",
        "2 x h100",
        "KV bfloat16",
        "dense 60%",
        "grade B",
        "experts drawn evenly",
    ):
        assert part in words
    assert "WEIGHTS DO NOT FIT: 320 GB a device, it has 80" in words
    assert "NOT FIT" not in Roofline.of("qwen3.5-27b", "h100").assumptions
    assert "token by token" in Roofline.of("jamba-1.5-mini", "h100").assumptions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 8, "dcp": 3}, "dcp=3: must divide tp=8; nearest: [24]"),
        ({"tp": 7}, "tp=7: must divide the 48 value heads"),
        ({"weight_dtype": "fp8"}, "weight_dtype='fp8': must be one of"),
        ({"chunk_width": 0}, "chunk_width=0: must be at least 1"),
        ({"hardware": "cpu", "tp": 2}, "tp=2: cpu has no link"),
        ({"model": "qwen3.8-2.4t-a95b", "tp": 8}, "hidden size of qwen3.8-2.4t-a95b is not known"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Roofline.of(**{"model": "qwen3.5-27b", "hardware": "h200"} | settings)


def test_bad_shares_are_refused():
    with pytest.raises(ValueError, match=r"dense=60: must be above 0 and at most 1; nearest: 1"):
        Efficiency(dense=60)
    with pytest.raises(ValueError, match="step_s=-1"):
        Efficiency(step_s=-1)


def test_every_model_runs_on_every_device():
    work = Work(((4096, 512),), (1000, 30000), 1)
    for device in HARDWARE.values():
        for model in MODELS.values():
            parts = Roofline(model, device).parts(work)
            assert min(parts) >= 0
            assert parts.dense > 0
            assert parts.prefill_scan > 0


def test_a_cost_model_travels_to_other_processes():
    cost = Roofline.of("kimi-k3", "h200", tp=8, dcp=8, table=KernelTable.bundled())
    work = Work(((0, 1000),), (5000,))
    assert pickle.loads(pickle.dumps(cost)).step_s(work) == cost.step_s(work)


# --- what a hit is worth ----------------------------------------------------------------------------------

FLAT = LinearCost(base_s=1, prefill_token_s=0.1, decode_row_s=0, context_token_s=0, state_copy_s=0.5)


def test_prefill_in_steps():
    assert prefill_s(FLAT, 25, step_tokens=10) == pytest.approx(3 * 1 + 2.5)
    assert prefill_s(FLAT, 0) == 0
    assert prefill_s(FLAT, 5, before=1000) == pytest.approx(1.5)


def test_hit_value_by_hand():
    # whole prompt: 3 steps and 30 tokens; with the hit 1 step, 10 tokens and a copy
    assert hit_value_s(FLAT, 30, 20, step_tokens=10) == pytest.approx((3 + 3) - (1 + 1 + 0.5))
    assert hit_value_s(FLAT, 30, 0) == 0
    assert hit_value_s(FLAT, 10, 1, step_tokens=10) == pytest.approx(0.1 - 0.5)  # not worth its copy
    assert hit_value_s(FLAT, 30, 5, step_tokens=10) == pytest.approx((3 + 3) - (3 + 2.5 + 0.5))


def test_hit_value_by_roofline():
    """Three quarters of a long prompt save more than three quarters of its weights' work, less than all."""
    cost = Roofline.of("qwen3.5-27b", "h200")
    saved, whole = hit_value_s(cost, 32768, 24576), prefill_s(cost, 32768)
    dense = 2 * 27e9 * 24576 / (989.4e12 * 0.6)
    assert dense < saved < whole


@pytest.mark.parametrize(("prompt", "hit", "near"), [(10, 10, 9), (10, -1, 0)])
def test_impossible_hits_are_refused(prompt, hit, near):
    with pytest.raises(ValueError, match=rf"hit_tokens={hit}: .*nearest: {near}"):
        hit_value_s(FLAT, prompt, hit)


def test_impossible_prefills_are_refused():
    with pytest.raises(ValueError, match="tokens=-1"):
        prefill_s(FLAT, -1)
    with pytest.raises(ValueError, match="step_tokens=0"):
        prefill_s(FLAT, 1, step_tokens=0)


def test_a_simulated_hit_arrives_earlier_by_its_value():
    """A second prompt goes on from the first: it finds the checkpoint at 4096, and its first token comes earlier than
    it would without by what that hit is worth."""
    cost = Roofline.of("qwen3.5-27b", "h200", tp=2)
    first = TraceRequest("a", 0.0, ((1, 0, 4096),), ((3, 0, 4),))
    second = TraceRequest("b", 60.0, ((1, 0, 4096), (2, 0, 2000)), ((4, 0, 4),))
    trace = Trace("goes on", (first, second))
    run = simulate(trace, Geometry(page_size=64), "page_exact", kv_tokens=65536, state_slots=16, cost=cost)
    assert run.assumptions == cost.assumptions
    table = run.requests.set_index("request")
    wait = table["first_token_s"] - table["arrival_s"]
    snapshot = 2 * cost.model.rank_state_bytes(2) / (4.8e12 * 0.8)  # each prefill writes one
    assert wait["a"] == pytest.approx(prefill_s(cost, 4096) + snapshot)
    assert wait["b"] == pytest.approx(prefill_s(cost, 6096) - hit_value_s(cost, 6096, 4096) + snapshot)
    assert wait["b"] < wait["a"]
