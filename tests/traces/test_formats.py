"""A trace is opened by name or path."""

from __future__ import annotations

import pytest

from depthchart.traces import bundle, load_trace, write_trace
from depthchart.traces.bundle import bundled_path, bundled_trace


def test_a_bundled_trace_opens_by_name_and_by_path():
    assert load_trace("agentic") == load_trace(bundled_path("agentic")) == bundled_trace("agentic")


def test_data_may_lie_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DEPTHCHART_DATA", str(tmp_path))
    write_trace(bundled_trace("agentic").head(3), tmp_path / "traces" / "agentic.jsonl.gz")
    assert len(load_trace("agentic")) == 3


def test_the_bundle_is_written_where_the_data_lies(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEPTHCHART_DATA", str(tmp_path))
    bundle.main()
    assert "600 requests" in capsys.readouterr().out
    assert load_trace(tmp_path / "traces" / "agentic.jsonl.gz") == bundled_trace("agentic")


def test_gzip_is_seen_from_the_bytes(tmp_path):
    odd = tmp_path / "trace.bin"
    odd.write_bytes(bundled_path("agentic").read_bytes())
    assert load_trace(odd) == bundled_trace("agentic")


def test_an_unknown_name_lists_the_bundled():
    with pytest.raises(ValueError, match=r"trace='agentik' is neither .* bundled: agentic"):
        load_trace("agentik")
