"""Chunked-scan and paging kernels of depthchart; knows nothing of the toolkit."""
