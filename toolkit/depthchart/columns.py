"""Column names of every frame, spelled in this one place.

Units are part of the name: ``_tokens``, ``_s`` (seconds), ``_bytes``. A depth is a number of tokens.
"""

from __future__ import annotations

from typing import Final

# One row per node of the radix tree.
NODES: Final = (
    "node_id",  # int, stable for a node's life; the upper half of a split is the new node
    "parent_id",  # int; -1 for a child of the root
    "namespace",  # extra_key, or "" where none
    "start_tokens",  # depth at which the node's edge begins
    "end_tokens",  # depth at which it ends: a multiple of tree_page
    "state_depth_tokens",  # tokens that the node's state has consumed; <NA> where it has none
    "status",  # one of STATUS
    "kv_locks",
    "state_locks",
    "request",  # the request that first inserted these tokens
    "created_s",
    "last_used_s",
)
STATUS: Final = ("state", "misplaced", "tombstone", "bare")
"""state: holds a state of its own depth; misplaced: of another depth; tombstone: its state was
evicted; bare: never had one (the upper half of a split, or KV without a checkpoint)."""

# One row per decision that was acted upon, or not.
CHECKPOINTS: Final = (
    "request",
    "step",
    "time_s",
    "kind",  # "prefill" or "decode"
    "prefix_tokens",
    "end_tokens",
    "depth_tokens",  # the depth that the rule chose; <NA> where it chose none
    "state_depth_tokens",  # what the kernel really stored; <NA> where nothing was
    "node_end_tokens",  # where the tree filed it; <NA> where it was not filed
    "node_id",  # where it was filed; of a refusal: the deepest node that its request had reached; else <NA>
    "outcome",  # one of OUTCOMES
    "reason",  # in words
)
OUTCOMES: Final = ("donated", "refused", "misplaced", "superseded", "pending")
"""superseded: a tracked state that was overwritten, or given back, before it could be donated; pending:
tracked, and its request still runs."""

REQUESTS: Final = (
    "request",
    "session",
    "arrival_s",
    "admitted_s",
    "first_token_s",
    "finished_s",
    "prompt_tokens",
    "output_tokens",
    "kv_hit_tokens",  # H: what the KV match alone reached
    "reused_tokens",  # C: what was really reused: KV with a state at its end
    "lost_tokens",  # H - C: found and thrown away
    "possible_tokens",  # the best possible hit on this tree page, had nothing ever been evicted; <NA> where not known
    "seen_tokens",  # and on any page: an earlier request computed them
    "prefill_steps",
    "retractions",
    "status",  # "finished", "aborted", "rejected", "running", "waiting"
)

STEPS: Final = (
    "step",
    "time_s",
    "duration_s",
    "prefill_tokens",
    "prefill_rows",
    "decode_rows",
    "waiting",
    "running",
    "free_kv_tokens",
    "evictable_kv_tokens",
    "free_state_slots",
    "evictable_state_slots",
)

# How many requests had a hit H, reuse C and gap H - C of that size: [from, to) tokens.
HITS: Final = ("from_tokens", "to_tokens", "kv_hit_requests", "reused_requests", "lost_requests")

EVENTS: Final = ("time_s", "step", "event", "request", "node_id", "detail")

SWEEP: Final = (
    "status",  # "ok" or "failed"
    "reason",  # why it failed, in words
    "prompt_tokens",
    "kv_hit_tokens",
    "reused_tokens",  # rightly reused
    "lost_tokens",
    "possible_tokens",  # the best possible hits on this tree page, had nothing ever been evicted
    "seen_tokens",  # and on any page
    "reuse",  # reused over prompt tokens
    "wrong_requests",  # took over a state of another text
    "violations",
    "memory_bytes",  # of both pools; <NA> without a model
    "ttft_mean_s",  # these five only of timed runs
    "ttft_p95_s",
    "tpot_mean_s",  # per output token after the first
    "simulated_s",
    "prompt_tokens_per_s",
)
"""Results of one configuration; the columns before them are the configuration's own settings."""

# One row per text position that a request computed, with reuse against without.
DIVERGENCE: Final = (
    "position_tokens",
    "largest_difference",  # of the logits; their spread is about one
    "mean_difference",
    "next_token",  # the greedy choice with reuse
    "right_token",  # and without
)

# One row per turn of a growing text whose checkpoints were stored in ``checkpoint_dtype``.
PRECISION: Final = (
    "checkpoint_dtype",
    "reuses",  # how many stored checkpoints lie between the text's start and this turn
    "reused_tokens",
    "computed_tokens",
    "largest_difference",
    "mean_difference",
    "same_choice",  # share of positions with the same greedy token
    "checkpoint_bytes",
)

# One row per DCP size.
DCP: Final = (
    "dcp_size",
    "tree_page_tokens",
    "rank_kv_bytes",  # of the pages in use, at most, on one rank
    "sent_bytes_per_step",  # what a rank sends to the others in a decode step
    "sent_bytes_per_token",  # and for each token that such steps give
    "reused_tokens",
    "largest_difference",  # of the logits, against one rank
    "same_tokens",  # whether the sampled tokens are those of one rank
)

# One row per measured call of a scan kernel; tables have more columns, see docs/kernels.md.
KERNEL_SPEED: Final = (
    "op",
    "impl",
    "chunk_width",  # tokens
    "length",  # tokens of each sequence
    "batch",  # sequences
    "dtype",
    "snapshots",  # of each sequence
    "best_s",
    "tokens_per_s",
    "flops",  # of the call
    "bytes",
    "roofline_share",  # least time that the machine's ceilings allow over the best time
    "matmul_flops_per_s",  # the ceilings
    "copy_bytes_per_s",
)

# One row per chunk width and depth: the state there against the reference.
SNAPSHOT_ERRORS: Final = (
    "op",
    "chunk_width",
    "depth_tokens",
    "error",  # largest difference over largest magnitude, worst head
    "on_grid",  # whether a chunk ends there
)

# One row per token after a resume from the state of ``shift_tokens`` further on.
RESUME_ERRORS: Final = ("op", "shift_tokens", "token", "error")
