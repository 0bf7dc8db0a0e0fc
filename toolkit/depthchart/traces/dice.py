"""Seeded draws for the generators: only ``random.Random``, whose streams do not change between versions."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

Span = tuple[int, int]
"""Inclusive range (low, high) of a token or item count."""


class Dice:
    """One seed's draws, plus a counter of fresh segments (1, 2, ...; 0 is the vocabulary)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._segments = 0

    def fresh(self, tokens: int) -> tuple[int, int, int]:
        """A run of ``tokens`` tokens that nothing has used before."""
        self._segments += 1
        return (self._segments, 0, tokens)

    def count(self, span: Span) -> int:
        """Uniform whole number in the inclusive span."""
        low, high = span
        return low + int(self._random.random() * (high - low + 1))

    def length(self, span: Span) -> int:
        """Log-uniform whole number in the inclusive span: many short, few long."""
        low, high = span
        return min(high, int(low * (high / low) ** self._random.random()))

    def pause(self, mean_s: float) -> float:
        """Exponential waiting time in seconds, rounded to the millisecond."""
        return round(-mean_s * math.log(1.0 - self._random.random()), 3)

    def happens(self, share: float) -> bool:
        """True in ``share`` of the calls."""
        return self._random.random() < share

    def ranked(self, cumulative: Sequence[float]) -> int:
        """Index drawn with the weights whose running sums are ``cumulative``."""
        return bisect_left(cumulative, self._random.random() * cumulative[-1])


def zipf_sums(items: int, exponent: float) -> list[float]:
    """Running sums of the weights 1 / rank**exponent for ranks 1 to ``items``."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(items)))


def check_spans(**spans: Span) -> None:
    """Raise ValueError for a span that is not 1 <= low <= high."""
    for name, span in spans.items():
        low, high = span
        if not 1 <= low <= high:
            legal = (max(1, low), max(1, low, high))
            raise ValueError(f"{name}={span} must satisfy 1 <= low <= high; nearest legal value: {legal}")


def check_positive(**values: float) -> None:
    """Raise ValueError for a value that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be above 0; nearest legal value: 1")


def check_shares(**shares: float) -> None:
    """Raise ValueError for a share outside [0, 1]."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            nearest = min(1.0, max(0.0, share))
            raise ValueError(f"{name}={share} must lie in [0, 1]; nearest legal value: {nearest}")
