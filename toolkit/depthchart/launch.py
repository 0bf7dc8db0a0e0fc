"""Reads the geometry off an engine's launch line: ``python -m sglang.launch_server …`` or ``vllm serve …``.

Only flags that move a grid are read; every value says whether a flag or the engine's default gave it.
Facts about the engines carry the public thread that they come from. Lengths are in tokens.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import lcm
from typing import NamedTuple

from depthchart.geometry import Advice, Geometry

__all__ = ["Launch", "LaunchError", "Setting", "parse_launch"]

UNDERSTOOD = (
    "python -m sglang.launch_server …, sglang serve …, vllm serve MODEL …, "
    "python -m vllm.entrypoints.openai.api_server …"
)


class LaunchError(ValueError):
    """A launch line that cannot be read; the message names the word and what is understood."""


class Setting(NamedTuple):
    """One value that was used and where it came from: a flag, ``engine default …`` or ``given``."""

    name: str
    value: int | str
    source: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch line means for the cache.

    ``engine`` is ``"sglang"`` or ``"vllm"``; ``rule`` the depth rule that stands for it (release 0.5.23:
    ``dcp_gated``; align mode: ``vllm_align``); ``notes`` are remarks on the line itself.
    """

    engine: str
    rule: str
    geometry: Geometry
    settings: tuple[Setting, ...]
    notes: tuple[Advice, ...] = ()


def parse_launch(argv: Sequence[str], given: Mapping[str, int] | None = None) -> Launch:
    """Read a launch line, as words or as one quoted string.

    ``given`` overrides fields of the geometry (such as ``chunk_width``, which no engine takes as a flag).
    Raises LaunchError where the line is not understood, ValueError where its geometry is illegal.
    """
    words = _words(argv)
    engine, options, notes = _find_engine(words)
    given = dict(given or {})
    unknown = sorted(set(given) - {field.name for field in fields(Geometry)})
    if unknown:
        raise ValueError(f"given={unknown[0]!r}: is not a field of Geometry")
    flags = _Flags(options, _SGLANG if engine == "sglang" else _VLLM, notes)
    return (_sglang if engine == "sglang" else _vllm)(flags, given)


# --- what the engines take --------------------------------------------------------------------------------

_MODEL = {"--model-path": "model", "--model": "model", "--config": "config"}
_SGLANG = {
    **_MODEL,
    "--page-size": "page_size",
    "--dcp-size": "dcp_size",
    "--decode-context-parallel-size": "dcp_size",
    "--chunked-prefill-size": "chunked_prefill_size",
    "--mamba-track-interval": "track_interval",
    "--mamba-scheduler-strategy": "strategy",
    "--mamba-radix-cache-strategy": "strategy",
    "--disable-radix-cache": "no_reuse",
}
_VLLM = {
    **_MODEL,
    "--block-size": "block_size",
    "--mamba-block-size": "mamba_block_size",
    "--decode-context-parallel-size": "dcp_size",
    "-dcp": "dcp_size",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--mamba-cache-mode": "mode",
    "--enable-prefix-caching": "reuse",
    "--no-enable-prefix-caching": "no_reuse",
}
_SWITCHES = ("reuse", "no_reuse")
_CHOICES = {
    "mode": ("none", "all", "align"),
    "strategy": ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
}
_TEXT = ("model", "config", *_CHOICES)

# Real flags that look like one of ours and are none of our business.
_NEIGHBOURS = [
    "--tp-size",
    "--dp-size",
    "--pp-size",
    "--ep-size",
    "--cp-size",
    "--pcp-size",
    "--attn-cp-size",
    "--moe-dp-size",
    "--max-prefill-tokens",
    "--prefill-context-parallel-size",
    "--context-parallel-size",
    "--max-num-seqs",
    "--enable-chunked-prefill",
    "--no-enable-chunked-prefill",
    "--mamba-ssm-dtype",
    "--mamba-backend",
    "--mamba-full-memory-ratio",
    "--max-mamba-cache-size",
    "--mamba-cache-dtype",
    "--mamba-ssm-cache-dtype",
    "--enable-mixed-chunk",
    "--model-impl",
    "--model-loader-extra-config",
    "--max-model-len",
    "--hicache-size",
    "--max-total-tokens",
    "--config-format",
]

# Chunk widths of the state-space kernels, by model family (configurations of the checkpoints); the
# linear-attention kernels (KDA, gated delta net, lightning) use 64.
_CHUNKS = (
    ("nemotron", 128),
    ("falcon-h1", 128),
    ("granite-4", 256),
    ("zamba2", 256),
    ("minimax-text", 256),
    ("minimax-m1", 256),
)
_DEFAULT_CHUNK = 64


def _sglang(flags: _Flags, given: Mapping[str, int]) -> Launch:
    page = flags.number("page_size", 1, "engine default 1; some attention backends raise it")
    dcp = flags.number("dcp_size", 1, "engine default 1")
    budget = flags.number(
        "chunked_prefill_size", 8192, "engine default, depends on GPU memory; 8192 assumed", least=-1
    )
    track = flags.number("track_interval", 256, "engine default 256")
    chunk = _chunk_width(flags)
    if budget == -1:
        budget = flags.override(
            "chunked_prefill_size", 1 << 20, "-1: no chunking; taken as 1048576 tokens a step"
        )
    if flags.text("strategy") == "no_buffer":
        if page != 1:
            page = flags.override("page_size", 1, "strategy no_buffer forces 1 (sglang#20538)")
        flags.note(
            "costs",
            "no-buffer",
            "strategy no_buffer keeps a state only where an insert ends, so an identical prompt matches "
            "nothing "
            "(sglang#22935); the advice below is for extra_buffer.",
        )
    if flags.has("no_reuse"):
        flags.note("costs", "no-reuse", "--disable-radix-cache is set: nothing is ever reused.")
    values = {"page_size": page, "dcp_size": dcp, "chunk_width": chunk}
    geometry = _geometry(flags, {**values, "chunked_prefill_size": budget, "track_interval": track}, given)
    if geometry.track_interval % geometry.page_size:
        flags.note(
            "breaks",
            "track-off-page",
            f"track_interval {geometry.track_interval} is not a multiple of page_size {geometry.page_size}: "
            f"sglang "
            "asserts that it is and does not start (sglang#14792).",
        )
    flags.note(
        "note",
        "rule",
        "the engine's own rule of release 0.5.23 is dcp_gated: absolute under DCP, else prefix-relative.",
    )
    return Launch("sglang", "dcp_gated", geometry, tuple(flags.settings), tuple(flags.notes))


def _vllm(flags: _Flags, given: Mapping[str, int]) -> Launch:
    block = flags.number("block_size", 16, "engine default 16; a hybrid model inflates it to hold a state")
    state_block = flags.number("mamba_block_size", block, "engine default: the block size")
    dcp = flags.number("dcp_size", 1, "engine default 1")
    budget = flags.number("max_num_batched_tokens", 2048, "engine default 2048; more on large GPUs")
    threshold = flags.number("long_prefill_token_threshold", 0, "engine default: none", least=0)
    mode = flags.text("mode") or "align"
    if flags.text("mode") is None:
        flags.add("mode", mode, "engine default where prefix caching is on")
    span = block * dcp
    both = lcm(span, state_block)
    # The final state of a step exists after any token, so align mode has no chunk grid.
    chunk = (
        _chunk_width(flags)
        if mode == "all"
        else flags.add("chunk_width", 1, "align mode stores a step's final state: any token")
    )
    values = {"page_size": both // dcp, "dcp_size": dcp, "chunk_width": chunk, "track_interval": both}
    step = min(budget, threshold or budget)
    geometry = _geometry(flags, {**values, "chunked_prefill_size": step}, given)
    _vllm_notes(flags, block, state_block, dcp, budget, mode, geometry)
    return Launch("vllm", "vllm_align", geometry, tuple(flags.settings), tuple(flags.notes))


def _vllm_notes(
    flags: _Flags, block: int, state_block: int, dcp: int, budget: int, mode: str, geometry: Geometry
) -> None:
    both = lcm(block * dcp, state_block)
    if dcp > 1 or state_block != block:
        flags.note(
            "note",
            "dcp-attention-only",
            f"DCP scales attention blocks only: one spans {block} · {dcp} = {block * dcp} tokens, a state "
            f"block stays "
            f"{state_block} (vllm#49962); reuse must end on both, every lcm = {both} tokens (LMCache#4834).",
        )
    flags.note(
        "note",
        "block-inflated",
        "a hybrid model's block is raised until it holds one state (528 to 8320 tokens seen, vllm#20016): "
        "check the "
        f"resolved block in the engine's log against {block}, and pass that as --block-size here.",
    )
    if mode == "none" or flags.has("no_reuse"):
        why = "--mamba-cache-mode none" if mode == "none" else "--no-enable-prefix-caching"
        flags.note("costs", "no-reuse", f"{why} is set: no state is kept, so nothing is reused.")
    if mode == "all":
        if state_block % geometry.chunk_width:
            flags.note(
                "breaks",
                "block-off-chunk",
                f"mode all reads states at chunk ends, but the state block {state_block} is not a multiple "
                f"of "
                f"chunk_width {geometry.chunk_width} (vllm#25752, vllm#57278).",
            )
        flags.note(
            "note",
            "rule",
            "mode all keeps a state at every block; rule vllm_align names the same depths, one a step.",
        )
    else:
        flags.note(
            "note",
            "rule",
            "rule vllm_align stands for mode align: a state where a step ends on the block (vllm#30877).",
        )
    if state_block > budget and mode == "align":
        severity = "breaks" if flags.has("max_num_batched_tokens") else "note"
        flags.note(
            severity,
            "block-over-budget",
            f"the state block {state_block} is larger than max_num_batched_tokens {budget}"
            f"{'' if severity == 'breaks' else ' (the default of small GPUs)'}: vllm refuses such a start "
            f"(vllm#34445).",
        )


def _geometry(flags: _Flags, values: Mapping[str, int], given: Mapping[str, int]) -> Geometry:
    for name, value in given.items():
        flags.add(name, value, "given")
    return Geometry(**{**values, **given})


def _chunk_width(flags: _Flags) -> int:
    model = (flags.text("model") or "").lower()
    for part, width in _CHUNKS:
        if part in model:
            return flags.add("chunk_width", width, f"the model's family ({part})")
    return flags.add(
        "chunk_width",
        _DEFAULT_CHUNK,
        "default of linear-attention kernels; set --chunk-width if yours differs",
    )


# --- reading the words ------------------------------------------------------------------------------------


def _words(argv: Sequence[str]) -> list[str]:
    words = [argv] if isinstance(argv, str) else list(argv)
    if len(words) == 1 and re.search(r"\s", words[0]):
        try:
            words = shlex.split(words[0].replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise LaunchError(f"launch line: {str(error).lower()}; check its quotes") from None
    words = [word for word in words if word.strip() and word != "\\"]
    if not words:
        raise LaunchError(f"launch line: is empty; understood are {UNDERSTOOD}")
    return words


def _find_engine(words: list[str]) -> tuple[str, list[str], list[Advice]]:
    """The engine, the words after it, and a note on what stands before it (wrappers, assignments)."""
    modules = {"sglang.launch_server": "sglang", "vllm.entrypoints.openai.api_server": "vllm"}
    commands = {"sglang": "sglang", "vllm": "vllm"}
    for at, word in enumerate(words):
        if word in modules and at and words[at - 1] == "-m":
            return modules[word], words[at + 1 :], _before(words[: max(0, at - 2)])
        name = word.rsplit("/", 1)[-1]
        if name in commands and words[at + 1 : at + 2] == ["serve"]:
            rest = words[at + 2 :]
            if name == "vllm" and rest and not rest[0].startswith("-"):
                rest = ["--model", *rest]
            return name, rest, _before(words[:at])
    program = next((word for word in words if not _assignment(word)), words[0])
    raise LaunchError(f"program={program!r}: is not an engine's launch line; understood are {UNDERSTOOD}")


def _before(words: list[str]) -> list[Advice]:
    skipped = [
        word for word in words if not _assignment(word) and not re.fullmatch(r"(.*/)?python[\d.]*|-u", word)
    ]
    if not skipped:
        return []
    return [Advice("note", "wrapper", f"words before the engine are not read: {' '.join(skipped)}")]


def _assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None


class _Flags:
    """The flags that matter, the settings read from them so far, and remarks on the way."""

    def __init__(self, words: list[str], known: Mapping[str, str], notes: list[Advice]) -> None:
        self.known, self.notes, self.settings = known, notes, list[Setting]()
        self._read: dict[str, tuple[str, str]] = {}
        self._unread: list[str] = []
        at = 0
        while at < len(words):
            at = self._take(words, at)
        if self._unread:
            self.note(
                "note",
                "unread",
                f"not understood, so not read: {', '.join(dict.fromkeys(self._unread))}; only flags that move a grid are.",
            )
        if "config" in self._read:
            self.note(
                "note",
                "config-file",
                f"values inside {self._read['config'][1]} are not read: pass them as flags.",
            )

    def has(self, name: str) -> bool:
        return name in self._read

    def text(self, name: str) -> str | None:
        return self._read[name][1] if name in self._read else None

    def number(self, name: str, default: int, source: str, *, least: int = 1) -> int:
        """The flag's whole number, else the engine's default; noted among the settings."""
        if name not in self._read:
            return self.add(name, default, source)
        flag, text = self._read[name]
        value = _whole(flag, text)
        if value < least:
            legal = "-1 (no chunking) or at least 1" if least == -1 else f"at least {least}"
            raise ValueError(f"{flag}={value}: must be {legal}; nearest legal: {least}")
        return self.add(name, value, flag)

    def add(self, name: str, value: int | str, source: str) -> int:
        self.settings = [s for s in self.settings if s.name != name] + [Setting(name, value, source)]
        return value if isinstance(value, int) else 0

    def override(self, name: str, value: int, source: str) -> int:
        return self.add(name, value, source)

    def note(self, severity: str, code: str, text: str) -> None:
        self.notes.append(Advice(severity, code, text))

    def _take(self, words: list[str], at: int) -> int:
        """Read the word at ``at``; returns the index of the next unread one."""
        word, equals, value = words[at].partition("=")
        flag = word.replace("_", "-") if word.startswith("--") else word
        if flag not in self.known:
            self._near_miss(flag)
            return at + 1
        name = self.known[flag]
        if name in _SWITCHES:
            value = "true"
            opposite = "no_reuse" if name == "reuse" else "reuse"
            self._read.pop(opposite, None)
        elif not equals:
            at += 1
            if at == len(words) or words[at].startswith("--"):
                raise LaunchError(f"{flag}: needs a value")
            value = words[at]
        self._keep(name, flag, value)
        return at + 1

    def _keep(self, name: str, flag: str, value: str) -> None:
        if name in _CHOICES and value not in _CHOICES[name]:
            near = get_close_matches(value, _CHOICES[name], n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise LaunchError(f"{flag}={value!r}: must be one of {', '.join(_CHOICES[name])}{hint}")
        if name in self._read and name not in _SWITCHES:
            old = self._read[name]
            self.note(
                "note",
                "repeated",
                f"{flag} {value} replaces the earlier {old[0]} {old[1]}: the last one counts.",
            )
        self._read[name] = (flag, value)
        if name in _TEXT and name != "config":
            self.add(name, value, flag)

    def _near_miss(self, flag: str) -> None:
        if not flag.startswith("-") or re.fullmatch(r"-[\d.]+", flag) or flag in _NEIGHBOURS:
            return
        near = [known for known in self.known if flag.startswith("--") and known.startswith(f"{flag}-")]
        near = near or get_close_matches(flag, self.known, n=1, cutoff=0.85)
        if near:
            self.note("note", "near-miss", f"{flag} is not read; did you mean {' or '.join(near)}?")
        else:
            self._unread.append(flag)


def _whole(flag: str, text: str) -> int:
    """A whole number; vllm also writes 8k (8000) and 8K (8192)."""
    units = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
    match = re.fullmatch(r"([+-]?\d+)([kKmM]?)", text)
    if match:
        return int(match[1]) * units.get(match[2], 1)
    hint = " (shell variables are not expanded here)" if "$" in text else ""
    raise LaunchError(f"{flag}={text!r}: must be a whole number of tokens{hint}")
