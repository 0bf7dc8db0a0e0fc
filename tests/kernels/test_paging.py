"""Pages, slots and attention over them, against plain Python and plain softmax."""

import numpy as np
import pytest
import torch
from kernel_support import FP32, POISON, error

import depthchart_kernels as dk

IMPLS = ["reference", "chunked"]


def test_alloc_extend_fills_the_last_page_then_takes_free_pages():
    got = dk.alloc_extend([6, 0, 8, 5], [11, 3, 8, 6], [2, -1, 7, 9], [30, 31, 32, 33], 4)
    # request 0 fills the last 2 rows of page 2 and 3 of page 30; 1 takes page 31; 3 goes on in page 9
    assert got.token_slots.tolist() == [10, 11, 120, 121, 122, 124, 125, 126, 37]
    assert got.pages_used == 2


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_alloc_extend_against_token_by_token(page_size):
    random = np.random.default_rng(page_size)
    prefix = random.integers(0, 40, 30)
    total = prefix + random.integers(0, 40, 30)
    last, free = np.arange(1000, 1030), list(random.permutation(2000))
    slots, used, table = [], 0, np.full((30, 80), -1)
    for r in range(30):
        page = last[r]
        for t in range(prefix[r], total[r]):
            if t % page_size == 0:
                page, used = free[used], used + 1
            slots.append(page * page_size + t % page_size)
            table[r, t // page_size] = page
    got = dk.alloc_extend(prefix, total, last, free, page_size)
    assert got.token_slots.tolist() == slots
    assert got.pages_used == used
    written = torch.full((30, 80), -1, dtype=torch.int32)
    dk.write_page_table(written, range(30), prefix, total, got.token_slots, page_size)
    assert written.tolist() == table.tolist()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dk.alloc_extend([4], [3], [0], [1], 4), r"lengths\[0\] is 3 with a prefix of 4"),
        (
            lambda: dk.alloc_extend([5], [9], [-1], [1], 4),
            r"last_pages\[0\] is -1, but a prefix of 5 tokens ends inside",
        ),
        (lambda: dk.alloc_extend([0], [9], [-1], [1, 2], 4), "3 pages are needed, but free_pages has 2"),
        (lambda: dk.alloc_extend([0], [9], [-1], [1, 1, 2], 4), "free_pages lists page 1 twice"),
        (lambda: dk.alloc_extend([0], [9], [-1], [1], 0), "page_size is 0"),
        (lambda: dk.copy_states(torch.zeros(3, 1), [0, 1], [2, 2]), "dst_slots names slot 2 twice"),
        (lambda: dk.copy_states(torch.zeros(3, 1), [3], [2]), r"src_slots\[0\] is 3; legal are -1 to 2"),
        (
            lambda: dk.gather_kv(torch.zeros(2, 4, 1, 1), [8]),
            r"token_slots\[0\] is 8; cache has slots 0 to 7",
        ),
        (lambda: dk.scatter_kv(torch.zeros(2, 1, 1), torch.zeros(2, 4, 1, 1), [1, 1]), "names a slot twice"),
    ],
)
def test_bad_paging_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_scatter_and_gather():
    cache = torch.full([5, 4, 2, 3], POISON)
    values = torch.randn(4, 2, 3)
    dk.scatter_kv(values, cache, [0, 19, -1, 6])
    assert torch.equal(cache.view(20, 2, 3)[[0, 19, 6]], values[[0, 1, 3]])
    assert int((cache == POISON).sum()) == 17 * 6
    got = dk.gather_kv(cache, torch.tensor([19, -1, 6]))
    assert torch.equal(got, torch.stack([values[1], torch.zeros(2, 3), values[3]]))


def test_copy_states_of_several_pools_and_a_permutation():
    state, window = torch.randn(6, 2, 3, 4), torch.randn(6, 5, 3).bfloat16()
    old = state.clone(), window.clone()
    dk.copy_states([state, window], [0, 1, -1], [1, 0, 4])
    for new, before in zip((state, window), old, strict=True):
        assert torch.equal(new[1], before[0])
        assert torch.equal(new[0], before[1])
        assert bool((new[4] == 0).all())
        assert torch.equal(new[[2, 3, 5]], before[[2, 3, 5]])


def paged(lengths, queries, page_size, ranks=1, heads=2, query_heads=6, dim=8, value_dim=5, seed=0):
    """Dense q, k, v of every sequence, and for each rank its (k_cache, v_cache, page_table), poisoned where unused."""
    r = torch.Generator().manual_seed(seed)
    q = torch.randn(sum(queries), query_heads, dim, generator=r)
    dense = [
        (torch.randn(n, heads, dim, generator=r), torch.randn(n, heads, value_dim, generator=r))
        for n in lengths
    ]
    caches = []
    for rank in range(ranks):
        columns = max(-(-n // (page_size * ranks)) for n in lengths) + 1
        table = torch.randperm(len(lengths) * columns, generator=r).view(len(lengths), columns).int()
        k = torch.full([table.numel(), page_size, heads, dim], float("nan"))
        v = torch.full([table.numel(), page_size, heads, value_dim], float("nan"))
        for s, (ks, vs) in enumerate(dense):
            mine = len(range(rank, lengths[s], ranks))
            slots = (
                table[s, torch.arange(mine) // page_size].long() * page_size + torch.arange(mine) % page_size
            )
            dk.scatter_kv(ks[rank::ranks], k, slots, impl="chunked")
            dk.scatter_kv(vs[rank::ranks], v, slots, impl="chunked")
        caches.append((k, v, table))
    return q, dense, caches


def plain(q, dense, queries):
    """Softmax over the dense keys, in float64."""
    outputs, logs, at = [], [], 0
    for (k, v), count in zip(dense, queries, strict=True):
        rows, repeat = q[at : at + count].double(), q.shape[1] // k.shape[1]
        scores = (
            torch.einsum("qhd,khd->hqk", rows, k.double().repeat_interleave(repeat, 1)) * q.shape[2] ** -0.5
        )
        hidden = torch.arange(len(k)) > torch.arange(len(k) - count, len(k))[:, None]
        scores = scores.masked_fill(hidden, -torch.inf)
        values = v.double().repeat_interleave(repeat, 1)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        logs.append(scores.logsumexp(-1).T)
        at += count
    return torch.cat(outputs), torch.cat(logs)


SHAPES = [
    pytest.param([1, 5, 33], [1, 1, 1], 4, id="decode"),
    pytest.param([7, 40, 12], [7, 13, 0], 16, id="extend, one idle"),
    pytest.param([9, 30], [3, 1], 1, id="mixed, page 1"),
]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("lengths", "queries", "page_size"), SHAPES)
def test_paged_attention(impl, lengths, queries, page_size):
    q, dense, [(k, v, table)] = paged(lengths, queries, page_size)
    got = dk.paged_attention(q, k, v, table, np.cumsum([0, *queries]), lengths, impl=impl)
    output, lse = plain(q, dense, queries)
    assert error(got.output, output) < FP32
    assert error(got.lse, lse) < FP32


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("lengths", "queries", "page_size"), SHAPES)
def test_ranks_merged_are_one(impl, ranks, lengths, queries, page_size):
    q, dense, caches = paged(lengths, queries, page_size, ranks)
    cu = np.cumsum([0, *queries])
    parts = [
        dk.paged_attention(q, k, v, table, cu, lengths, dcp_rank=rank, dcp_size=ranks, impl=impl)
        for rank, (k, v, table) in enumerate(caches)
    ]
    outputs = torch.stack([part.output for part in parts])
    logs = torch.stack([part.lse for part in parts])
    outputs[logs == -torch.inf] = float("nan")  # what a rank without keys answers must not matter
    got = dk.merge_attention(outputs, logs, impl=impl)
    output, lse = plain(q, dense, queries)
    assert error(got.output, output) < FP32
    assert error(got.lse, lse) < FP32


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("rows", [1, 6, 1000])
def test_many_keys_and_queries_in_blocks(rows, ranks, monkeypatch):
    for name, size in (("KEYS", 8), ("ALL_KEYS", 16), ("ROWS", rows)):
        monkeypatch.setattr(f"depthchart_kernels.chunked.attention.{name}", size)
    lengths, queries = [90, 3, 40], [50, 2, 40]
    q, dense, caches = paged(lengths, queries, 4, ranks)
    cu = np.cumsum([0, *queries])
    parts = [
        dk.paged_attention(q, k, v, table, cu, lengths, dcp_rank=rank, dcp_size=ranks, impl="chunked")
        for rank, (k, v, table) in enumerate(caches)
    ]
    got = dk.merge_attention(*(torch.stack(part) for part in zip(*parts, strict=True)))
    output, lse = plain(q, dense, queries)
    assert error(got.output, output) < FP32
    assert error(got.lse, lse) < FP32


def test_latent_cache():
    q, dense, [(k, _, table)] = paged([50, 3], [5, 2], 4, heads=1, dim=12)
    latent = [(ks, ks[..., :7]) for ks, _ in dense]
    got = dk.paged_attention(q, k, k[..., :7], table, [0, 5, 7], [50, 3])
    output, lse = plain(q, latent, [5, 2])
    assert error(got.output, output) < FP32
    assert error(got.lse, lse) < FP32


def test_merge_of_nothing_is_nothing():
    got = dk.merge_attention(torch.full([2, 1, 1, 3], float("nan")), torch.full([2, 1, 1], -torch.inf))
    assert bool((got.output == 0).all())
    assert bool((got.lse == -torch.inf).all())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lengths": [4, 0]}, r"kv_lengths\[1\] is 0, less than the 1 queries"),
        ({"kv_lengths": [4, 400]}, "a sequence of 400 tokens does not fit page_table"),
        ({"cu_seqlens": [0, 1]}, "kv_lengths must have 1 entries"),
        ({"cu_seqlens": [0, 1, 3]}, "cu_seqlens must rise from 0 to the 2 tokens"),
        ({"dcp_rank": 2, "dcp_size": 2}, "dcp_rank is 2 of dcp_size 2; legal are 0 to 1"),
        ({"v_cache": torch.zeros(3, 4, 2, 5)}, "v_cache must have shape"),
    ],
)
def test_bad_attention_is_refused(change, words):
    q, _, [(k, v, table)] = paged([4, 6], [1, 1], 4)
    call = {
        "q": q,
        "k_cache": k,
        "v_cache": v,
        "page_table": table,
        "cu_seqlens": [0, 1, 2],
        "kv_lengths": [4, 6],
    }
    with pytest.raises(ValueError, match=words):
        dk.paged_attention(**call | change)
