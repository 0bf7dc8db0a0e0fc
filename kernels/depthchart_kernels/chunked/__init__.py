"""The CPU's fast path: chunk forms in plain torch."""
