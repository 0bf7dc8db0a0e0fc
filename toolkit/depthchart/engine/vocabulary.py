"""Token ids for a model's embedding: a text's runs as numbers below the vocabulary's size.

Tokens of segment 0 are ids of a tokenizer and must be in range. Tokens of a trace's other segments have no id of
their own: each gets a fixed pseudo-random one, so that equal runs are equal ids.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from depthchart.tokens import VOCABULARY, Runs, runs_to_tokens

__all__ = ["token_ids"]


def token_ids(runs: Runs, vocab: int) -> npt.NDArray[np.int64]:
    """The ids of a text, int64 [tokens], each in [0, vocab).

    Raises ValueError naming the first literal token that is out of range.
    """
    tokens = runs_to_tokens(runs)
    literal = tokens >> 32 == VOCABULARY
    outside = np.flatnonzero(literal & (tokens >= vocab))
    if len(outside):
        at = int(outside[0])
        raise ValueError(
            f"token {at} is {tokens[at]}; the model knows [0, {vocab}); nearest legal: {vocab - 1}"
        )
    mixed = _mix(tokens.astype(np.uint64)) % np.uint64(vocab)
    return np.where(literal, tokens, mixed.astype(np.int64))


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of x."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
