"""The memory: KV pages, state slots, and the radix tree that names what they hold."""

from depthchart.cache.allocator import PageAllocator, Segment
from depthchart.cache.memory import Memory
from depthchart.cache.node import Node
from depthchart.cache.state_pool import StatePool
from depthchart.cache.tree import Evicted, Inserted, Match, RadixTree

__all__ = [
    "Evicted",
    "Inserted",
    "Match",
    "Memory",
    "Node",
    "PageAllocator",
    "RadixTree",
    "Segment",
    "StatePool",
]
