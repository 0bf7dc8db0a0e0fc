"""The catalogue of models: derived sizes against published ones, work against hand-made sums."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from depthchart.cli import main
from depthchart.models import MODELS

sys.path.insert(0, str(Path(__file__).parent))
from tiny_model import TINY

# Bytes of a KV token in 16 bits, and of a state in float32, bfloat16 and int8 (convolution always in 16 bits),
# worked out from the checkpoints' configurations apart from this project.
SIZES = [
    ("kimi-linear-48b-a3b", 8_064, 43_417_600, 22_446_080, 11_960_320),
    ("kimi-k3", 27_648, 449_372_160, 232_316_928, 123_789_312),
    ("glm-5.3-flash", 11_264, 147_619_840, 76_316_672, 40_665_088),
    ("ling-3.0-flash", 8_064, 75_980_800, 39_280_640, 20_930_560),
    ("ling-3.0-tiny", 6_912, 19_537_920, 10_100_736, 5_382_144),
    ("ling-2.5-1t", 11_520, 293_601_280, 146_800_640, 73_400_320),
    ("ling-2.6-flash", 4_608, 58_720_256, 29_360_128, 14_680_064),
    ("minimax-text-01", 40_960, 293_601_280, 146_800_640, 73_400_320),
    ("qwen3-next-80b-a3b", 24_576, 77_266_944, 39_518_208, 20_643_840),
    ("qwen3.5-0.8b", 12_288, 19_537_920, 10_100_736, 5_382_144),
    ("qwen3.5-2b", 12_288, 19_537_920, 10_100_736, 5_382_144),
    ("qwen3.5-4b", 32_768, 51_511_296, 26_345_472, 13_762_560),
    ("qwen3.5-9b", 32_768, 51_511_296, 26_345_472, 13_762_560),
    ("qwen3.5-27b", 65_536, 153_944_064, 78_446_592, 40_697_856),
    ("qwen3.5-35b-a3b", 20_480, 64_389_120, 32_931_840, 17_203_200),
    ("qwen3.5-122b-a10b", 24_576, 153_649_152, 78_151_680, 40_402_944),
    ("qwen3.5-397b-a17b", 30_720, 192_061_440, 97_689_600, 50_503_680),
    ("qwen3.8-27b", 65_536, 153_944_064, 78_446_592, 40_697_856),
    ("qwen3.8-2.4t-a95b", 94_208, 587_292_672, 297_885_696, 153_182_208),
    ("nemotron-3-nano-30b-a3b", 6_144, 49_082_368, 24_965_120, 12_906_496),
    ("nemotron-3-super-120b-a12b", 8_192, 170_229_760, 86_343_680, 44_400_640),
    ("nemotron-3-ultra-550b-a55b", 12_288, 407_961_600, 206_635_008, 105_971_712),
    ("nemotron-h-8b", 16_384, 102_137_856, 51_806_208, 26_640_384),
    ("nemotron-nano-9b-v2", 16_384, 143_548_416, 72_769_536, 37_380_096),
    ("nemotron-h-56b", 40_960, 912_605_184, 459_620_352, 233_127_936),
    ("falcon-h1-0.5b", 18_432, 28_698_624, 14_542_848, 7_464_960),
    ("falcon-h1-7b", 45_056, 139_358_208, 70_152_192, 35_549_184),
    ("falcon-h1-34b", 147_456, 304_201_728, 153_206_784, 77_709_312),
    ("granite-4.0-h-small", 16_384, 152_819_712, 77_322_240, 39_573_504),
    ("zamba2-2.7b", 184_320, 72_479_232, 37_089_792, 19_395_072),
    ("zamba2-7b", 372_736, 152_243_712, 77_925_888, 40_766_976),
    ("jamba-1.5-mini", 16_384, 16_056_320, 8_716_288, 5_046_272),
    ("jamba-1.5-large", 36_864, 72_253_440, 39_223_296, 22_708_224),
    ("lfm2-1.2b", 12_288, 81_920, 81_920, 81_920),
    ("lfm2-8b-a1b", 12_288, 147_456, 147_456, 147_456),
]


@pytest.mark.parametrize("row", SIZES, ids=[row[0] for row in SIZES])
def test_sizes_of_every_model(row):
    name, kv, *states = row
    model = MODELS[name]
    assert model.kv_bytes_per_token == kv
    dtypes = ("float32", "bfloat16", "int8") if model.recurrent_kind != "shortconv" else (model.state_dtype,)
    for dtype, size in zip(dtypes, states, strict=False):
        assert replace(model, state_dtype=dtype).state_bytes == size


def test_every_model_is_in_the_table():
    assert [row[0] for row in SIZES] == list(MODELS)


def test_every_model_says_where_its_facts_come_from():
    for model in MODELS.values():
        assert model.source
        assert model.params_source
        assert model.url.startswith("https://")
        assert model.grade in ("A", "B", "C")


@pytest.mark.parametrize(
    ("name", "state_dtype", "block"),
    [
        ("qwen3.5-9b", "float32", 528),  # vllm PR 37467 and issue 40696: log of the engine
        ("qwen3.5-4b", "float32", 528),
        ("nemotron-nano-9b-v2", "bfloat16", 672),  # vllm issue 24280, when states were kept in bfloat16
    ],
)
def test_attention_block_is_the_one_that_vllm_logs(name, state_dtype, block):
    assert replace(MODELS[name], state_dtype=state_dtype).attention_block_tokens() == block


def test_blocks_of_other_models_are_among_the_published_ones():
    # blocks named in public threads about hybrid models in vLLM
    names = ("qwen3.5-0.8b", "qwen3.5-27b", "qwen3-next-80b-a3b", "qwen3.5-397b-a17b")
    assert [MODELS[name].attention_block_tokens() for name in names] == [544, 784, 1056, 2096]


def test_published_sizes():
    # kvcached PR 459, log of Qwen3.5-9B: 24 recurrent layers of raw=2146304B
    assert (MODELS["qwen3.5-9b"].recurrent_layers, MODELS["qwen3.5-9b"].layer_state_bytes) == (24, 2146304)
    # arXiv 2403.19887 and 2408.12570: 4 GB and 9 GB of KV at 256K tokens in 16 bits
    assert MODELS["jamba-1.5-mini"].kv_bytes_per_token * 262144 == 4 * 2**30
    assert MODELS["jamba-1.5-large"].kv_bytes_per_token * 262144 == 9 * 2**30
    # a public worked example for Nemotron-H 8B
    assert MODELS["nemotron-h-8b"].kv_bytes_per_token == 16384
    # vllm-ascend issue 7393, Qwen3.5-35B on 8 ranks: ssm_block_page_size=262144 (a layer, without convolution)
    bare = replace(MODELS["qwen3.5-35b-a3b"], conv_kernel=0)
    assert bare.rank_state_bytes(8) / bare.recurrent_layers == 262144
    # sglang PR 34441, 8 ranks: "one mamba slot needs 53.6 MB" (the thread names no model; Kimi-K3's geometry fits)
    assert round(MODELS["kimi-k3"].rank_state_bytes(8) / 2**20, 1) == 53.6


def test_sizes_by_hand():
    assert TINY.kv_bytes_per_token == 1 * 2 * (8 + 8) * 2
    assert TINY.layer_state_bytes == 4 * 8 * 16 * 4 + 3 * 96 * 2
    assert TINY.state_bytes == 2 * (2048 + 576)
    assert TINY.state_in_kv_tokens == 5248 / 64


@pytest.mark.parametrize(
    ("tp", "dcp", "kv", "state"),
    [
        (1, 1, 64, 5248),
        (2, 1, 32, 2624),  # one of two KV heads, two of four value heads
        (4, 1, 32, 2 * (512 + 3 * (64 // 4 + 32 // 2) * 2)),  # heads held twice: a KV head, a key head
        (4, 4, 64 / 4, 2 * (512 + 3 * (64 // 4 + 32 // 2) * 2)),  # all KV heads of every fourth token
        (4, 2, 32 / 2, 2 * (512 + 3 * (64 // 4 + 32 // 2) * 2)),  # one KV head of every second token
    ],
)
def test_sizes_of_one_rank(tp, dcp, kv, state):
    assert TINY.rank_kv_bytes_per_token(tp, dcp) == kv
    assert TINY.rank_state_bytes(tp) == state


def test_a_latent_is_shared_by_tokens_only():
    model = MODELS["kimi-k3"]
    assert model.rank_kv_bytes_per_token(8) == 24 * (512 + 64) * 2
    assert model.rank_kv_bytes_per_token(8, 8) == 24 * (512 + 64) * 2 / 8


def test_prefill_work_by_hand():
    flops = TINY.prefill_flops(2, before=3)
    assert flops.dense == 2 * 250 * 2
    assert flops.attention == 2 * 4 * (8 + 8) * (4 + 5)  # the two tokens see 4 and 5
    scan = 4 * (6 * 8 * 16 + 4 * 4 * (8 + 16) + 2 / 3 * 4**2) + 2 * 4 * 96
    assert flops.recurrent == pytest.approx(2 * 2 * scan)
    assert flops.total == pytest.approx(sum(flops))
    assert TINY.flops_per_token(5) == TINY.prefill_flops(1, 4)


def test_decode_work_by_hand():
    flops = TINY.decode_flops(5)
    assert flops == (500, 2 * 4 * 16 * 5, 2 * (4 * 6 * 8 * 16 + 2 * 4 * 96))
    latent = MODELS["kimi-linear-48b-a3b"].decode_flops(100).attention
    assert latent == 7 * 2 * 32 * (512 + 64 + 512) * 100


def test_a_query_reads_at_most_its_chosen_tokens():
    assert TINY.attended(4, 2) == 3 + 4 + 5 + 6
    few = replace(TINY, attention_topk=4)
    assert few.attended(4, 2) == 3 + 4 + 4 + 4
    assert few.attended(4, 10) == 16
    assert few.attended(4, 0) == 1 + 2 + 3 + 4


def test_parameters_that_a_batch_reads():
    assert TINY.touched_params(0) == 0
    assert TINY.touched_params(1) == 250
    assert TINY.touched_params(2) == 250 + 0.25 * 750
    assert TINY.touched_params(10_000) == pytest.approx(1000)
    assert replace(TINY, active_params=1000).touched_params(1) == 1000


# Kilo-operations a token and value head, from a survey of these kernels; key and value 128, SSD 64 heads a group.
@pytest.mark.parametrize(
    ("width", "delta", "ssd"), [(16, 115, 35), (32, 132, 37), (64, 167, 41), (128, 240, 50), (256, 404, 67)]
)
def test_scan_work_is_the_surveyed_one(width, delta, ssd):
    model = replace(MODELS["qwen3.5-27b"], key_heads=1, value_heads=1, conv_kernel=0)
    assert round(model.scan_flops(width) / 1e3) == delta
    mamba = replace(
        MODELS["nemotron-h-8b"], key_heads=1, value_heads=64, key_dim=128, value_dim=64, conv_kernel=0
    )
    assert round(mamba.scan_flops(width) / 64e3) == ssd


# Upper bound of throughput [million tokens/s and layer] at 790 TFLOP/s and 4.3 TB/s, from the same survey.
@pytest.mark.parametrize(
    ("name", "change", "bounds"),
    [
        ("qwen3.5-122b-a10b", {}, {16: 104, 32: 94, 64: 74, 128: 51, 256: 31}),
        ("kimi-k3", {}, {16: 34.9, 32: 34.9, 64: 34.9}),
        ("nemotron-h-8b", {"key_heads": 1}, {16: 125, 32: 125, 64: 125, 256: 93}),
        ("nemotron-h-8b", {"key_heads": 8}, {64: 104}),
    ],
    ids=["gdn 16/64 heads", "kda 96 heads", "ssd 1 group", "ssd 8 groups"],
)
def test_upper_bounds_of_throughput(name, change, bounds):
    model = replace(MODELS[name], conv_kernel=0, **change)
    for width, bound in bounds.items():
        seconds = max(model.scan_flops(width) / 790e12, model.scan_traffic() / 4.3e12)
        assert 1e-6 / seconds == pytest.approx(bound, abs=0.5)  # the survey rounds


def test_names_aliases_and_hub_names():
    assert MODELS["Qwen/Qwen3.5-27B"] is MODELS["qwen3.5-27b"]
    assert MODELS["minimax-m1"] is MODELS["minimax-text-01"]
    assert MODELS["MiniMaxAI/MiniMax-M1-80k"] is MODELS["minimax-text-01"]
    assert "kimi-k3" in MODELS
    assert "kimi-k4" not in MODELS


def test_unknown_model_names_the_nearest():
    with pytest.raises(ValueError, match=r"model='kimi-k4': no such model; nearest: 'kimi-k3'"):
        MODELS["kimi-k4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_dtype": "bfloat61"}, r"kv_dtype='bfloat61'.*nearest: 'bfloat16'"),
        ({"recurrent_kind": "mamba3"}, r"recurrent_kind='mamba3'.*nearest: 'mamba[12]'"),
        ({"layers": 1}, r"layers=1: must be at least attention_layers=1 and recurrent_layers=2"),
        ({"active_params": 2000}, r"active_params=2000.*at most params=1000"),
    ],
)
def test_bad_geometry_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("tp", "dcp", "message"),
    [
        (4, 3, r"dcp=3: must divide tp=4; nearest: [24]"),
        (0, 1, r"tp=0: must be at least 1"),
        (8, 16, "nearest: 8"),
    ],
)
def test_bad_ranks_are_refused(tp, dcp, message):
    with pytest.raises(ValueError, match=message):
        TINY.rank_kv_bytes_per_token(tp, dcp)


def test_ranks_must_divide_the_heads():
    with pytest.raises(ValueError, match=r"tp=3: must divide the 4 value heads of tiny; nearest: [24]"):
        TINY.rank_state_bytes(3)


# --- the command ------------------------------------------------------------------------------------------


def test_command_lists_all(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in MODELS)
    assert "sizes of the whole model" in out


def test_command_json_of_one(capsys):
    assert main(["models", "moonshotai/Kimi-K3", "--tp", "8", "--dcp", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["grade"], answer["chunk_width"]) == ("kimi-k3", "A", 64)
    derived = answer["derived"]
    assert (derived["kv_bytes_per_token"], derived["state_bytes"]) == (27648 / 8, 56171520)
    assert derived["flops_per_token"]["dense"] == 2 * 104e9


def test_command_json_of_all_leaves_out_what_cannot_be_split(capsys):
    assert main(["models", "--tp", "64", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert "nemotron-3-nano-30b-a3b" in names
    assert "kimi-k3" not in names
    assert main(["models", "--tp", "64"]) == 0
    assert (
        "left out, 64 ranks do not divide their heads: kimi-linear-48b-a3b, kimi-k3"
        in capsys.readouterr().out
    )


def test_command_text_of_one(capsys):
    assert main(["models", "qwen3.5-27b", "--tp", "2"]) == 0
    out = capsys.readouterr().out
    for words in ("32,768 B", "76,972,032 B", "784", "27 billion", "one of 2 ranks"):
        assert words in out


@pytest.mark.parametrize(
    "argv", [["models", "kimi-k4"], ["models", "--dcp", "2"], ["models", "kimi-k3", "--tp", "7"]], ids=str
)
def test_command_errors(argv, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("depthchart: error: ")


def test_catalogue_is_read_on_first_use_only():
    code = "import depthchart.models as m; assert not m.MODELS._entries; assert len(m.MODELS) == 35"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
