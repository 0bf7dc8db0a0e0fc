"""What a search covered and found: as data, as JSON, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Any

from depthchart.depth import RULES
from depthchart.verify.bounds import Bounds
from depthchart.verify.counterexample import Counterexample

__all__ = ["Report"]


@dataclass
class Report:
    """What a search covered and found. ``tokens``: as many as the longest histories compute.

    ``histories``: runs on the real code; ``worlds``: different worlds among them; ``merged``: histories that ended in
    a world reached before; ``open``: histories that the step bound cut off; ``lost``: requests that ended with less
    on offer than their geometry can name (and ``lost_tokens`` how much, ``ended`` how many ended), evictions aside.
    """

    rule: str
    bounds: Bounds
    tokens: int = 0
    geometries: int = 0
    alike: int = 0
    too_wide: int = 0
    histories: int = 0
    worlds: int = 0
    merged: int = 0
    open: int = 0
    ended: int = 0
    lost: int = 0
    lost_tokens: int = 0
    seconds: float = 0.0
    complete: bool = True
    found: dict[str, Counterexample] = field(default_factory=dict)

    def joined(self, other: Report) -> Report:
        """Both searches as one: counts added."""
        names = ("histories", "worlds", "merged", "open", "ended", "lost", "lost_tokens")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, complete=self.complete and other.complete, **sums)

    def __str__(self) -> str:
        return "\n".join(_told(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def scaled(self, factor: int) -> Report:
        """The same report with counterexamples ``factor`` times as long."""
        return replace(self, found={kind: one.scaled(factor) for kind, one in self.found.items()})

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        found = [
            {
                "kind": kind,
                "message": one.fault.message,
                "tokens": one.tokens,
                "steps": one.steps,
                "script": dict(one.script),
            }
            for kind, one in self.found.items()
        ]
        counts = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("bounds", "found")
        }
        return {**counts, "sound": self.sound, "bounds": self.bounds.as_dict(), "found": found}

    @property
    def sound(self) -> bool:
        """No fault in any history within the bounds, all of which were covered."""
        return self.complete and not self.found

    @property
    def smallest(self) -> Counterexample | None:
        """The first fault that was found: no other costs less."""
        return next(iter(self.found.values()), None)


def _told(report: Report) -> list[str]:
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
