"""SGLang's cache beside ours: what is compared, without SGLang by arithmetic and with it on its own code."""

from array import array
from importlib.util import find_spec

import pytest

from depthchart import sglang_peer, sglang_request_peer, tree_bench
from depthchart.sglang_request_peer import WAYS, SglangRequests
from depthchart.tree_bench import load, measure

peer = pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed (written for 0.5.23)")


def lifecycle_matches(page: int, sessions: int) -> list[int]:
    """Tokens that each request of the load reuses, by arithmetic, in the load's order.

    Turn k finds the state that turn k - 1 left at its prompt's end, floored to the grid. Of the first turns, the first
    finds nothing; the second finds the shared 2,000 tokens without a state, so that it leaves its own there; the others
    find that one, and so does the second's own next turn. No reply of 50 passes a multiple of 256 (decode states).
    """
    grid = max(64, page)
    shared = 2000 // grid * grid
    first = [0, 0, *[shared] * (sessions - 2)]
    later = [[(1950 + 500 * turn) // grid * grid] * sessions for turn in range(1, 10)]
    later[0][1] = shared
    return [*first, *(tokens for turn in later for tokens in turn)]


@pytest.mark.parametrize("page", [1, 64, 512])
def test_our_lifecycle_reuses_what_arithmetic_says(page):
    (_, ours) = measure(page, 3, 1)
    assert (ours.part, ours.who) == ("lifecycle", "depthchart")
    assert ours.matched_tokens == sum(lifecycle_matches(page, 3))


def test_no_reply_of_the_load_passes_a_decode_checkpoint():
    for request in load(2):
        prompt = sum(run[2] for run in request.prompt)
        assert prompt // 256 == (prompt + request.output_tokens - 1) // 256


def test_token_ids_are_small_and_tell_segments_apart():
    assert sglang_peer.plain(((1, 5, 2), (2, 0, 2))) == array(
        "q", [1_000_005, 1_000_006, 2_000_000, 2_000_001]
    )


class Fake:
    """Takes twice (tree) and ten times (lifecycle) a millisecond a request, and matches what it is told."""

    tree: list[int]
    whole: list[int]

    def __init__(self, texts, page, slots):
        self.asked = []

    def run(self, *words):
        *how, _pool = words
        return (2e-3 * len(Fake.tree), Fake.tree) if len(how) == 1 else (1e-2 * len(Fake.whole), Fake.whole)


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(sglang_peer, "SglangTurns", Fake)
    monkeypatch.setattr(sglang_request_peer, "SglangRequests", Fake)
    monkeypatch.setattr(tree_bench, "_tree", lambda page, *_: (1e-3 * len(Fake.tree), Fake.tree))
    monkeypatch.setattr(tree_bench, "_lifecycle", lambda page, *_: (1e-3 * len(Fake.whole), list(range(20))))
    monkeypatch.setattr(Fake, "tree", [7] * 20, raising=False)
    monkeypatch.setattr(Fake, "whole", list(range(20)), raising=False)


def test_rows_are_named_and_related_to_ours(fakes):
    rows = {(row.part, row.who): row for row in measure(64, 2, 3, ("python", "rust"))}
    assert list(rows) == [
        ("tree", "depthchart"),
        ("tree", "sglang python"),
        ("tree", "sglang rust"),
        ("lifecycle", "depthchart"),
        *(
            ("lifecycle", f"sglang {core}{way}")
            for core in ("python", "rust")
            for way in ("", ", step by step", ", books only")
        ),
    ]
    assert rows["tree", "sglang rust"].times_ours == 2
    assert rows["lifecycle", "sglang rust"].times_ours == 10
    assert rows["lifecycle", "sglang rust"].us_a_request == 10_000
    assert rows["lifecycle", "depthchart"].us_a_request == 1000
    assert rows["lifecycle", "sglang python, books only"].best_times_ours == 10
    assert {row.matched_tokens for row in rows.values() if row.part == "lifecycle"} == {190}
    assert {row.half_pool_matched for row in rows.values() if row.part == "tree"} == {140}


def test_a_row_gives_the_median_and_the_fastest_round():
    times = {
        ("tree", "depthchart"): ([2.0, 1.0, 3.0], [1.0, 1.0, 1.0]),
        ("tree", "x"): ([9.0, 5.0, 8.0], [4.0, 2.0, 6.0]),
    }
    row = tree_bench._row(("tree", "x"), 64, times, 1_000_000, ([1, 2], [1, 1]))
    assert (row.us_a_request, row.half_pool_us, row.half_over_roomy, row.times_ours) == (8, 4, 0.5, 4)
    assert (row.best_us, row.best_times_ours, row.spread, row.rounds) == (5, 5, 1.8, 3)
    assert (row.matched_tokens, row.half_pool_matched) == (3, 2)


def test_other_matches_are_refused(fakes, monkeypatch):
    monkeypatch.setattr(Fake, "whole", [*range(19), 20], raising=False)
    with pytest.raises(
        ValueError, match="sglang python at page 64, lifecycle: request 19 matches 20 tokens and ours 19"
    ):
        measure(64, 2, 1, ("python",))


@pytest.mark.parametrize(
    ("prompt", "reply", "page", "legal"),
    [(200, 56, 1, None), (200, 57, 1, 56), (500, 12, 512, None), (1020, 8, 512, 4), (256, 50, 64, None)],
    ids=["ends before 256", "reaches 256", "512 is the grid", "passes 1024", "starts on 256"],
)
def test_replies_with_decode_checkpoints_are_refused(prompt, reply, page, legal):
    texts = [(((1, 0, prompt),), ((1, prompt, reply),))]
    if legal is None:
        SglangRequests(texts, page, 8)
    else:
        with pytest.raises(ValueError, match=f"nearest legal: {legal} tokens"):
            SglangRequests(texts, page, 8)


@pytest.mark.parametrize(("prefix", "end", "page"), [(0, 5, 4), (4, 9, 4), (5, 6, 4), (5, 8, 4), (7, 15, 4)])
def test_slots_of_one_request_go_on_in_its_last_page(prefix, end, page):
    torch = pytest.importorskip("torch")
    held = [11, 3, 12, 5, 9, 8, 7, 30]  # pages of the request's row; those beyond the prefix are still free
    known = -(-prefix // page)
    last = torch.tensor([held[(prefix - 1) // page] * page + (prefix - 1) % page if prefix else -1])
    out = torch.empty(end - prefix, dtype=torch.int64)
    words = torch.tensor([prefix]), torch.tensor([end]), last, torch.tensor(held[known:]), out, page, "cpu"
    sglang_request_peer._slots_of_one(*words)
    assert out.tolist() == [held[at // page] * page + at % page for at in range(prefix, end)]


@peer
@pytest.mark.peer
@pytest.mark.parametrize("page", [1, 64, 512])
def test_sglangs_requests_reuse_the_same_tokens_as_ours(page):
    rows = measure(page, 3, 1, sglang_peer.CORES)
    for part in ("tree", "lifecycle"):
        assert len({row.matched_tokens for row in rows if row.part == part}) == 1
    requests = load(3)
    driver = SglangRequests([(r.prompt, r.output) for r in requests], page, len(requests) + 8)
    for way in WAYS:
        assert driver.run("python", way, 40_000)[1] == lifecycle_matches(page, 3)


@peer
@pytest.mark.peer
@pytest.mark.parametrize("way", WAYS)
def test_a_small_pool_evicts_and_its_books_add_up(way):
    requests = load(4)
    driver = SglangRequests([(r.prompt, r.output) for r in requests], 64, len(requests) + 8)
    assert sum(driver.run("python", way, 8192)[1]) < sum(lifecycle_matches(64, 4))


@peer
@pytest.mark.peer
def test_slots_of_one_request_are_those_that_sglang_gives():
    torch = pytest.importorskip("torch")
    from sglang.srt.mem_cache.allocator.paged import alloc_extend_naive

    free = torch.tensor([4, 9, 2, 7, 30, 12])
    for prefix, end in [(0, 1), (0, 64), (64, 200), (70, 90), (70, 128), (70, 300)]:
        last = torch.tensor([11 * 64 + prefix % 64 - 1 if prefix % 64 else -1])
        given = []
        for slots in (alloc_extend_naive, sglang_request_peer._slots_of_one):
            given.append(torch.empty(end - prefix, dtype=torch.int64))
            slots(torch.tensor([prefix]), torch.tensor([end]), last, free, given[-1], 64, "cpu")
        assert torch.equal(*given)
