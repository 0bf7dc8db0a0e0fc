"""The specification: every operator one token at a time in float64, written to be read."""
