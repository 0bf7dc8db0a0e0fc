"""Runs written to a folder and read back: the same values, whole files or none, damage told in words."""

import gzip
import json

import pytest

from depthchart import Geometry, frames, load_trace
from depthchart.events import Entry, Freed, NodeAdded
from depthchart.recording import read_recording, write_recording
from depthchart.run import RECORDING, Run
from depthchart.simulate import simulate

WIDE = Geometry(64, dcp_size=8, chunk_width=64)


@pytest.fixture(scope="module")
def run():
    """A strict run that ends at its first broken invariant."""
    return simulate(
        load_trace("agentic", limit=150), WIDE, "prefix_relative", kv_tokens=65_536, state_slots=48
    )


@pytest.fixture
def folder(run, tmp_path):
    return run.save(tmp_path / "run")


def test_a_run_comes_back_as_it_was(run, folder):
    again = Run.load(folder)
    assert again.log.entries == run.log.entries
    assert again.records == run.records
    assert again.geometry == run.geometry
    assert again.fault == run.fault
    assert again.fault is not None
    assert (again.settings, again.source, again.provenance) == (run.settings, run.source, run.provenance)
    assert again.summary() == run.summary()
    assert again.checkpoints.equals(run.checkpoints)
    assert again.nodes().equals(run.nodes())
    assert repr(again) == repr(run)


def test_the_same_run_gives_the_same_bytes(run, folder, tmp_path):
    other = Run.load(folder).save(tmp_path / "other")
    assert (other / RECORDING).read_bytes() == (folder / RECORDING).read_bytes()
    assert [file.name for file in folder.iterdir()] == [RECORDING]


def test_tuples_come_back_as_tuples(tmp_path):
    entries = [Entry(0.0, 0, Freed("a", ((0, 512), (512, 640)))), Entry(0.5, 1, Freed("b", ()))]
    path = write_recording(tmp_path / "x.gz", {"note": 1}, entries)
    head, again = read_recording(path)
    assert again == entries
    assert head["note"] == 1


def test_numbers_of_numpy_are_written(tmp_path):
    import numpy as np

    entry = Entry(0.0, 0, NodeAdded(np.int64(1), 0, 0, np.int64(64), "a", ""))
    assert read_recording(write_recording(tmp_path / "x.gz", {}, [entry]))[1] == [entry]


def test_a_failure_while_writing_leaves_the_old_file(run, folder, monkeypatch):
    before = (folder / RECORDING).read_bytes()
    run.log.entries.append(Entry(0.0, 0, Freed("a", (object(),))))
    try:
        with pytest.raises(TypeError, match="cannot be written as JSON"):
            run.save(folder)
    finally:
        run.log.entries.pop()
    assert (folder / RECORDING).read_bytes() == before
    assert [file.name for file in folder.iterdir()] == [RECORDING]


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"has no run\.jsonl\.gz"):
        Run.load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], "damaged or was cut off"),
        (lambda raw: b"not gzip", "damaged or was cut off"),
        (lambda raw: gzip.compress(b""), "damaged or was cut off"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-3000]), "was cut off"),
        (lambda raw: gzip.compress(b'{"format": "other"}\n{"events": 0}\n'), "format 'other' is not known"),
        (
            lambda raw: gzip.compress(b'{"format": "depthchart-run-1"}\n{"events": 0}\n'),
            "its first line is no head of a run",
        ),
        (
            lambda raw: gzip.compress(b'{"format": "depthchart-run-1"}\n[0, 0, "Nothing"]\n{"events": 1}\n'),
            "line 2 is no event",
        ),
        (
            lambda raw: gzip.compress(b"\n".join(gzip.decompress(raw).splitlines()[:-1])),
            "was cut off: its last line",
        ),
    ],
    ids=["half", "not-gzip", "empty", "lines-lost", "format", "no-head", "unknown-event", "last-line-lost"],
)
def test_damage_is_told_with_the_file(folder, spoil, words):
    path = folder / RECORDING
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=words) as told:
        Run.load(folder)
    assert str(path) in str(told.value)


def test_a_lines_count_is_checked(folder):
    path = folder / RECORDING
    lines = gzip.decompress(path.read_bytes()).splitlines()
    assert json.loads(lines[-1]) == {"events": len(lines) - 2}
    path.write_bytes(gzip.compress(b"\n".join([*lines[:5], *lines[6:]])))
    with pytest.raises(ValueError, match="must count"):
        Run.load(folder)


def test_the_frames_of_a_loaded_run_are_those_of_the_run(run, folder):
    assert frames.events(Run.load(folder).log).equals(run.events)
