"""A request's whole way through SGLang's own cache, on our load: what ``serial.serve`` is for ours.

Driven are SGLang 0.5.23's own ``Req``, ``ScheduleBatch``, cache, allocators and functions, in the order in which its
scheduler calls them for a request that runs alone:

- admission: ``Req.init_next_round_input`` (match at most one token less than the prompt, copy-on-write slot), lock;
- extend: ``alloc_for_extend`` (evict, row, working and ping-pong slots, KV pages, write the row), the depth at which the
  state is tracked, the list of states to copy;
- ``checkpoint_kv_cache``: insert, donate, take a new slot, move the lock;
- the reply's KV, one of ``WAYS``;
- ``release_kv_cache``: insert, free the rest, unlock, give back the slots and the row.

Not driven: its admission budget (``PrefillAdder``), sampling, input ids and the model's metadata, results to clients.
The model's configuration is a stand-in of two attributes (``is_encoder_decoder``, ``hf_text_config.mamba_chunk_size``),
a batch is made without ``ScheduleBatch.init_new``, and requests are made before the clock starts.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import lcm
from types import SimpleNamespace
from typing import Any

from depthchart.sglang_peer import CHUNK, make_cache, plain
from depthchart.tokens import Runs

__all__ = ["WAYS", "SglangRequests"]

WAYS = ("at once", "step by step", "books only")
"""How the reply gets its KV. ``step by step``: ``alloc_for_decode`` for each token, as its scheduler does. ``at once``: all
in one allocation, as ours books them. ``books only``: at once, and without what a GPU would do beside the scheduler: freed
pages wait in a list of their own (else each free copies the whole free list), and the allocation kernel's substitute for
the CPU, some forty tensor calls, gives way to the few that one request needs."""

TRACK_INTERVAL = 256  # SGLang's default: decode leaves a state every so many tokens


class SglangRequests:
    """Prompts and replies as SGLang's arrays of token ids, made before any clock starts.

    Raises ValueError for a reply in which a decode checkpoint falls due, since none is driven here.
    """

    def __init__(self, texts: Sequence[tuple[Runs, Runs]], page: int, slots: int) -> None:
        self.page, self.slots = page, slots
        self._texts = [(plain(prompt), plain(reply)) for prompt, reply in texts]
        self._context = max(len(prompt) + len(reply) for prompt, reply in self._texts) + page
        _refuse_decode_checkpoints(self._texts, page)

    def run(self, core: str, way: str, pool: int) -> tuple[float, list[int]]:
        """CPU seconds of all requests on a fresh cache with ``pool`` KV tokens, and the tokens that each matched.

        Raises ValueError where SGLang's books do not add up at the end.
        """
        size, lean = pool // self.page * self.page, way == WAYS[2]
        cache = make_cache(core, size, self.page, self.slots, context=self._context, late_frees=lean)
        requests = self._requests()
        serve = _Serve(cache, stepwise=way == WAYS[1])
        with _one_request_kernel() if lean else nullcontext():
            start = time.thread_time()
            matched = [serve(request, reply) for request, reply in requests]
            spent = time.thread_time() - start
        _check_books(cache, size, self.slots)
        return spent, matched

    def _requests(self) -> list[tuple[Any, array[int]]]:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        return [
            (Req(str(number), "", prompt, SamplingParams(max_new_tokens=len(reply))), reply)
            for number, (prompt, reply) in enumerate(self._texts)
        ]


class _Serve:
    """One request from its match to its end; answers how many tokens it matched."""

    def __init__(self, cache: Any, stepwise: bool) -> None:
        import torch
        from sglang.srt.managers import schedule_batch
        from sglang.srt.mem_cache import allocation, common

        self.cache, self.stepwise = cache, stepwise
        self.torch, self.batches, self.allocation, self.common = torch, schedule_batch, allocation, common
        self.model = SimpleNamespace(
            is_encoder_decoder=False, hf_text_config=SimpleNamespace(mamba_chunk_size=CHUNK)
        )

    def __call__(self, request: Any, reply: array[int]) -> int:
        matched = self._admit(request)
        batch = self._extend(request)
        request.output_ids.append(reply[0])
        if len(reply) > 1:
            self.common.checkpoint_kv_cache(request, self.cache)
            if self.stepwise:
                self._decode(batch, request, reply[1:])
            else:
                self._reply(batch, request, reply[1:])
        request.finished_reason = self.batches.FINISH_LENGTH(len(reply))
        self.common.release_kv_cache(request, self.cache, checkpoint=True)
        return matched

    def _admit(self, request: Any) -> int:
        request.init_next_round_input(self.cache)
        request.extend_end = len(request.full_untruncated_fill_ids)
        request.lock = self.cache.lock(request.last_node)
        matched: int = request.prefix_len
        return matched

    def _extend(self, request: Any) -> Any:
        """The parts of ``ScheduleBatch.prepare_for_extend`` that touch the cache."""
        batch = self.batches.ScheduleBatch(
            reqs=[request],
            req_to_token_pool=self.cache.req_to_token_pool,
            token_to_kv_pool_allocator=self.cache.token_to_kv_pool_allocator,
            tree_cache=self.cache,
            model_config=self.model,
            device="cpu",
            forward_mode=self.batches.ForwardMode.EXTEND,
        )
        batch.prefix_lens, batch.extend_lens = [request.prefix_len], [request.extend_len]
        batch.extend_num_tokens = request.extend_len
        batch.seq_lens = batch.seq_lens_cpu = self.torch.tensor([request.extend_end])
        taken = self.allocation.alloc_for_extend(batch)
        batch.out_cache_loc, batch.req_pool_indices, batch.req_pool_indices_cpu = taken
        batch._mamba_radix_cache_v2_req_prepare_for_extend(request)
        batch._collect_deferred_mamba_cow_and_clear(batch.reqs)
        return batch

    def _decode(self, batch: Any, request: Any, tokens: array[int]) -> None:
        """The parts of ``ScheduleBatch.prepare_for_decode`` that touch the cache, for each token."""
        batch.forward_mode = self.batches.ForwardMode.DECODE
        for token in tokens:
            batch.out_cache_loc = self.allocation.alloc_for_decode(batch, token_per_req=1)
            batch.seq_lens = batch.seq_lens_cpu = batch.seq_lens + 1
            request.output_ids.append(token)

    def _reply(self, batch: Any, request: Any, tokens: array[int]) -> None:
        cache, start, kv = self.cache, request.extend_end, request.kv
        fresh = self._fresh(batch, kv.req_pool_idx, start, len(tokens))
        row = kv.req_pool_idx, slice(start, start + len(tokens))
        cache.req_to_token_pool.write(row, fresh.to(self.torch.int32))
        kv.kv_allocated_len = kv.kv_committed_len = start + len(tokens)
        request.output_ids.extend(tokens)

    def _fresh(self, batch: Any, row: int, start: int, tokens: int) -> Any:
        """KV for ``tokens`` more tokens, by the functions that its scheduler takes for an extend."""
        if self.cache.page_size == 1:
            return self.allocation.alloc_token_slots(self.cache, tokens)
        end = batch.seq_lens_cpu + tokens
        return self.allocation.alloc_paged_token_slots_extend(
            tree_cache=self.cache,
            prefix_lens=batch.seq_lens,
            prefix_lens_cpu=batch.seq_lens_cpu,
            seq_lens=end,
            seq_lens_cpu=end,
            last_loc=self.cache.req_to_token_pool.req_to_token[row, start - 1 : start].to(self.torch.int64),
            extend_num_tokens=tokens,
        )


@contextmanager
def _one_request_kernel() -> Iterator[None]:
    from sglang.srt.mem_cache.allocator import paged

    theirs = paged.alloc_extend_naive
    paged.alloc_extend_naive = _slots_of_one
    try:
        yield
    finally:
        paged.alloc_extend_naive = theirs


def _slots_of_one(
    prefix_lens: Any, seq_lens: Any, last_loc: Any, free_pages: Any, out_indices: Any, page: int, device: str
) -> None:
    """Write the KV slots of the tokens [prefix, end) of one request: the rest of its last page, then fresh pages. The same
    slots as ``alloc_extend_naive`` gives (int64 [end - prefix])."""
    import torch

    prefix, end = int(prefix_lens), int(seq_lens)
    pages = free_pages[: -(-end // page) - -(-prefix // page)]
    if prefix % page:
        pages = torch.cat((last_loc // page, pages))
    slots = (pages[:, None] * page + torch.arange(page, device=device)).reshape(-1)
    out_indices.copy_(slots[prefix % page : prefix % page + end - prefix])


def _refuse_decode_checkpoints(texts: Sequence[tuple[array[int], array[int]]], page: int) -> None:
    grid = lcm(max(CHUNK, page), TRACK_INTERVAL)
    for prompt, reply in texts:
        end = len(prompt) + len(reply) - 1  # the last token's KV is never computed
        if end // grid * grid > len(prompt):
            raise ValueError(
                f"texts: a reply of {len(reply)} tokens after {len(prompt)} passes {end // grid * grid}, where decode "
                f"leaves a state; nearest legal: {end // grid * grid - len(prompt)} tokens"
            )


def _check_books(cache: Any, pool: int, slots: int) -> None:
    """All KV and all states are free or in the tree and unlocked, and all rows are free."""
    rows, pages = cache.req_to_token_pool, cache.token_to_kv_pool_allocator
    tokens = pages.available_size() + cache.full_evictable_size()
    states = rows.mamba_allocator.available_size() + cache.mamba_evictable_size()
    if (tokens, states, rows.available_size()) != (pool, slots, rows.size):
        raise ValueError(
            f"SGLang's books: {tokens} of {pool} KV tokens, {states} of {slots} states and "
            f"{rows.available_size()} of {rows.size} rows are left; the driver lost some"
        )
