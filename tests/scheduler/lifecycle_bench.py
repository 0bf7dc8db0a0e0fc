"""A lifecycle on a bench: requests named by their texts, and what must hold after each step."""

import pytest
from books import books, totals

from depthchart import Geometry
from depthchart.cache import Memory
from depthchart.events import EventLog
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.tokens import Text

SEED = Geometry(64, 8)  # tree page and grid 512, chunk 64
DOC = 1


class Bench:
    """A lifecycle with its log, and requests named by their texts: ``doc`` is a text of one segment."""

    def __init__(self, rule="absolute", geometry=SEED, pages=16, slots=16, *, strict=True, **options):
        self.log = EventLog()
        self.memory = Memory(geometry, pages * geometry.tree_page, slots, emit=self.log)
        self.life = Lifecycle(self.memory, rule, strict=strict, emit=self.log, **options)

    def text(self, *runs, namespace=""):
        return Text(self.memory.index, [(segment, 0, length) for segment, length in runs], namespace)

    def doc(self, length):
        return self.text((DOC, length))

    def begin(self, name, text):
        return self.life.begin(name, text)

    def extend(self, sequence, *ends, checkpoint=True):
        for end in ends:
            self.life.commit_extend(self.life.plan_extend(sequence, end))
            if checkpoint:
                self.life.checkpoint(sequence)

    def decode(self, sequence, tokens):
        plans = []
        for _ in range(tokens):
            sequence.text.append([(99, len(sequence.text), 1)])
            plans.append(self.life.plan_decode(sequence))
            self.life.commit_decode(plans[-1])
        return plans

    def run(self, name, text, *ends):
        """A whole life without decode."""
        sequence = self.begin(name, text)
        self.extend(sequence, *(ends or (len(text),)))
        self.life.finish(sequence)

    def states(self):
        """{end: depth of its state or None} of the nodes on one path."""
        tags = self.memory.states.tags
        return {n.end: None if n.state is None else tags[n.state].depth for n in self.memory.tree.root.walk()}

    def check(self):
        self.life.check_invariants()
        assert totals(self.life) == (self.memory.allocator.total_tokens, self.memory.states.total_slots)

    def refuses(self, error, call, match=None):
        """The call raises and every structure is as it was."""
        before = books(self.life)
        with pytest.raises(error, match=match) as caught:
            call()
        assert books(self.life) == before
        self.check()
        return str(caught.value)
