"""Damaged lines: named by number and reason, counted, left out; strict stops at the first."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from depthchart.traces import load_trace
from depthchart.traces.lines import DamageLog

SAMPLES = Path(__file__).parent / "samples"
GOOD = {
    "mooncake": ("mooncake.jsonl", 4),
    "bailian": ("bailian.jsonl", 4),
    "coding-agent": ("coding_agent.jsonl", 5),
    "token-ids": ("token_ids.jsonl", 4),
    "azure": ("azure.csv", 3),
    "burstgpt": ("burstgpt.csv", 2),
    "chat": ("chat.jsonl", 3),
    "csv": ("neutral.csv", 2),
}
M = '{"timestamp": 1, "output_length": 1, "input_length": '
B = '{"chat_id": 9, "timestamp": 1, "output_length": 1, "input_length": 16, '
C = '{"id": "x", "requests": [{"t": 1, "out": 1, "in": '
BAD = [
    ("mooncake", M + '1100, "hash_ids": [0, 1]}', "2 blocks, input_length=1100 needs 3 of 512"),
    ("mooncake", M + '-5, "hash_ids": []}', "input_length=-5 must be 1 or more"),
    ("mooncake", M + '0, "hash_ids": []}', "input_length=0 must be 1 or more"),
    ("mooncake", M + '10.5, "hash_ids": [0]}', "input_length=10.5 must be a whole number"),
    ("mooncake", M + '10, "hash_ids": 0}', "hash_ids must be a list"),
    ("mooncake", M + "10}", "'hash_ids' is missing"),
    ("mooncake", '{"input_length": 9, "output_length": 1, "hash_ids": [0]}', "'timestamp' is missing"),
    ("mooncake", '{"timestamp": -1, "input_length": 9, "output_length": 1, "hash_ids": [0]}', "timestamp=-1"),
    ("mooncake", '{"timestamp": 1, "input_length": 9, "hash_ids": [0]', "delimiter"),
    ("mooncake", "\x00\x01", "Expecting value"),
    ("mooncake", "[]", "must be a JSON object, got list"),
    ("bailian", B + '"parent_chat_id": -1, "hash_ids": [1, 2]}', "2 blocks, input_length=16 needs 1 of 16"),
    ("bailian", B + '"hash_ids": [1]}', "'parent_chat_id' is missing"),
    ("bailian", B.replace("9", "3") + '"parent_chat_id": -1, "hash_ids": [1]}', "'c3' was used before"),
    ("coding-agent", C + '200, "hash_ids": [1, 2]}]}', "must list 3 full blocks of 64 for in=200"),
    ("coding-agent", C + '0, "hash_ids": []}]}', "in=0 must be 1 or more"),
    ("coding-agent", '{"id": "x", "hash_id_scope": "global", "requests": []}', "must be 'local'"),
    ("coding-agent", '{"id": "x", "requests": [{"in": 1}]}', "'t' is missing"),
    (
        "token-ids",
        '{"arrival_time_ns": 1, "input_toks": 2, "output_toks": 0, "input_tok_ids": [1]}',
        "has 1 ids",
    ),
    (
        "token-ids",
        '{"arrival_time_ns": 1, "input_toks": 1, "output_toks": 0, "input_tok_ids": [-1]}',
        "id -1",
    ),
    ("azure", "2023-11-16 18:17:03.97,5", "2 fields where the header names 3"),
    ("azure", "2023-11-16 18:17:01.0,5,5", "before the first row"),
    ("azure", "yesterday,5,5", "yesterday"),
    ("azure", "2023-11-16 18:17:03.,5,5", "bare point"),
    ("azure", "2023-11-16 18:17:09.5,zero,5", "could not convert"),
    ("burstgpt", "nan,ChatGPT,5,5,10,API log", "Timestamp='nan'"),
    ("burstgpt", "99,ChatGPT,-5,5,0,API log", "Request tokens='-5' must be 1 or more"),
    ("chat", '{"messages": []}', "at least one message"),
    ("chat", '{"messages": [{"content": "Hi"}]}', "an object with a role"),
    ("chat", '{"messages": [{"role": "user", "content": 5}]}', "content must be text"),
    ("chat", '{"prompt": "Hi"}', "'messages' is missing"),
    ("csv", "x,9,1,1,,", "'x' was used before"),
    ("csv", "z,9,0,1,,", "prompt is empty"),
    ("csv", "z,-9,5,1,,", "arrival_s=-9.0 must be 0 or more"),
]


@pytest.fixture
def damaged(tmp_path):
    def write(form, line):
        name, count = GOOD[form]
        text = (SAMPLES / name).read_text()
        file = tmp_path / name
        file.write_text(text.rstrip("\n") + "\n\n" + line + "\n")
        return file, count, len(text.splitlines()) + 2

    return write


@pytest.mark.parametrize(("form", "line", "words"), BAD, ids=[f"{row[0]}: {row[2]}" for row in BAD])
def test_a_damaged_line_is_left_out_and_named(damaged, form, line, words):
    file, count, number = damaged(form, line)
    log = DamageLog()
    trace = load_trace(file, log=log)
    assert len(trace) == count
    assert [damage.line for damage in log.damages] == [number]
    assert words in log.damages[0].reason
    assert f"1 damaged lines left out; first: line {number}" in trace.notes[-1]
    with pytest.raises(ValueError, match=f"^line {number}: "):
        load_trace(file, strict=True)


def test_a_cut_gzip_file_gives_what_it_held(tmp_path):
    whole = gzip.compress((SAMPLES / "mooncake.jsonl").read_bytes() * 200)
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(whole[: len(whole) - 12])
    log = DamageLog()
    assert len(load_trace(file, log=log)) > 700
    assert "cut or broken" in log.damages[-1].reason


def test_bytes_that_are_no_text_are_damage(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_bytes((SAMPLES / "mooncake.jsonl").read_bytes() + b"\xff\xfe\n")
    log = DamageLog()
    assert len(load_trace(file, log=log)) == 4
    assert log.damages[0].line == 5


def test_many_damages_are_all_counted_and_few_kept(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text((SAMPLES / "mooncake.jsonl").read_text() + "oops\n" * 50)
    log = DamageLog(keep=10)
    load_trace(file, log=log)
    assert (log.count, len(log.damages)) == (50, 10)


def test_ragpulse_reports_its_length_files_too(tmp_path):
    for file in (SAMPLES / "ragpulse").iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    with (tmp_path / "2_passages.jsonl").open("a") as file:
        file.write('{"passage_id": 22}\n')
    with (tmp_path / "0_trace.jsonl").open("a") as file:
        parts = '"hash_ids": {"sys_prompt": [10], "passages_ids": [%s]}}\n'
        file.write('{"timestamp": "99", "input_length": 600, "output_length": 1, ' + parts % "22")
        file.write('{"timestamp": "99", "input_length": 9, "output_length": 1, ' + parts % "20")
    log = DamageLog()
    assert len(load_trace(tmp_path, log=log)) == 3
    reasons = [damage.reason for damage in log.damages]
    assert "2_passages.jsonl: 'token_length'" in reasons[0]
    assert "passages_ids id 22 has no length" in reasons[1]
    assert "523 tokens longer than input_length=9" in reasons[2]
    (tmp_path / "3_history.jsonl").unlink()
    with pytest.raises(ValueError, match=r"needs 3_history.jsonl"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        pytest.param(
            "hello\nworld\n", {}, "no trace format fits; keys seen: hello; formats:", id="no format"
        ),
        pytest.param("", {}, "keys seen: none", id="empty file"),
        pytest.param(
            '{"a": 1}\n', {"format": "moonshine"}, "format='moonshine' is unknown", id="format name"
        ),
        pytest.param(
            '{"a": 1}\n', {"format": "mooncake"}, "no request could be read as mooncake", id="all damaged"
        ),
        pytest.param('{"a": 1}\n', {"format": "mooncake", "limit": 0}, "limit=0 must be 1", id="limit"),
        pytest.param('{"a": 1}\n', {"format": "azure", "blocksize": 1}, "is no option", id="option"),
        pytest.param(
            '{"a": 1}\n', {"format": "chat", "requests_per_s": 0}, "requests_per_s=0", id="option value"
        ),
    ],
)
def test_what_is_no_trace_says_so(tmp_path, text, options, words):
    file = tmp_path / "f.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_trace(file, **options)
