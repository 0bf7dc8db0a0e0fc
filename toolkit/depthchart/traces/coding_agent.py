"""Reader of coding-agent sessions (Claude Code through a recording proxy; kv-cache-tester)."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, json_requests, numbered, open_bytes, seconds, whole, words
from depthchart.traces.segments import Segments
from depthchart.traces.trace import TraceRequest, canonical

SOURCE = "coding-agent sessions, github.com/callanjfox/kv-cache-tester"


def read_coding_agent(
    path: Path,
    log: DamageLog,
    key_by_model: bool = True,
    share_head: bool = False,
    sub_agents: bool = True,
    session_every_s: float = 0.0,
) -> Iterator[TraceRequest]:
    """Coding-agent sessions, one a line (or one JSON file a session, or a folder of such files).

    Block ids mean something inside their session only. ``hash_ids`` covers full blocks; the
    tokens after them, and every reply, are new tokens. A sub-agent runs beside its parent.
    Arrivals are the recorded ones; ``after`` and ``think_s`` carry the closed loop.

    Args:
        path: file or folder.
        log: where damaged lines go.
        key_by_model: requests to different models share nothing (``extra_key`` is the model).
        share_head: let sessions with equal ``tool_tokens`` share the blocks of their tools, and with
            equal ``system_tokens`` too those of the system prompt. In production they do; no id says so.
        sub_agents: read the requests of sub-agents too.
        session_every_s: the n-th session begins n times this many seconds after the first.
    """
    reader = _Reader(key_by_model, share_head, sub_agents, session_every_s)
    if path.is_dir():
        files = sorted(path.glob("*.json")) + sorted(path.glob("*.json.gz"))
        return (request for file in files for request in _one_file(file, log, reader))
    return _one_file(path, log, reader)


def _one_file(path: Path, log: DamageLog, reader: _Reader) -> Iterator[TraceRequest]:
    if _is_lines(path):
        yield from json_requests(path, log, reader.parse)
        return
    try:
        with open_bytes(path) as stream:
            found = list(reader.parse(json.load(stream), 1))
    except KeyError as fault:
        log.damaged(1, f"{path.name}: {fault} is missing")
    except (ValueError, TypeError, AttributeError, EOFError) as fault:
        log.damaged(1, f"{path.name}: {fault}")
    else:
        yield from found


def _is_lines(path: Path) -> bool:
    """False for one pretty-printed session: its first line is no JSON value of its own."""
    first = next(iter(numbered(path, DamageLog())), (1, b""))[1]
    return first.strip() not in (b"{", b"[")


class _Reader:
    def __init__(self, key_by_model: bool, share_head: bool, sub_agents: bool, every_s: float) -> None:
        self.key_by_model, self.share_head, self.sub_agents = key_by_model, share_head, sub_agents
        self.every_s = every_s
        self.segments = Segments()
        self.sessions = 0

    def parse(self, record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        """All requests of one session; raises before any is given if one is damaged."""
        session = words(record, "id") or f"session{line}"
        if record.get("hash_id_scope", "local") != "local":
            raise ValueError(f"hash_id_scope={record['hash_id_scope']!r} must be 'local'")
        start_s = self.sessions * self.every_s
        found = list(self._thread(record, session, session, start_s, None))
        self.sessions += 1
        return found

    def _thread(
        self, record: dict[str, Any], session: str, thread: str, start_s: float, parent: str | None
    ) -> Iterator[TraceRequest]:
        """The requests of a session, or of a sub-agent, and of the sub-agents inside."""
        width = whole(record, "block_size", 1) if "block_size" in record else 64
        head = _Head(record, width) if self.share_head else None
        after = parent
        for number, entry in enumerate(record["requests"]):
            at_s = start_s + seconds(entry, "t")
            if "requests" in entry:
                if self.sub_agents:
                    name = f"{thread}/{words(entry, 'agent_id') or number}"
                    offset = start_s if _absolute(entry) else at_s
                    inner = {"block_size": width, **entry}
                    yield from self._thread(inner, session, name, offset, after)
                continue
            think_s = seconds(entry, "think_time") if entry.get("think_time") is not None else 0.0
            request = self._request(entry, f"{thread}-{number:04d}", session, width, head, at_s)
            yield replace(request, after=after, think_s=think_s if after else 0.0)
            after = request.request_id

    def _request(
        self, entry: dict[str, Any], name: str, session: str, width: int, head: _Head | None, at_s: float
    ) -> TraceRequest:
        tokens, ids = whole(entry, "in", 1), entry["hash_ids"]
        if not isinstance(ids, list) or len(ids) != tokens // width:
            raise ValueError(
                f"request {name}: hash_ids must list {tokens // width} full blocks of {width} for in={tokens}"
            )
        keys: Iterable[Hashable] = head.names(session, ids) if head else ((session, item) for item in ids)
        known = self.segments.chain((key, width) for key in keys)
        prompt = canonical((*known, *self.segments.fresh(tokens % width)))
        model = words(entry, "model") if self.key_by_model else None
        output = self.segments.fresh(whole(entry, "out"))
        return TraceRequest(name, at_s, prompt, output, session, extra_key=model)


class _Head:
    """Names for the blocks of tools and system prompt that sessions share in production."""

    def __init__(self, record: dict[str, Any], width: int) -> None:
        self.tools = int(record.get("tool_tokens") or 0)
        self.system = int(record.get("system_tokens") or 0)
        self.width = width
        self.first: list[Hashable] | None = None

    def names(self, session: str, ids: list[Hashable]) -> Iterator[Hashable]:
        tools, both = self.tools // self.width, (self.tools + self.system) // self.width
        if self.first is None:
            self.first = ids[:both]
        for index, item in enumerate(ids):
            if index < len(self.first) and item == self.first[index]:
                yield (
                    ("tools", self.tools, index)
                    if index < tools
                    else ("system", self.tools, self.system, index)
                )
            else:
                yield (session, item)


def _absolute(entry: dict[str, Any]) -> bool:
    """True in later corpora, where a sub-agent's times count from the session's beginning."""
    inner = entry["requests"]
    return bool(inner) and seconds(inner[0], "t") >= seconds(entry, "t") > 0
