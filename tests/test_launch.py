"""Launch lines of sglang and vllm: what is read, where each value came from, and what is refused."""

import pytest

from depthchart.launch import LaunchError, parse_launch

SGL = "python -m sglang.launch_server "
# id, line -> engine, page, dcp, chunk, budget, interval
LINES = [
    ("seed", SGL + "--page-size 64 --dcp-size 8", "sglang", 64, 8, 64, 8192, 256),
    (
        "python3, path, env",
        "A=1 /opt/bin/python3.11 -m sglang.launch_server --page-size 64",
        "sglang",
        64,
        1,
        64,
        8192,
        256,
    ),
    (
        "sglang serve, =",
        "sglang serve --page-size=128 --chunked-prefill-size=4096",
        "sglang",
        128,
        1,
        64,
        4096,
        256,
    ),
    ("defaults", SGL, "sglang", 1, 1, 64, 8192, 256),
    ("long dcp flag", SGL + "--decode-context-parallel-size 4", "sglang", 1, 4, 64, 8192, 256),
    ("last wins", SGL + "--page-size 32 --page-size 64", "sglang", 64, 1, 64, 8192, 256),
    ("no chunking", SGL + "--chunked-prefill-size -1", "sglang", 1, 1, 64, 1 << 20, 256),
    (
        "model's chunk",
        SGL + "--model-path nvidia/Nemotron-H-8B --page-size 64",
        "sglang",
        64,
        1,
        128,
        8192,
        256,
    ),
    ("no_buffer", SGL + "--page-size 64 --mamba-scheduler-strategy no_buffer", "sglang", 1, 1, 64, 8192, 256),
    ("newline", SGL + "\\\n  --page-size 64 \\\n  --mamba-track-interval 64", "sglang", 64, 1, 64, 8192, 64),
    ("vllm", "vllm serve M --block-size 528 --max-num-batched-tokens 8192", "vllm", 528, 1, 1, 8192, 528),
    (
        "vllm dcp",
        "vllm serve M --block-size 16 -dcp 8 --max_num_batched_tokens 8k",
        "vllm",
        16,
        8,
        1,
        8000,
        128,
    ),
    ("api server", "python -m vllm.entrypoints.openai.api_server --model M", "vllm", 16, 1, 1, 2048, 16),
    ("threshold", "vllm serve M --long-prefill-token-threshold 1024", "vllm", 16, 1, 1, 1024, 16),
    ("state block", "vllm serve M --block-size 16 --mamba-block-size 1024", "vllm", 1024, 1, 1, 2048, 1024),
    (
        "LMCache#4834",
        "vllm serve M --block-size 2304 -dcp 4 --mamba-block-size 1000",
        "vllm",
        288000,
        4,
        1,
        2048,
        1152000,
    ),
]


@pytest.mark.parametrize("row", LINES, ids=[row[0] for row in LINES])
def test_lines(row):
    _, line, engine, page, dcp, chunk, budget, interval = row
    launch = parse_launch([line])
    g = launch.geometry
    assert (launch.engine, g.page_size, g.dcp_size, g.chunk_width) == (engine, page, dcp, chunk)
    assert (g.chunked_prefill_size, g.track_interval) == (budget, interval)
    assert launch.rule == {"sglang": "dcp_gated", "vllm": "vllm_align"}[engine]


def test_words_and_one_string_read_the_same():
    line = SGL + "--page-size 64"
    assert parse_launch(line.split()) == parse_launch([line])


def test_each_value_says_where_it_came_from():
    launch = parse_launch([SGL + "--page-size 64"], {"chunk_width": 128})
    sources = {s.name: s.source for s in launch.settings}
    assert sources["page_size"] == "--page-size"
    assert sources["dcp_size"].startswith("engine default")
    assert sources["chunk_width"] == "given"
    assert launch.geometry.chunk_width == 128


NOTES = [
    (SGL + "--pagesize 64", "note", "near-miss", "did you mean --page-size"),
    (SGL + "--dcp 8", "note", "near-miss", "--dcp is not read; did you mean --dcp-size?"),
    (SGL + "--widen-tree 4 --port=1 -x", "note", "unread", "not read: --widen-tree, --port, -x; only flags"),
    ("vllm serve M --host h --host g", "note", "unread", "not read: --host; only flags"),
    (SGL + "--dcp-size 4 --dcp-size 8", "note", "repeated", "--dcp-size 8 replaces the earlier --dcp-size 4"),
    (SGL + "--config c.yaml", "note", "config-file", "c.yaml"),
    (SGL + "--disable-radix-cache", "costs", "no-reuse", "ever reused"),
    (
        SGL + "--page-size 64 --mamba-track-interval 100",
        "breaks",
        "track-off-page",
        "not a multiple of page_size 64",
    ),
    ("docker run x vllm serve M", "note", "wrapper", "docker run x"),
    ("vllm serve M --block-size 16 -dcp 8", "note", "dcp-attention-only", "a state block stays 16"),
    ("vllm serve M --no-enable-prefix-caching", "costs", "no-reuse", "nothing is reused"),
    (
        "vllm serve M --block-size 2096 --max-num-batched-tokens 2048",
        "breaks",
        "block-over-budget",
        "vllm#34445",
    ),
    ("vllm serve M --block-size 2096", "note", "block-over-budget", "default of small GPUs"),
    ("vllm serve M --mamba-cache-mode all --block-size 16", "breaks", "block-off-chunk", "chunk_width 64"),
]


@pytest.mark.parametrize("row", NOTES, ids=[row[0] for row in NOTES])
def test_notes(row):
    line, severity, code, words = row
    note = next(n for n in parse_launch([line]).notes if n.code == code)
    assert note.severity == severity
    assert words in note.text


@pytest.mark.parametrize("flag", ["--tp-size 8", "--prefill-context-parallel-size 2", "--max-num-seqs 4"])
def test_real_flags_that_look_alike_are_not_called_misspelt(flag):
    for line in (SGL + flag, "vllm serve M " + flag):
        assert not {"near-miss", "unread"} & {note.code for note in parse_launch([line]).notes}


BAD = [
    ([], LaunchError, ["empty", "vllm serve"]),
    ([""], LaunchError, ["empty"]),
    (["foo", "--page-size", "64"], LaunchError, ["program='foo'", "sglang serve"]),
    (["A=1", "python", "x.py"], LaunchError, ["program='python'"]),
    (["vllm", "bench"], LaunchError, ["program='vllm'", "vllm serve MODEL"]),
    ([SGL + "--page-size 'x"], LaunchError, ["quot"]),
    ([SGL + "--page-size"], LaunchError, ["--page-size", "needs a value"]),
    ([SGL + "--page-size --dcp-size 8"], LaunchError, ["--page-size", "needs a value"]),
    ([SGL + "--page-size sixty"], LaunchError, ["'sixty'", "whole number"]),
    ([SGL + "--page-size 64.5"], LaunchError, ["'64.5'", "whole number"]),
    ([SGL + "--page-size $PAGE"], LaunchError, ["$PAGE", "not expanded"]),
    ([SGL + "--mamba-scheduler-strategy extra"], LaunchError, ["'extra'", "no_buffer", "extra_buffer"]),
    (["vllm serve M --mamba-cache-mode alignn"], LaunchError, ["'alignn'", "nearest: align"]),
    ([SGL + "--page-size 0"], ValueError, ["--page-size=0", "at least 1"]),
    ([SGL + "--chunked-prefill-size -5"], ValueError, ["-5", "-1 (no chunking)"]),
    (["vllm serve M --block-size 0"], ValueError, ["--block-size=0", "nearest legal: 1"]),
    ([SGL + "--page-size 48"], ValueError, ["page_size=48", "32 or 64"]),
]


@pytest.mark.parametrize("row", BAD, ids=[str(row[0]) for row in BAD])
def test_bad_lines(row):
    argv, kind, words = row
    with pytest.raises(ValueError) as caught:
        parse_launch(argv)
    assert isinstance(caught.value, LaunchError) == (kind is LaunchError)
    for word in words:
        assert word in str(caught.value)
