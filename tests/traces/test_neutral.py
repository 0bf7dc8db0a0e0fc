"""The neutral format loses nothing, and says where a line is wrong."""

from __future__ import annotations

import json

import pytest

from depthchart.traces.neutral import read_neutral, trace_lines, write_trace
from depthchart.traces.synthesize import make
from depthchart.traces.trace import Trace, TraceRequest

FULL = TraceRequest(
    "r1", 1.5, ((1, 0, 64), (2, 5, 3)), ((3, 0, 9),), "s", 2, "model-a", after="r0", think_s=0.25
)


def test_one_request_a_line_in_the_documented_form():
    header, plain, full = map(json.loads, trace_lines(Trace("t", (FULL, ask("r0")), "by hand", 7, ("note",))))
    assert header == {"depthchart_trace": 1, "name": "t", "source": "by hand", "seed": 7, "notes": ["note"]}
    assert plain == {"id": "r0", "arrival_s": 0, "prompt": [[1, 0, 2]], "output": []}
    assert full == {
        "id": "r1",
        "arrival_s": 1.5,
        "prompt": [[1, 0, 64], [2, 5, 3]],
        "output": [[3, 0, 9]],
        "session": "s",
        "priority": 2,
        "extra_key": "model-a",
        "after": "r0",
        "think_s": 0.25,
    }


@pytest.mark.parametrize("name", ["agentic", "rag"])
def test_what_is_written_is_read_back(name):
    trace = make(name, 5, requests=60)
    header, requests = read_neutral(trace_lines(trace))
    assert Trace(requests=tuple(requests), **header) == trace


def ask(name):
    return TraceRequest(name, 0, ((1, 0, 2),), ())


def test_every_field_survives():
    _, requests = read_neutral(trace_lines(Trace("t", (ask("r0"), FULL), "x", None, ())))
    assert requests == [ask("r0"), FULL]


def test_a_failed_write_leaves_the_old_file_and_no_scrap(tmp_path, monkeypatch):
    target = write_trace(Trace("old", (ask("r0"),)), tmp_path / "deep" / "t.jsonl")
    before = target.read_bytes()

    def full_disk(self, data):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.write_bytes", full_disk)
    with pytest.raises(OSError, match="disk full"):
        write_trace(Trace("new", (FULL,)), target)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["t.jsonl"]


BAD = [
    ('{"arrival_s": 0, "prompt": [[1, 0, 2]]}', "'id' is missing"),
    ('{"id": "a", "prompt": [[1, 0, 2]]}', "'arrival_s' is missing"),
    ('{"id": "a", "arrival_s": -1, "prompt": [[1, 0, 2]]}', "arrival_s=-1 must be 0 or more"),
    ('{"id": "a", "arrival_s": "x", "prompt": [[1, 0, 2]]}', "arrival_s='x' must be a finite number"),
    ('{"id": "a", "arrival_s": NaN, "prompt": [[1, 0, 2]]}', "finite number"),
    ('{"id": "a", "arrival_s": 0, "prompt": []}', "prompt is empty"),
    ('{"id": "a", "arrival_s": 0, "prompt": [[1, 0, 0]]}', "prompt is empty"),
    ('{"id": "a", "arrival_s": 0, "prompt": "hello"}', "prompt must be a list"),
    ('{"id": "a", "arrival_s": 0, "prompt": [[1, 0]]}', "no \\[segment, start, length\\]"),
    ('{"id": "a", "arrival_s": 0, "prompt": [[1, 0.5, 2]]}', "of whole numbers"),
    ('{"id": "a", "arrival_s": 0, "prompt": [[-1, 0, 2]]}', "segment=-1"),
    ('{"id": "a", "arrival_s": 0, "prompt": [[1, 0, 2]], "outputs": []}', "unknown key 'outputs'"),
    ('{"depthchart_trace": 2}', "this version reads 1"),
    ("[1, 2]", "must be a JSON object"),
    ('{"id": ', "line 2"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_line_is_named_with_its_number(line, words):
    with pytest.raises(ValueError, match=rf"line 2: .*{words}" if words != "line 2" else words):
        read_neutral(["", line])
