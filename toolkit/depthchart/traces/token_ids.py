"""Reader of traces that carry token ids (ShareGPT-style, LLMServingSim)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, json_requests, seconds, whole, words
from depthchart.traces.segments import Segments, Vocabulary
from depthchart.traces.trace import Runs, TraceRequest

SOURCE = "token-id trace format, github.com/casys-kaist/LLMServingSim (ShareGPT)"


def read_token_ids(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """Token-id JSON Lines: ``input_toks``, ``output_toks``, ``arrival_time_ns``, ``input_tok_ids``, ``output_tok_ids``.

    Ids are kept literally, as indices of the vocabulary segment; where a row has none, its tokens are
    new. A row of ``sub_requests`` is a session whose turns follow each other by ``tool_duration_ns``.
    """
    vocabulary, segments = Vocabulary(), Segments()

    def runs(record: dict[str, Any], side: str, least: int) -> Runs:
        tokens = whole(record, f"{side}_toks", least)
        ids = record.get(f"{side}_tok_ids")
        if ids is None:
            return segments.fresh(tokens)
        if len(ids) != tokens:
            raise ValueError(f"{side}_tok_ids has {len(ids)} ids, {side}_toks={tokens}")
        return vocabulary.runs(ids)

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        arrival, session = seconds(record, "arrival_time_ns", 1e9), words(record, "session_id")
        turns = record.get("sub_requests", [record])
        after, think_s = None, 0.0
        for number, turn in enumerate(turns):
            name = f"t{line:07d}" + (f"-{number:03d}" if turn is not record else "")
            prompt, output = runs(turn, "input", 1), runs(turn, "output", 0)
            yield TraceRequest(name, arrival, prompt, output, session, after=after, think_s=think_s)
            think_s = seconds(turn, "tool_duration_ns", 1e9) if "tool_duration_ns" in turn else 0.0
            after, arrival = name, arrival + think_s

    return json_requests(path, log, parse)
