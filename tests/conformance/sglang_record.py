"""Runs the operations recorded from SGLang 0.5.23 on our memory and lifecycle, and dumps what SGLang dumped."""

from __future__ import annotations

from depthchart.cache import Memory
from depthchart.errors import InvariantError
from depthchart.geometry import Geometry
from depthchart.scheduler.admission import PrefillBudget
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.scheduler.sequence import Snapshot
from depthchart.tokens import Text


def runs(seq):
    return [(run[0], run[2] if len(run) > 2 else 0, run[1]) for run in seq]


class Record:
    """One script's memory, with a method for each recorded operation; each returns the recorded result."""

    def __init__(self, config):
        self.geometry = Geometry(
            config["page_size"],
            config["dcp_size"],
            config["model_chunk"],
            track_interval=config.get("track_interval", 256),
        )
        cap = config.get("max_states_per_path", -1)
        self.memory = Memory(
            self.geometry,
            config["kv_tokens"],
            config["state_slots"],
            eviction=config.get("eviction_policy", "lru"),
            max_states_per_path=None if cap == -1 else cap,
            keep_tombstones=True,
        )
        self.life = Lifecycle(self.memory, "dcp_gated", strict=False, spare_pages=1)
        self.page = self.geometry.tree_page
        self.locks, self.rows, self.sequences, self.texts, self.ends = {}, {}, {}, {}, {}

    def run(self, op):
        return getattr(self, "do_" + op["op"])(op)

    def counts(self):
        memory = self.memory
        return (
            {
                "free": memory.free_kv_tokens,
                "evictable": memory.tree.evictable_tokens,
                "protected": memory.tree.protected_tokens,
            },
            {
                "free": memory.free_state_slots,
                "evictable": memory.tree.evictable_states,
                "protected": memory.tree.protected_states,
            },
        )

    def nodes(self):
        found = []
        for node in self.memory.tree.root.walk():
            tag = None if node.state is None else self.memory.states.tags[node.state]
            depth = None if tag is None else tag.depth
            found.append((node.start, node.end, node.state is not None, node.kv_locks, node.state_locks, depth))
        return sorted(found, key=str)

    def violations(self):
        return self.memory.violations(self.life.holdings())

    # --- tree operations ---

    def do_match(self, op):
        text = Text(self.memory.index, runs(op["seq"]))
        return self._matched(self.memory.tree.match(text.ids(min(len(text), op.get("limit", len(text))))))

    def do_insert(self, op):
        text = Text(self.memory.index, runs(op["seq"]))
        ids = text.ids(len(text))
        pages = self.memory.take_pages(len(ids))
        slot = self.memory.take_slot()
        if slot is None:
            self.memory.allocator.free(pages)
            return {"refused": True}
        inserted = self.memory.tree.insert(ids, pages, priority=op.get("priority", 0))
        self.memory.states.tags[slot] = text.tag(len(ids) * self.page)
        was_there = not ids or not self.memory.tree.file_state(inserted.node, slot)
        if was_there:
            self.memory.states.free(slot)
        self.memory.allocator.free(pages[op.get("prev_prefix_len", 0) // self.page : inserted.existing // self.page])
        return {"already_there": inserted.existing, "state_was_there": was_there}

    def do_evict(self, op):
        evicted = self.memory.evict(op["kv"], op["states"])
        return {"kv_evicted": evicted.kv_tokens, "states_evicted": evicted.states}

    def do_lock(self, op):
        text = Text(self.memory.index, runs(op["seq"]))
        match = self.memory.tree.match(text.ids(len(text)))
        state = not op.get("skip_state", False)
        self.memory.tree.lock(match.node, state=state)
        self.locks[op["name"]] = match.node, state
        return self._matched(match)

    def do_unlock(self, op):
        node, state = self.locks.pop(op["name"])
        self.memory.tree.unlock(node, state=state)
        return {}

    def do_reset(self, op):
        self.memory.tree.reset()
        return {}

    def do_alloc(self, op):
        pages = self.memory.take_pages(-(-op["tokens"] // self.page))
        held = [name for name, row in self.rows.items() if set(row) & set(pages)]
        self.rows[op["name"]] = pages
        return {"pages": len(pages), "also_held_by": held}

    def do_free(self, op):
        """``segments`` and ``row`` (which merges touching ranges first) are checked; ``indices`` is one plain
        free of all pages that the ranges touch."""
        row, ranges = self.rows[op["name"]], [tuple(r) for r in op["ranges"]]
        if op["how"] == "indices":
            touched = sorted({k for a, b in ranges for k in range(a // self.page, -(-b // self.page))})
            self.memory.allocator.free([row[k] for k in touched])
            return {"freed": len(touched) * self.page}
        if op["how"] == "row":
            merged = []
            for a, b in ranges:
                if merged and merged[-1][1] == a:
                    merged[-1] = (merged[-1][0], b)
                else:
                    merged.append((a, b))
            ranges = merged
        try:
            return {"freed": self.memory.allocator.free_segments(row, ranges)}
        except InvariantError as error:
            return {"error": type(error).__name__}

    def _matched(self, match):
        return {"matched": match.tokens, "full_kv_hit": match.kv_tokens, "branching_seqlen": match.branch}

    # --- lifecycle operations ---

    def do_begin(self, op):
        text = Text(self.memory.index, runs(op["seq"]))
        sequence = self.life.begin(op["rid"], text)
        assert sequence is not None
        self.sequences[op["rid"]] = sequence
        self.ends[op["rid"]] = None
        if "adder" in op:
            budget = self._budget(op["adder"])
            self.ends[op["rid"]] = budget.first_cut(sequence.computed, len(text), op.get("max_new", 64)).end
        return {
            "cached_prefix": sequence.computed,
            "branching_seqlen": sequence.branch,
            "state_copied_from_depth": sequence.computed or None,
        }

    def do_next_chunk(self, op):
        sequence = self.sequences[op["rid"]]
        length = sequence.prompt_tokens
        end = self._budget(op["adder"]).next_cut(sequence.computed, length)
        self.ends[op["rid"]] = end
        return {"prefix_len": sequence.computed, "extend_end": end, "last_chunk": end == length}

    def _budget(self, adder):
        tree = self.memory.tree
        reserved = int(sum(adder.get("running", ())) * adder.get("new_token_ratio", 1.0))
        return PrefillBudget(
            self.life.rule,
            self.geometry,
            step_tokens=adder["chunk"] - adder.get("mixed", 0) - adder.get("used", 0),
            room_tokens=self.memory.free_kv_tokens + tree.evictable_tokens - reserved,
        )

    def do_extend(self, op):
        sequence = self.sequences[op["rid"]]
        end = op.get("to") or self.ends[op["rid"]] or len(sequence.text)
        prefix, position = sequence.computed, sequence.next_track
        plan = self.life.plan_extend(sequence, end)
        self.life.commit_extend(plan)
        kernel = next((s.depth for s in plan.snapshots), None)
        return {
            "prefix_len": prefix,
            "extend_len": end - prefix,
            "decision": {
                "mask": plan.decision.donate,
                "tracked_depth": plan.decision.depth if plan.decision.donate else None,
                "kernel_depth": kernel,
                "track_position": position,
            },
        }

    def do_checkpoint(self, op):
        sequence = self.sequences[op["rid"]]
        if "track" in op:
            self._override(sequence, op["track"])
        offered = sequence.tracked[-1].wanted if sequence.tracked else None
        self.life.checkpoint(sequence)
        return {"tracked_depth_offered": offered, "tree_owns": sequence.protected, "resumes_at": sequence.computed}

    def do_decode(self, op):
        """The first output token has no KV yet, so n output tokens are n - 1 decode steps."""
        sequence, depths = self.sequences[op["rid"]], []
        sequence.text.append(runs(op["seq"]))
        while sequence.computed < len(sequence.text) - 1:
            plan = self.life.plan_decode(sequence)
            self.life.commit_decode(plan)
            if plan.snapshot is not None:
                depths.append(plan.snapshot.depth)
        return {"tracked_depths": depths, "kv_committed": sequence.computed}

    def do_finish(self, op):
        sequence = self.sequences.pop(op["rid"])
        if "track" in op:
            self._override(sequence, op["track"])
        if "stop_at" in op:
            sequence.computed = sequence.prompt_tokens + op["stop_at"]
        tracked = [s.wanted for s in sequence.tracked]
        owned = sequence.computed
        (self.life.abort if op.get("abort") else self.life.finish)(sequence)
        newest = tracked[-1] if tracked else None
        return {"owned_kv": owned, "tracked_depth_offered": newest, "previous_track": tracked[-2] if tracked[1:] else None}

    def _override(self, sequence, depth):
        """A hostile case: the request believes that this depth was tracked."""
        sequence.tracked.clear()
        if depth is None:
            return
        track = (sequence.next_track + 1) % 2
        slot = sequence.tracks[track]
        self.memory.states.tags[slot] = sequence.text.tag(min(depth, len(sequence.text)))
        sequence.tracked.append(Snapshot(slot, depth, depth, track))
