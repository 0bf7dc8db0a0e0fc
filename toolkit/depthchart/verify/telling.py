"""A search's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from depthchart.depth import RULES
from depthchart.verify.search import Report

__all__ = ["tell_report"]


def tell_report(report: Report) -> list[str]:
    """The verdict, what was covered, and each counterexample as a story."""
    what = "rule" if report.rule in RULES else "preset"
    lines = [f"{what} {report.rule}: {_verdict(report)}", *_covered(report)]
    for kind, one in report.found.items():
        count = f"{one.tokens} tokens, {one.steps} steps"
        lines += ["", f"--- {kind}, smallest case: {count} ---", *one.story()[1:]]
    return lines


def _verdict(report: Report) -> str:
    if report.found:
        return "BROKEN: " + ", ".join(report.found)
    return "sound within the bounds" if report.complete else "nothing found so far: the time ran out"


def _covered(report: Report) -> Iterator[str]:
    b = report.bounds
    several = min(report.tokens, b.tokens_together)
    yield (
        f"searched {report.histories:,} histories ({report.worlds:,} different worlds) on {report.geometries} geometries in "
        f"{report.seconds:.1f} s; {report.merged:,} histories ended in a world known before, {report.open:,} were cut off "
        f"after {b.steps} steps"
    )
    yield (
        f"up to {report.tokens} tokens with one request at a time ({several} with {b.together}), "
        f"{b.requests} requests, cuts: {b.cuts}, pools: {' and '.join(b.pools)}; {report.alike} more geometries behave "
        f"like these, {report.too_wide} have a tree page longer than that"
    )
    if report.ended:
        yield (
            f"lost donations: {report.lost:,} of {report.ended:,} finished requests offer less than their geometry can "
            f"name, {report.lost_tokens:,} tokens in all"
        )
