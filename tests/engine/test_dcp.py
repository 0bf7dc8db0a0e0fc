"""Decode context parallelism for real: processes and their emulation, against one rank."""

import pytest

torch = pytest.importorskip("torch")

from depthchart import Geometry  # noqa: E402
from depthchart.charts.dcp import dcp_chart  # noqa: E402
from depthchart.columns import DCP  # noqa: E402
from depthchart.engine import EmulatedRanks, ProcessRanks, build_model, preset  # noqa: E402
from depthchart.engine.dcp import conversations, dcp_sweep, run_dcp, run_processes  # noqa: E402

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["kimi-linear", "qwen3-next"])
def sweep(request):
    model = build_model(preset(request.param), chunk_width=16)
    return model, dcp_sweep(model, 16, output_tokens=10).set_index("dcp_size")


def test_results_equal_those_of_one_rank(sweep):
    _, frame = sweep
    assert list(frame.reset_index().columns) == list(DCP)
    assert frame.index.tolist() == [1, 2, 4, 8]
    assert frame["same_tokens"].all()
    assert (frame["largest_difference"] < TOLERANCE).all()


def test_the_widened_page_reuses_less(sweep):
    """The same prompts: pages of 16, 32, 64, 128 tokens."""
    _, frame = sweep
    assert frame["tree_page_tokens"].tolist() == [16, 32, 64, 128]
    # of 250 shared tokens, by each of the five prompts that follow the first
    assert frame["reused_tokens"].tolist() == [5 * 240, 5 * 224, 5 * 192, 5 * 128]


def test_each_rank_holds_its_share(sweep):
    """Peak pages in use × page / D × numbers a token × 4 bytes; wider pages waste more, so not quite 1 / D."""
    model, frame = sweep
    bytes_per_token = model.config.kv_values_per_token * 4
    for size, row in frame.iterrows():
        share = row["tree_page_tokens"] // size * bytes_per_token
        assert row["rank_kv_bytes"] % share == 0
    assert frame["rank_kv_bytes"].is_monotonic_decreasing
    assert frame["rank_kv_bytes"].loc[8] < frame["rank_kv_bytes"].loc[1] / 2


def test_bytes_exchanged_for_a_token(sweep):
    """For each of the other ranks and each attention layer: every head's partial output and one denominator."""
    model, frame = sweep
    c = model.config
    channels = sum(c.latent_dim if block == "mla" else c.head_dim for block in c.attention_layers)
    numbers = c.heads * (channels + len(c.attention_layers))
    assert frame["sent_bytes_per_token"].tolist() == [(size - 1) * numbers * 4 for size in (1, 2, 4, 8)]
    assert (frame["sent_bytes_per_step"] >= frame["sent_bytes_per_token"]).all()


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_processes_give_what_one_rank_gives(ranks):
    """Started by torchrun; each process holds one share of the KV and sees the others' through gloo."""
    found, logits = run_processes(ranks, output_tokens=8)
    model = build_model(preset("kimi-linear"), chunk_width=16)
    prompts = conversations(model.config.vocab)
    alone = run_dcp(model, Geometry(16, 1, 16), prompts, output_tokens=8)
    assert found["outputs"] == alone.outputs
    assert float((logits - alone.logits).abs().max()) < TOLERANCE
    emulated = run_dcp(model, Geometry(16, ranks, 16), prompts, output_tokens=8, ranks=EmulatedRanks(ranks))
    assert torch.equal(logits, emulated.logits), "the emulation merges in the same order: the same bits"
    assert found["sent_bytes"] == [emulated.sent_bytes] * ranks
    assert found["peak_kv_bytes"] == [emulated.peak_kv_bytes] * ranks
    assert (found["decode_bytes"], found["reused_tokens"]) == (emulated.decode_bytes, emulated.reused_tokens)


@pytest.mark.slow
def test_a_failing_rank_is_told_of():
    with pytest.raises(RuntimeError, match=r"2 ranks failed: error: argument --preset: invalid choice: 'no'"):
        run_processes(2, preset="no")


def test_an_illegal_geometry_starts_no_process():
    with pytest.raises(ValueError, match="page_size=24: must divide chunk_width=16"):
        run_processes(2, page_size=24)


def test_ranks_need_a_group():
    with pytest.raises(RuntimeError, match="start the script with torchrun"):
        ProcessRanks()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure(sweep, theme):
    _, frame = sweep
    fig = dcp_chart(frame.reset_index(), theme=theme)
    heights = [[bar.get_height() for bar in ax.patches] for ax in fig.axes]
    assert heights[0] == pytest.approx((frame["rank_kv_bytes"] / 1024).tolist())
    assert heights[1] == pytest.approx((frame["sent_bytes_per_token"] / 1024).tolist())
    assert heights[2] == frame["reused_tokens"].tolist()
