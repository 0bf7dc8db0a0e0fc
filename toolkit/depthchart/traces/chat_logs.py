"""Reader of OpenAI-style chat logs: messages per request, any tokenizer, bytes where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, json_requests, seconds, whole, words
from depthchart.traces.segments import Segments, Vocabulary
from depthchart.traces.trace import Runs, TraceRequest

SOURCE = "chat log in the OpenAI message form"

Tokenizer = Callable[[str], Sequence[int]]
"""Text to token ids, e.g. ``AutoTokenizer.from_pretrained(...).encode``."""


def byte_tokens(text: str) -> list[int]:
    """The fallback tokenizer: one token per UTF-8 byte, ids 0 to 255."""
    return list(text.encode("utf-8", "surrogatepass"))


def read_chat_log(
    path: Path, log: DamageLog, tokenizer: Tokenizer | None = None, requests_per_s: float = 1.0
) -> Iterator[TraceRequest]:
    """Chat log JSON Lines: ``messages``, perhaps ``tools``, a reply and a time; also inside ``body`` or ``request``.

    Every message is tokenized by itself as ``<|role|>`` line, content, line end, so that equal
    message lists give equal prefixes under any tokenizer. The reply is ``choices[0].message`` (in the
    row, ``response`` or ``response.body``), else a last assistant message, else ``usage``'s or
    ``output_length``'s number of new tokens, else nothing.

    Args:
        path: the file.
        log: where damaged lines go.
        tokenizer: text to token ids; bytes if None.
        requests_per_s: rate at which rows arrive that carry no ``timestamp``, ``arrival_s`` or ``created``.
    """
    if not requests_per_s > 0:
        raise ValueError(f"requests_per_s={requests_per_s} must be above 0; nearest legal value: 1")
    vocabulary, segments = Vocabulary(), Segments()
    encode = tokenizer or byte_tokens
    first: list[float] = []

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        body = next((record[key] for key in ("body", "request") if key in record), record)
        messages = _messages(body)
        reply = _reply(record)
        if reply is None and len(messages) > 1 and messages[-1].get("role") == "assistant":
            messages, reply = messages[:-1], messages[-1]
        ids: list[int] = []
        for text in (*_tools(body), *(_spell(message) for message in messages), "<|assistant|>\n"):
            ids.extend(encode(text))
        prompt = vocabulary.runs(ids)
        output: Runs = segments.fresh(_reply_tokens(record))
        if reply is not None:
            output = vocabulary.runs(encode(_content(reply) + "\n"))
        name = words(record, "request_id") or words(record, "custom_id") or words(record, "id")
        session = words(record, "session_id") or words(record, "conversation_id")
        time_s = _time(record)
        if time_s is not None and not first:
            first.append(time_s)
        at_s = line / requests_per_s if time_s is None else time_s - first[0]
        if at_s < 0:
            raise ValueError(f"the time lies {-at_s:g} s before the first row's")
        model = words(body, "model")
        yield TraceRequest(name or f"o{line:07d}", at_s, prompt, output, session, extra_key=model)

    return json_requests(path, log, parse)


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    if "messages" not in body and "text_input" in body:
        return [{"role": "user", "content": body["text_input"]}]
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message must be an object with a role, got {str(message)[:40]!r}")
    return messages


def _spell(message: dict[str, Any]) -> str:
    return f"<|{message['role']}|>\n{_content(message)}\n"


def _content(message: dict[str, Any]) -> str:
    """The text of a message; parts that are no text, and tool calls, as their JSON."""
    content = message.get("content")
    if content is None:
        content = ""
    if isinstance(content, list):
        content = "".join(
            part["text"] if isinstance(part, dict) and "text" in part else _json(part) for part in content
        )
    if not isinstance(content, str):
        raise ValueError(f"content must be text or a list of parts, got {type(content).__name__}")
    calls = message.get("tool_calls")
    return content + _json(calls) if calls else content


def _tools(body: dict[str, Any]) -> list[str]:
    return [f"<|tools|>\n{_json(body['tools'])}\n"] if body.get("tools") else []


def _reply(record: dict[str, Any]) -> dict[str, Any] | None:
    for place in _answers(record):
        if place.get("choices"):
            message = place["choices"][0]["message"]
            return message if isinstance(message, dict) else None
    return None


def _reply_tokens(record: dict[str, Any]) -> int:
    if "output_length" in record:
        return whole(record, "output_length")
    for place in _answers(record):
        if isinstance(place.get("usage"), dict):
            return whole(place["usage"], "completion_tokens")
    return 0


def _answers(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Where a reply may stand: the row, its response, the response's body."""
    yield record
    response = record.get("response")
    if isinstance(response, dict):
        yield response
        if isinstance(response.get("body"), dict):
            yield response["body"]


def _time(record: dict[str, Any]) -> float | None:
    """Seconds; ``timestamp`` counts milliseconds in Mooncake's dialect, which has ``output_length``."""
    for key in ("timestamp", "arrival_s", "created"):
        value = record.get(key)
        if isinstance(value, str) and not value.replace(".", "").isdigit():
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if value is not None:
            return seconds(record, key, 1000.0 if key == "timestamp" and "output_length" in record else 1.0)
    return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
