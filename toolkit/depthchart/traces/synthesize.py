"""Seeded generators of workloads: the same seed and parameters give the same trace on every machine.

Every generator takes ``seed`` and keyword parameters; lengths are in tokens, times in seconds, spans
are inclusive (low, high). Arrivals are open-loop times that assume ``reply_s_per_token`` where turns
follow each other; ``after`` and ``think_s`` carry the same order for a closed loop.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from depthchart.traces.agentic import AgenticShape, agentic_requests
from depthchart.traces.dice import Dice, Span, check_positive, check_shares, check_spans, zipf_sums
from depthchart.traces.trace import Runs, Trace, TraceRequest, canonical

SOURCE = "synthetic, depthchart.traces.synthesize"


def make(name: str, seed: int = 0, **parameters: Any) -> Trace:
    """A synthetic trace by the generator's name; see ``GENERATORS``.

    Raises:
        ValueError: unknown generator, unknown parameter or illegal value; the message names what is legal.
    """
    if name not in GENERATORS:
        raise ValueError(f"name={name!r} is no generator{_hint(name, GENERATORS)}")
    known = parameters_of(name)
    for key in parameters:
        if key not in known:
            raise ValueError(f"{key}={parameters[key]!r} is no parameter of {name!r}{_hint(key, known)}")
    return GENERATORS[name](seed, **parameters)


def parameters_of(name: str) -> dict[str, Any]:
    """Parameters of a generator with their defaults."""
    if name == "agentic":
        return asdict(AgenticShape())
    signature = inspect.signature(GENERATORS[name])
    return {key: value.default for key, value in signature.parameters.items() if key != "seed"}


def agentic(seed: int = 0, **shape: Any) -> Trace:
    """Agentic tool loops: long shared system prompts, growing contexts, edits near the end, fan-outs.

    Args:
        seed: any integer.
        **shape: fields of :class:`depthchart.traces.agentic.AgenticShape`, where they are documented.
    """
    chosen = AgenticShape(**shape)
    return _trace("agentic", seed, agentic_requests(chosen, Dice(seed)), asdict(chosen))


def chat(
    seed: int = 0,
    *,
    requests: int = 1000,
    sessions_per_s: float = 1.0,
    system_tokens: Span = (150, 150),
    turns: Span = (1, 10),
    user_tokens: Span = (10, 400),
    output_tokens: Span = (30, 600),
    think_s: float = 20.0,
    reply_s_per_token: float = 0.02,
) -> Trace:
    """Multi-turn chat: each turn repeats the whole conversation and adds a message.

    Args:
        seed: any integer.
        requests: number of requests.
        sessions_per_s: mean rate at which conversations begin (Poisson), per second.
        system_tokens: span of the one system prompt that all conversations share, in tokens.
        turns: span of turns in a conversation.
        user_tokens: span of a user's message, in tokens.
        output_tokens: span of a reply, in tokens.
        think_s: mean time between a reply and the next message, in seconds.
        reply_s_per_token: time per output token assumed for arrivals, in seconds.
    """
    check_positive(requests=requests, sessions_per_s=sessions_per_s, think_s=think_s)
    check_positive(reply_s_per_token=reply_s_per_token)
    check_spans(system_tokens=system_tokens, turns=turns)
    check_spans(user_tokens=user_tokens, output_tokens=output_tokens)
    used = {key: value for key, value in locals().items() if key != "seed"}
    dice = Dice(seed)
    system = dice.fresh(dice.length(system_tokens))
    out: list[TraceRequest] = []
    start_s, number = 0.0, 0
    while len(out) < requests:
        session, clock_s, after, pause_s = f"c{number:06d}", start_s, None, 0.0
        context: Runs = (system,)
        for turn in range(dice.count(turns)):
            prompt = canonical((*context, dice.fresh(dice.length(user_tokens))))
            reply = dice.fresh(dice.length(output_tokens))
            name = f"{session}-{turn:03d}"
            out.append(TraceRequest(name, clock_s, prompt, (reply,), session, after=after, think_s=pause_s))
            context, after, pause_s = canonical((*prompt, reply)), name, dice.pause(think_s)
            clock_s = round(clock_s + reply_s_per_token * reply[2] + pause_s, 3)
        start_s = round(start_s + dice.pause(1.0 / sessions_per_s), 3)
        number += 1
    return _trace("chat", seed, out[:requests], used)


def rag(
    seed: int = 0,
    *,
    requests: int = 1000,
    requests_per_s: float = 2.0,
    system_tokens: Span = (400, 400),
    documents: int = 500,
    document_tokens: Span = (60, 512),
    retrieved: Span = (2, 8),
    zipf: float = 1.0,
    question_tokens: Span = (8, 120),
    output_tokens: Span = (40, 400),
) -> Trace:
    """Questions over shared documents: system prompt, retrieved documents, question.

    Documents end off every page, so that the same document at another place is another key.

    Args:
        seed: any integer.
        requests: number of requests.
        requests_per_s: mean arrival rate (Poisson), per second.
        system_tokens: span of the shared system prompt, in tokens.
        documents: number of documents in the corpus.
        document_tokens: span of a document's length, in tokens.
        retrieved: span of the number of different documents in a prompt; high <= ``documents``.
        zipf: exponent of the documents' popularity; 0 is uniform.
        question_tokens: span of a question, in tokens.
        output_tokens: span of a reply, in tokens.
    """
    check_positive(requests=requests, requests_per_s=requests_per_s, documents=documents)
    check_spans(system_tokens=system_tokens, document_tokens=document_tokens, retrieved=retrieved)
    check_spans(question_tokens=question_tokens, output_tokens=output_tokens)
    if retrieved[1] > documents:
        legal = (min(retrieved[0], documents), documents)
        raise ValueError(
            f"retrieved={retrieved} must not exceed documents={documents}; nearest legal value: {legal}"
        )
    used = {key: value for key, value in locals().items() if key != "seed"}
    dice = Dice(seed)
    system = dice.fresh(dice.length(system_tokens))
    corpus = [dice.fresh(dice.length(document_tokens)) for _ in range(documents)]
    popularity = zipf_sums(documents, zipf)
    out: list[TraceRequest] = []
    clock_s = 0.0
    for number in range(requests):
        chosen: dict[int, None] = {}
        wanted = dice.count(retrieved)
        while len(chosen) < wanted:
            chosen[dice.ranked(popularity)] = None
        parts = (system, *(corpus[item] for item in chosen), dice.fresh(dice.length(question_tokens)))
        reply = (dice.fresh(dice.length(output_tokens)),)
        out.append(TraceRequest(f"q{number:06d}", clock_s, canonical(parts), reply))
        clock_s = round(clock_s + dice.pause(1.0 / requests_per_s), 3)
    return _trace("rag", seed, out, used)


def few_shot(
    seed: int = 0,
    *,
    requests: int = 1000,
    tasks: int = 8,
    examples: Span = (4, 16),
    example_tokens: Span = (60, 400),
    question_tokens: Span = (30, 300),
    output_tokens: Span = (1, 60),
    batch_s: float = 0.0,
    shuffle_share: float = 0.5,
) -> Trace:
    """Few-shot batches: each task's examples are shared by its questions; all of a task arrive together.

    Args:
        seed: any integer.
        requests: number of requests, spread evenly over the tasks.
        tasks: number of tasks.
        examples: span of examples in a task's head.
        example_tokens: span of an example, in tokens.
        question_tokens: span of a question, in tokens.
        output_tokens: span of a reply, in tokens.
        batch_s: time between two tasks' batches, in seconds; 0 submits everything at once.
        shuffle_share: share of requests whose task is drawn anew, so that batches interleave.
    """
    check_positive(requests=requests, tasks=tasks)
    check_shares(shuffle_share=shuffle_share)
    check_spans(examples=examples, example_tokens=example_tokens)
    check_spans(question_tokens=question_tokens, output_tokens=output_tokens)
    if batch_s < 0:
        raise ValueError(f"batch_s={batch_s} must be 0 or more; nearest legal value: 0")
    used = {key: value for key, value in locals().items() if key != "seed"}
    dice = Dice(seed)
    heads = [
        tuple(dice.fresh(dice.length(example_tokens)) for _ in range(dice.count(examples)))
        for _ in range(tasks)
    ]
    out: list[TraceRequest] = []
    for number in range(requests):
        batch = number * tasks // requests
        task = dice.count((0, tasks - 1)) if dice.happens(shuffle_share) else batch
        prompt = canonical((*heads[task], dice.fresh(dice.length(question_tokens))))
        reply = (dice.fresh(dice.length(output_tokens)),)
        out.append(TraceRequest(f"f{number:06d}", round(batch * batch_s, 3), prompt, reply))
    return _trace("few_shot", seed, out, used)


def random_prompts(
    seed: int = 0,
    *,
    requests: int = 1000,
    requests_per_s: float = 2.0,
    prompt_tokens: Span = (50, 4000),
    output_tokens: Span = (20, 500),
) -> Trace:
    """Prompts that share nothing: what a cache costs where it cannot help.

    Args:
        seed: any integer.
        requests: number of requests.
        requests_per_s: mean arrival rate (Poisson), per second.
        prompt_tokens: span of a prompt, in tokens.
        output_tokens: span of a reply, in tokens.
    """
    check_positive(requests=requests, requests_per_s=requests_per_s)
    check_spans(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    used = {key: value for key, value in locals().items() if key != "seed"}
    dice = Dice(seed)
    out: list[TraceRequest] = []
    clock_s = 0.0
    for number in range(requests):
        prompt = (dice.fresh(dice.length(prompt_tokens)),)
        out.append(TraceRequest(f"r{number:06d}", clock_s, prompt, (dice.fresh(dice.length(output_tokens)),)))
        clock_s = round(clock_s + dice.pause(1.0 / requests_per_s), 3)
    return _trace("random", seed, out, used)


GENERATORS: dict[str, Callable[..., Trace]] = {
    "agentic": agentic,
    "chat": chat,
    "rag": rag,
    "few_shot": few_shot,
    "random": random_prompts,
}


def _trace(name: str, seed: int, requests: Iterable[TraceRequest], used: dict[str, Any]) -> Trace:
    shown = ", ".join(f"{key}={value}" for key, value in used.items())
    return Trace(name, tuple(requests), SOURCE, seed, (f"parameters: {shown}",))


def _hint(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"{meant} known: {', '.join(names)}" if meant else f"; known: {', '.join(names)}"
