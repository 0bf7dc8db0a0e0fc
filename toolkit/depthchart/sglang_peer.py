"""SGLang's own radix tree under our load: the same turns on its cache, its allocators and either of its tree cores.

Nothing of it is imported before it is asked for. Written against SGLang 0.5.23; its model's tensors are the smallest
that its pools take, since only the books are measured.
"""

from __future__ import annotations

import time
from array import array
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from depthchart.tokens import Runs, runs_to_tokens

__all__ = ["CHUNK", "CORES", "SglangTurns", "installed", "make_cache", "plain", "versions"]

CORES = ("python", "rust")
CHUNK = 64  # the model's chunk width in tokens; no state is computed


def installed() -> str | None:
    """SGLang's version, or None where it is not installed."""
    if find_spec("sglang") is None:
        return None
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """SGLang's version, and that of torch, on whose tensors its books lie."""
    return {"sglang": installed() or "", "torch": version("torch")}


class SglangTurns:
    """The texts as SGLang's keys, cut to whole pages; made before any clock starts."""

    def __init__(self, texts: list[Runs], page: int, slots: int) -> None:
        self.page, self.slots = page, slots
        tokens = [plain(runs) for runs in texts]
        self._keys = [text[: len(text) // page * page] for text in tokens]

    def run(self, core: str, pool: int) -> tuple[float, list[int]]:
        """CPU seconds of all turns on a fresh cache with ``pool`` KV tokens, and the tokens that each matched."""
        from sglang.srt.mem_cache.radix_cache import RadixKey

        cache = make_cache(core, pool // self.page * self.page, self.page, self.slots)
        keys = [RadixKey(tokens) for tokens in self._keys]
        turn = _Turn(cache)
        start = time.thread_time()
        matched = [turn(key) for key in keys]
        return time.thread_time() - start, matched


class _Turn:
    """Match, lock, take pages and a slot (evicting where need be), insert, unlock: as ``tree_bench._turn``."""

    def __init__(self, cache: Any) -> None:
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams

        self.cache, self.cat = cache, torch.cat
        self.pages, self.slots = cache.token_to_kv_pool_allocator, cache.req_to_token_pool.mamba_allocator
        self.match, self.insert, self.evict = MatchPrefixParams, InsertParams, EvictParams

    def __call__(self, key: Any) -> int:
        cache = self.cache
        found = cache.match_prefix(self.match(key=key))
        known: int = found.device_prefix_len
        lock = cache.lock(found.last_device_node)
        fresh = self._take(len(key) - known)
        value = self.cat([cache.path_device_indices(found.last_device_node), fresh])
        slot = self._slot()
        done = cache.insert(self.insert(key=key, value=value, mamba_value=slot, prev_prefix_len=known))
        if done.mamba_exist and slot is not None:
            self.slots.free(slot)
        cache.unlock(lock)
        return known

    def _take(self, tokens: int) -> Any:
        short = tokens - self.pages.available_size()
        if short > 0:
            self.cache.evict(self.evict(num_tokens=short))
        taken = self.pages.alloc(tokens)
        assert taken is not None, f"{tokens} tokens wanted"
        return taken

    def _slot(self) -> Any:
        if not self.slots.available_size():
            self.cache.evict(self.evict(mamba_num=1))
        return self.slots.alloc(1)


def plain(runs: Runs) -> array[int]:
    """Token ids below 2**31, as SGLang's keys have them: a run's segment moves it out of the others' way."""
    tokens = runs_to_tokens(runs)
    moved = (tokens >> 32) * 1_000_000 + (tokens & 0xFFFFFFFF)
    return array("q", moved.astype(np.int64).tobytes())


def make_cache(
    core: str, pool: int, page: int, slots: int, *, context: int = 16, late_frees: bool = False
) -> Any:
    """A fresh cache with its pools: ``pool`` KV tokens (whole pages), ``slots`` states, rows of ``context`` tokens.

    ``late_frees``: its own setting ``need_sort``, by which freed pages wait in a list of their own.
    Raises ValueError where SGLang gives another core than asked for.
    """
    import torch
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    torch.set_num_threads(1)  # the clock is that of one thread
    settings = {"attention_backend": "torch_native", "mamba_radix_cache_strategy": "extra_buffer"}
    arguments = ServerArgs(model_path="none", page_size=page, device="cpu", **settings)
    arguments._mamba_cache_chunk_size = max(CHUNK, page)  # else it would be asked of the model's files
    set_global_server_args_for_scheduler(arguments)
    small = {"tp_world_size": 1, "intermediate_size": 8, "n_groups": 1, "num_heads": 1}
    shape = Mamba2StateShape.create(**small, head_dim=8, state_size=8, conv_kernel=4)
    rows = HybridReqToTokenPool(
        size=4,
        mamba_size=slots,
        mamba_spec_state_size=4,
        max_context_len=context,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=True,
    )
    kv = HybridLinearKVPool(
        size=pool,
        dtype=torch.bfloat16,
        page_size=page,
        head_num=1,
        head_dim=1,
        full_attention_layer_ids=[1],
        device="cpu",
        enable_memory_saver=False,
        mamba_pool=rows.mamba_pool,
    )
    given = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": kv, "need_sort": late_frees}
    pages = (
        TokenToKVPoolAllocator(pool, **given)
        if page == 1
        else PagedTokenToKVPoolAllocator(pool, page, **given)
    )
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=pages,
        page_size=page,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
        enable_mamba_extra_buffer=True,
        tree_core_backend=core,
    )
    cache = UnifiedRadixCache(params)
    if cache._tree_core_backend != core:
        raise ValueError(f"core={core!r}: SGLang fell back to its {cache._tree_core_backend} core here")
    return cache
