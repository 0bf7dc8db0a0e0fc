"""Depth rules that belong to one engine's bundle and depend on its settings; ``depthchart.presets`` uses them.

Each function returns a ``Rule``. Depths are counts of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from depthchart.depth import RULES, Decision, Rule
from depthchart.geometry import Geometry

__all__ = [
    "HEAD_STEP",
    "decode_on_interval",
    "every_n",
    "marked",
    "spaced",
    "vllm_all",
    "vllm_any_cut",
    "vllm_junction",
    "vllm_steps",
]

HEAD_STEP = 512


def decode_on_interval(rule: Rule) -> Rule:
    """The rule with decode checkpoints on its track interval alone (which SGLang wants to be a multiple of the page; others
    are widened to one), as SGLang took them before #35412: where DCP widens
    the tree page, they hang on the node before. As sound as the rule where the tree page divides the interval."""
    return replace(
        rule, name=f"{rule.name}_on_interval", decode_grid=lambda g: lcm(g.page_size, g.track_interval)
    )


def vllm_steps() -> Rule:
    """vLLM's align mode (vllm#30877): prefill steps end on blocks, each leaves its state; so do decode steps.

    Sound: it donates only where the last multiple of the tree page is the end of the step, whose state always exists.
    """
    return replace(RULES["vllm_align"], name="vllm_steps", decode_grid=lambda g: g.tree_page)


def vllm_junction() -> Rule:
    """Align mode that also cuts a step where KV goes on and no state does (vllm#37898, merged 2026-06-10).

    Sound: a cut changes where steps end, and what is donated is decided as in ``vllm_steps``.
    """
    return replace(vllm_steps(), name="vllm_junction", cuts_branch=True)


def vllm_any_cut() -> Rule:
    """Align mode before vllm#51113, with speculation: a step may end inside a block, and leaves its state in that
    block's slot; the next one passes the block's end and publishes the slot as the state of that end. Not sound."""

    def decide(g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
        page = g.tree_page
        passed = -(-prefix // page) * page  # the end of the block that the step before left its state in
        stale = (passed,) if prefix < passed < end else ()
        if end % page == 0 and end > prefix:
            return Decision(end, True, f"the step ends on the block end {end}", stale)
        if stale:
            return Decision(passed, True, f"the slot of the block up to {passed}, written at {prefix}")
        return Decision(None, False, f"the step ends at {end}, off the block of {page}")

    return Rule(
        "vllm_any_cut",
        "steps end anywhere; a block passed later publishes what its slot holds (vllm before #51113)",
        decide=decide,
        snapshots="start",
        cut_grid=lambda g: 1,
        decode_grid=lambda g: g.tree_page,
    )


def vllm_all() -> Rule:
    """vLLM's all mode (vllm#25752): a state at every block end that the kernel's chunks meet.

    Sound: its depths are multiples of the tree page, each the end of the step or of a chunk counted from the prefix.
    """

    def decide(g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
        first = prefix // g.tree_page * g.tree_page + g.tree_page
        ends = [
            d for d in range(first, end + 1, g.tree_page) if d == end or (d - prefix) % g.chunk_width == 0
        ]
        if not ends:
            return Decision(
                None, False, f"no block of {g.tree_page} ends at a chunk end in ({prefix}, {end}]"
            )
        return Decision(ends[-1], True, f"all {len(ends)} block ends, up to {ends[-1]}", tuple(ends[:-1]))

    return Rule(
        "vllm_all",
        "a state at every block end (vllm#25752)",
        decide=decide,
        cut_grid=lambda g: g.tree_page,
        decode_grid=lambda g: g.tree_page,
    )


def every_n(tokens: int) -> Rule:
    """llama.cpp's checkpoints: every ``tokens`` tokens of a prompt, and the live state at its end (llama.cpp#20087).

    Sound: each depth is floored to the tree page and lies beyond the prefix; the kernel stores any depth.
    """
    if tokens < 1:
        raise ValueError(f"tokens={tokens}: must be at least 1; nearest legal: 1")

    def decide(g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
        page = g.tree_page
        kept = _on_pages((*range(prefix + tokens, end, tokens), end), page, prefix, end)
        if not kept:
            return Decision(None, False, f"no page of {page} ends in ({prefix}, {end}]")
        return Decision(kept[-1], True, f"every {tokens} tokens from {prefix}, and the end", tuple(kept[:-1]))

    return Rule(
        "every_n",
        f"every {tokens} tokens and at the end (llama.cpp)",
        decide=decide,
        snapshots="any",
        decode_grid=lambda g: g.tree_page,
    )


def marked(*depths: int) -> Rule:
    """A state where the application says so, such as at the end of a system prompt that all requests share (vllm#55697), or
    from a threshold that an operator sets (sglang#37198); and at the last page of the text.

    A mark inside a page counts for the page before. Sound: every depth is a multiple of the tree page in (prefix, end];
    the kernel stores any depth. Raises ValueError for no mark, or one below 1.
    """
    if not depths or min(depths) < 1:
        raise ValueError(f"depths={list(depths)}: must be depths of at least 1 token; nearest legal: [1]")

    def decide(g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
        page = g.tree_page
        kept = _on_pages((*depths, end), page, prefix, end)
        if not kept:
            return Decision(None, False, f"no mark and no page ends in ({prefix}, {end}]")
        return Decision(kept[-1], True, f"{len(kept)} of: marks, last page", tuple(kept[:-1]))

    return Rule(
        "marked",
        f"states at the marks {', '.join(map(str, sorted(depths)))}, and at the last page",
        decide=decide,
        snapshots="any",
        decode_grid=lambda g: g.tree_page,
    )


def spaced(spacing: int, head: int = 0) -> Rule:
    """Our own: the last page of the text, the branch depth, and every multiple of ``spacing`` tokens on the way; up to
    ``head`` tokens every multiple of 512 (``HEAD_STEP``), since what texts share without a common past, such as system
    prompts and examples, lies at their beginning.

    The kernel stores any depth. Where a text ends on a page, the page before is kept as well: the same prompt again is
    matched to one token less than its length (sglang#30882, vllm#50409). A full budget of tokens tells a cut, where that
    is of no use.

    Sound: every depth is a multiple of the tree page (both steps are rounded up to one) in (prefix, end].
    """
    if spacing < 1:
        raise ValueError(f"spacing={spacing}: must be at least 1; nearest legal: 1")
    if head < 0:
        raise ValueError(f"head={head}: must be at least 0; nearest legal: 0")

    def decide(g: Geometry, prefix: int, end: int, branch: int | None) -> Decision:
        page, cut = g.tree_page, end - prefix >= g.chunked_prefill_size
        step, fine = (-(-tokens // page) * page for tokens in (spacing, HEAD_STEP))
        wanted = set(range(prefix // step * step + step, end + 1, step))
        wanted.update(range(prefix // fine * fine + fine, min(end, head) + 1, fine))
        wanted.add(end)
        if not cut:
            wanted.add(end - 1)
        if branch is not None:
            wanted.add(branch)
        kept = _on_pages(wanted, page, prefix, end)
        if not kept:
            return Decision(None, False, f"nothing to keep in ({prefix}, {end}]")
        return Decision(
            kept[-1], True, f"{len(kept)} of: last page, branch, head, multiples of {step}", tuple(kept[:-1])
        )

    return Rule(
        "spaced",
        f"last page, branch depth, every {spacing} tokens, the first {head} finer; any depth",
        decide=decide,
        snapshots="any",
        decode_grid=lambda g: g.tree_page,
    )


def _on_pages(depths: Iterable[int], page: int, prefix: int, end: int) -> list[int]:
    """The depths floored to the page, those in (prefix, end], ascending and each once."""
    return sorted(depth for depth in {wanted // page * page for wanted in depths} if prefix < depth <= end)
