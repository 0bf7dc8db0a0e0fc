"""Why the sound rules are sound: the lemma behind invariant 1, with a short proof per rule.

Write T for the tree page, C for the chunk width, c = cache_chunk = max(C, P) where C | c, G = lcm(c, T), and let a
rule answer depth d for the extend [p, e). A donated state is filed on the node that ends at ⌊d/T⌋·T and is the one
that the kernel stored: after p + ⌊(d − p)/C⌋·C tokens, or after d itself where d = e or where it can store any depth.

**Lemma.** If d is a multiple of T and the kernel can store d, then the state has consumed exactly the tokens of
its node. *Proof.* The node ends at ⌊d/T⌋·T = d, and the stored depth is d; both texts are the request's own. ∎

So a rule is sound where both premises hold for every depth that it donates:

``absolute``      d = ⌊e/G⌋·G is a multiple of G, so of T. It donates only if c | d − p, so C | d − p: a chunk end.
``dcp_gated``     with DCP as ``absolute``. Without DCP and without an index pool T = P divides c, so G = c: the
                  depth p + k·G is stored (C | c). It is a multiple of T only where p is: if cuts lie on P. Cuts
                  that do not (a step's budget shared with decode rows) or an index pool break it.
``page_exact``    d = ⌊e/T⌋·T; the kernel stores any depth. Branch depths are taken only where T divides them.
``vllm_align``    it donates only where d = ⌊e/T⌋·T = e: a multiple of T, and the final state of the step.
``marconi``       as ``absolute``; a branch depth b only where T | b and c | b − p.

The rules of the presets (``depthchart.rules``):

``vllm_steps``, ``vllm_junction``   as ``vllm_align``. Where steps are cut decides how often e is a multiple of T, not
                  what is donated; a junction is a branch depth, and a step that ends there donates only where T | e.
``vllm_all``      d runs through the multiples of T in (p, e]; it keeps d = e and those where C | d − p: chunk ends.
``every_n``       d = ⌊x/T⌋·T for x = p + n, p + 2n, … and e, those beyond p; the kernel stores any depth.
``spaced``        d is the last multiple of T at or before e, e − 1 or the branch depth, or a multiple of its step, which
                  is rounded up to T; all in (p, e], and the kernel stores any depth.
``…_on_interval`` the prefill depths of the rule that it is made from; its decode checkpoints lie on the interval, below.
``vllm_any_cut``  breaks the second premise: ⌈p/T⌉·T is a multiple of T, and what is stored there is the state of p, less
                  than that wherever it is donated. That is vllm#51113.

In each case "a snapshot exists" is the second premise, and "a node ends there" the first: a text that goes on to d
has its whole pages up to d in the tree when the checkpoint is published, since T | d.

A branch depth that replaces a planned one (``absolute``, ``dcp_gated``) is a multiple of G, since the tree
names branch depths on that grid, and c | b − p is asked for: both premises again.

``chunk_grid`` and ``prefix_relative`` fail the first premise: p + k·c and p + k·G are multiples of T only where p is
(and T | c). That is sglang#34808 and sglang#39115.

Decode: a checkpoint is a copy of the working state after d tokens, so it is stored; d is a multiple of the track
grid lcm(G, interval), so of T. The rules of vLLM, llama.cpp and ``spaced`` take T itself. With the interval alone
(``…_on_interval``) T need not divide it: sglang#35412.
"""

from __future__ import annotations

from depthchart.depth import Rule
from depthchart.geometry import Geometry

__all__ = ["broken_premise"]


def broken_premise(
    rule: Rule, geometry: Geometry, prefix: int, end: int, branch: int | None = None
) -> str | None:
    """Which premise of the lemma one decision breaks, in words; None where it holds (or nothing is donated).

    ``branch`` must be a multiple of the checkpoint grid, or of the tree page for ``spaced``, as the tree names it, or
    None.
    """
    for depth in rule(geometry, prefix, end, branch).depths:
        if depth % geometry.tree_page:
            return (
                f"depth {depth} is not a multiple of the tree page {geometry.tree_page}: no node ends there"
            )
        stored = rule.stored_depth(geometry, prefix, end, depth)
        if stored != depth:
            return f"depth {depth} cannot be stored: what the kernel has is the state after {stored} tokens"
    return None
