"""Readers of traces that name prompt blocks by hash: Mooncake and Bailian (Qwen)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, json_requests, seconds, whole, words
from depthchart.traces.segments import Segments
from depthchart.traces.trace import TraceRequest

MOONCAKE_SOURCE = "Mooncake trace format, github.com/kvcache-ai/Mooncake (FAST '25)"
BAILIAN_SOURCE = "Bailian/Qwen usage trace format, github.com/alibaba-edu/qwen-bailian-usagetraces-anon"


def read_mooncake(
    path: Path, log: DamageLog, block_size: int = 512, infer_sessions: bool = True
) -> Iterator[TraceRequest]:
    """Mooncake JSON Lines: ``timestamp`` ms, ``input_length``, ``output_length``, chained ``hash_ids``.

    The last block is nearly always partial; it is a piece of its own length, so it is only ever
    equal to the same partial block. Replies carry no identity: each is new tokens.

    Args:
        path: the file.
        log: where damaged lines go.
        block_size: tokens per block where a row does not say (``block_size``).
        infer_sessions: where rows have no ``session_id``, a request belongs to the session of the
            latest request whose full blocks, two or more, it continues.
    """
    segments = Segments()
    threads = _Threads()
    last_of: dict[str, str] = {}

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        width = whole(record, "block_size", 1) if "block_size" in record else block_size
        tokens, ids = whole(record, "input_length", 1), record["hash_ids"]
        pieces = split_blocks(ids, tokens, width)
        reply = whole(record, "output_length")
        arrival = seconds(record, "timestamp", 1000.0) if "timestamp" in record else None
        delay = seconds(record, "delay", 1000.0) if record.get("delay") is not None else 0.0
        name = words(record, "request_id") or f"m{line:07d}"
        session = words(record, "session_id")
        after = last_of.get(session) if session else None
        if arrival is None and after is None and "session_id" not in record and "block_tokens" not in record:
            raise KeyError("timestamp")
        if session is None and infer_sessions:
            session = threads.session_of(ids[: tokens // width], name)
        elif session is not None:
            last_of[session] = name
        yield TraceRequest(
            name, arrival or 0.0, segments.chain(pieces), segments.fresh(reply), session,
            after=after, think_s=delay if after else 0.0,
        )  # fmt: skip

    return json_requests(path, log, parse)


def read_bailian(path: Path, log: DamageLog, block_size: int = 16) -> Iterator[TraceRequest]:
    """Bailian/Qwen JSON Lines: ``chat_id``, ``parent_chat_id``, ``timestamp`` s, 16-token ``hash_ids``.

    Ids name each block alone (salted, not chained); a partial last block is a piece of its own
    length. A chat whose parent is in the file follows it; both belong to the root's session.

    Args:
        path: the file.
        log: where damaged lines go.
        block_size: tokens per block, as in the file's name.
    """
    segments = Segments()
    root: dict[int, str] = {}

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        chat, parent = whole(record, "chat_id"), whole(record, "parent_chat_id", -1)
        pieces = split_blocks(record["hash_ids"], whole(record, "input_length", 1), block_size)
        reply, arrival = whole(record, "output_length"), seconds(record, "timestamp")
        session = root.get(parent, f"chat{chat}")
        after = f"c{parent}" if parent in root else None
        root[chat] = session
        yield TraceRequest(
            f"c{chat}", arrival, segments.chain(pieces), segments.fresh(reply), session, after=after
        )

    return json_requests(path, log, parse)


def split_blocks(ids: object, tokens: int, width: int) -> list[tuple[Hashable, int]]:
    """Pieces (id, tokens) of a prompt whose blocks are all full but perhaps the last."""
    if not isinstance(ids, list) or not all(isinstance(item, int | str) for item in ids):
        raise ValueError(f"hash_ids must be a list of ids, got {str(ids)[:40]!r}")
    blocks = -(-tokens // width)
    if len(ids) != blocks:
        raise ValueError(f"hash_ids has {len(ids)} blocks, input_length={tokens} needs {blocks} of {width}")
    pieces: list[tuple[Hashable, int]] = [(item, width) for item in ids]
    pieces[-1] = (ids[-1], tokens - width * (blocks - 1))
    return pieces


class _Threads:
    """Sessions inferred from prefixes: who continues whose full blocks.

    Block 0 alone tells nothing: nearly every request of an online service shares it.
    """

    def __init__(self) -> None:
        self._by_last_block: dict[Hashable, str] = {}

    def session_of(self, full: Sequence[Hashable], name: str) -> str:
        found = (self._by_last_block.get(block) for block in reversed(full[1:]))
        session = next((one for one in found if one is not None), f"like-{name}")
        if len(full) >= 2:
            self._by_last_block[full[-1]] = session
        return session
