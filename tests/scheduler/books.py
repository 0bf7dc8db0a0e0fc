"""What a lifecycle's books say, as plain values that can be compared before and after."""

from __future__ import annotations


def books(life):
    """Everything that a refusal must leave as it was: pools, tree, orders, locks, and the running requests."""
    memory, tree = life.memory, life.memory.tree
    nodes = [
        (
            n.node_id,
            n.start,
            n.end,
            tuple(n.ids),
            tuple(n.pages),
            n.state,
            n.kv_locks,
            n.state_locks,
            n.last_use,
        )
        for n in tree.root.walk()
    ]
    return {
        "free pages": sorted(memory.allocator._stack[memory.allocator._top :]),
        "free slots": sorted(memory.states._free),
        "tags": list(memory.states.tags),
        "nodes": nodes,
        "states by last use": [n.node_id for n in tree.state_order],
        "counts": (
            tree.evictable_tokens,
            tree.protected_tokens,
            tree.evictable_states,
            tree.protected_states,
        ),
        "requests": {name: request(s) for name, s in life.active.items()},
        "copies": list(life.copies),
    }


def request(s):
    """One running request."""
    return (
        (s.computed, s.protected, s.working, s.next_track, s.branch),
        (tuple(s.row), tuple(s.tracks), tuple(s.tracked)),
        None if s.lock is None else s.lock.node_id,
    )


def totals(life):
    """(KV tokens, state slots) counted one by one over free, tree and requests; must be the pools' sizes."""
    memory = life.memory
    nodes, held = list(memory.tree.root.walk()), [s.holding() for s in life.active.values()]
    kv = (
        memory.free_kv_tokens
        + sum(n.tokens for n in nodes)
        + sum(len(h.pages) for h in held) * memory.allocator.page
    )
    slots = (
        memory.free_state_slots + sum(n.state is not None for n in nodes) + sum(len(h.slots) for h in held)
    )
    return kv, slots
