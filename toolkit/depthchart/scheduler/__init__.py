"""The decisions: requests, queue policies, prefill admission, the step loop, one lifecycle."""
