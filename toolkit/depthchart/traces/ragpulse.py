"""Reader of RAGPulse: prompts made of parts with global ids, whose lengths end off every page."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, as_object, json_requests, numbered, seconds, whole, words
from depthchart.traces.segments import Segments
from depthchart.traces.trace import TraceRequest, canonical

SOURCE = "RAGPulse, github.com/flashserve/RAGPulse (arXiv 2511.12979)"

PARTS = {
    "sys_prompt": ("1_sys_prompt", "sys_prompt_id"),
    "passages_ids": ("2_passages", "passage_id"),
    "history": ("3_history", "history_id"),
    "web_search": ("5_web_search", "web_search_id"),
    "user_input": ("4_user_input", "user_input_id"),
}
"""Parts in the order in which we lay them into the prompt (the publisher states none), each with
its file of lengths and the id's key there."""


def read_ragpulse(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """RAGPulse: the folder, or its trace file beside the five files of lengths.

    The prompt is system prompt, passages, history, web search, user input; the 6 to 12 tokens by which
    ``input_length`` exceeds the parts (the template) are new tokens at the end.
    """
    folder = path if path.is_dir() else path.parent
    lengths = {part: _lengths(_find(folder, stem), key, log) for part, (stem, key) in PARTS.items()}
    segments = Segments()

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        pieces = list(_pieces(record["hash_ids"], lengths))
        rest = whole(record, "input_length", 1) - sum(tokens for _, tokens in pieces)
        if rest < 0:
            raise ValueError(
                f"the parts are {-rest} tokens longer than input_length={record['input_length']}"
            )
        arrival, reply = seconds(record, "timestamp"), whole(record, "output_length")
        prompt = canonical((*segments.chain(pieces), *segments.fresh(rest)))
        session = words(record, "session_id")
        yield TraceRequest(f"r{line:07d}", arrival, prompt, segments.fresh(reply), session)

    return json_requests(_find(folder, "0_trace") if path.is_dir() else path, log, parse)


def _pieces(ids: dict[str, Any], lengths: dict[str, dict[int, int]]) -> Iterator[tuple[Hashable, int]]:
    for part, known in lengths.items():
        for item in ids.get(part, ()):
            if item not in known:
                raise ValueError(f"{part} id {item!r} has no length in {PARTS[part][0]}.jsonl")
            if known[item]:
                yield item, known[item]


def _lengths(path: Path, key: str, log: DamageLog) -> dict[int, int]:
    out: dict[int, int] = {}
    for line, text in numbered(path, log):
        try:
            record = as_object(text)
            out[record[key]] = whole(record, "token_length")
        except (ValueError, KeyError, TypeError) as fault:
            log.damaged(line, f"{path.name}: {fault}")
    return out


def _find(folder: Path, stem: str) -> Path:
    for ending in (".jsonl", ".jsonl.gz"):
        if (folder / (stem + ending)).exists():
            return folder / (stem + ending)
    raise ValueError(f"RAGPulse needs {stem}.jsonl (or .jsonl.gz) in {str(folder)!r}; it is not there")
