"""A trace cut into pages once, so that a sweep over one page size does not pay for it again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthchart.traces.trace import Runs, Trace, canonical, page_keys

Pages = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PreparedTrace:
    """The pages of every request as small numbers; equal number, equal tokens, and nothing else.

    A page's number says what it holds, not where it stands: whoever matches follows the path.

    Args:
        page: tokens per page.
        prompts: for each request, its prompt's full pages, int32 [pages].
        wholes: for each request, the full pages of prompt and reply together, int32 [pages].
        distinct: number of different pages; they are numbered from 0.
    """

    page: int
    prompts: tuple[Pages, ...]
    wholes: tuple[Pages, ...]
    distinct: int


class PageTable:
    """Interns page contents: the exact runs of a page are its key, so there are no collisions."""

    def __init__(self, page: int) -> None:
        self.page = page
        self._numbers: dict[Runs, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, runs: Runs) -> Pages:
        """Numbers of the full pages of canonical ``runs``, int32 [pages]; new pages get the next number."""
        known = self._numbers
        found = [known.setdefault(key, len(known)) for key in page_keys(runs, self.page)]
        return np.array(found, dtype=np.int32)


def prepare(trace: Trace, page: int) -> PreparedTrace:
    """The trace in pages of ``page`` tokens; kept as long as the trace lives, so asking twice is free."""
    kept = _KEPT.get(id(trace))
    if kept is None:
        kept = _KEPT[id(trace)] = {}
        weakref.finalize(trace, _KEPT.pop, id(trace), None)
    if page not in kept:
        kept[page] = _prepare(trace, page)
    return kept[page]


_KEPT: dict[int, dict[int, PreparedTrace]] = {}


def _prepare(trace: Trace, page: int) -> PreparedTrace:
    table = PageTable(page)
    prompts: list[Pages] = []
    wholes: list[Pages] = []
    for request in trace:
        whole = table.numbers(canonical((*request.prompt, *request.output)))
        # A full page of the prompt is a full page of the whole.
        prompts.append(whole[: request.prompt_tokens // page])
        wholes.append(whole)
    return PreparedTrace(page, tuple(prompts), tuple(wholes), len(table))
