"""What misplaced and rounded states do to logits: the seed bug on its own geometry, rules, dtypes."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from workloads import small_model  # noqa: E402

from depthchart import Geometry  # noqa: E402
from depthchart.charts.divergence import divergence_chart, precision_chart, token_chart  # noqa: E402
from depthchart.columns import DIVERGENCE, PRECISION  # noqa: E402
from depthchart.engine import cold_logits  # noqa: E402
from depthchart.engine.divergence import Scenario, divergence  # noqa: E402
from depthchart.engine.precision import precision_sweep, reuse_chain  # noqa: E402
from depthchart.engine.serving import Engine  # noqa: E402
from depthchart.errors import InvariantError  # noqa: E402
from depthchart.events import Donated, Matched  # noqa: E402

SEED = Geometry(page_size=64, dcp_size=8, chunk_width=64, chunked_prefill_size=1024)
TOLERANCE = 1e-4
KINDS = ["kimi-linear", "qwen3-next", "nemotron-h"]


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return small_model(request.param)


@pytest.mark.parametrize("rule", ["absolute", "page_exact"])
def test_a_sound_rule_changes_nothing_on_the_seed_geometry(model, rule):
    found = divergence(model, SEED, rule, strict=True)
    assert (found.reused, found.state_depth, found.counted_twice) == (512, 512, 0)
    assert found.largest < TOLERANCE
    assert found.output == found.right_output
    assert found.first_changed is None


def test_prefix_relative_runs_64_tokens_twice(model):
    """DESIGN section 1: cut at 64, depth 64 + 512 = 576, filed on the node that ends at 512."""
    found = divergence(model, SEED, "prefix_relative")
    assert (found.reused, found.state_depth, found.counted_twice) == (512, 576, 64)
    assert found.violations >= 1
    assert found.positions[0].position_tokens == 512
    assert found.positions[0].largest_difference > 0.1
    assert found.output != found.right_output
    assert found.first_changed is not None
    assert found.first_changed >= found.prompt


def test_chunk_grid_runs_128_tokens_twice_without_any_cut(model):
    """700 tokens in one extend: depth 10·64 = 640, filed on the node that ends at 512."""
    found = divergence(model, SEED, "chunk_grid", Scenario(first=700, cut=0, shared=700, fresh=100))
    assert (found.reused, found.state_depth, found.counted_twice) == (512, 640, 128)
    assert found.largest > 0.1
    assert found.output != found.right_output


def test_the_difference_is_that_of_a_text_with_the_tokens_doubled():
    """Counted twice, literally: recurrent layers alone (no attention, no positions) answer as if the text said its
    tokens 512 to 575 two times."""
    from depthchart.engine import build_model, preset

    model = build_model(preset("kimi-linear", pattern=("kda",), vocab=64, width=32), chunk_width=16)
    engine = Engine(
        model, SEED, "prefix_relative", kv_tokens=8192, state_slots=12, strict=False, record="all"
    )
    text = torch.randint(64, [700], generator=torch.Generator().manual_seed(3)).tolist()
    engine.submit("neighbour", text[::-1] + text[:260], 1)  # 960 tokens: 64 of the step's 1,024 are left
    engine.generate("first", text[:604], 1)
    engine.generate("second", text, 1)
    doubled = cold_logits(model, text[:576] + text[512:])[576:]
    got = torch.stack([engine.logits["second"][at] for at in range(512, 700)])
    # The convolution's window is that of token 576 in both.
    assert float((got - doubled).abs().max()) < TOLERANCE
    assert float((got - cold_logits(model, text)[512:]).abs().max()) > 0.01


@pytest.mark.parametrize("rule", ["prefix_relative", "chunk_grid"])
def test_strict_mode_refuses_instead(rule):
    with pytest.raises(InvariantError):
        divergence(small_model("kimi-linear"), SEED, rule, strict=True)


@pytest.mark.parametrize(
    ("geometry", "cut"),
    [
        pytest.param(Geometry(16, 2, 64, chunked_prefill_size=256), 16, id="tree-page-32-chunk-64"),
        pytest.param(Geometry(2, 3, 16, chunked_prefill_size=64), 10, id="tree-page-6-chunk-16"),
    ],
)
def test_states_off_the_chunk_grid_are_exact(model, geometry, cut):
    """page_exact: the kernel finishes a partial chunk for the one tracked depth."""
    scenario = Scenario(first=101, cut=cut, shared=101, fresh=30, output=12)
    found = divergence(model, geometry, "page_exact", scenario, strict=True)
    assert found.reused == 100 // geometry.tree_page * geometry.tree_page
    assert (found.reused - cut) % geometry.chunk_width != 0
    assert divergence(model, geometry, "absolute", scenario, strict=True).reused < found.reused
    assert found.largest < TOLERANCE
    assert found.output == found.right_output


def test_an_impossible_cut_is_refused():
    with pytest.raises(ValueError, match=r"cut=70: must be a multiple of page_size=64 .* nearest legal: 64"):
        divergence(small_model("kimi-linear"), SEED, "absolute", Scenario(cut=70))


# --- checkpoints in lower precision -----------------------------------------------------------------------

CHAIN = Geometry(16, 2, 16, chunked_prefill_size=512)


def test_precision_sweep(model):
    frame = precision_sweep(model, CHAIN, turns=5, seeds=range(2))
    assert list(frame.columns) == [*PRECISION, "seed"]
    assert len(frame) == 3 * 5 * 2
    largest = frame.groupby(["checkpoint_dtype", "reuses"])["largest_difference"].max().unstack(0)
    assert (largest["fp32"] < TOLERANCE).all()
    assert (largest.loc[0] < TOLERANCE).all(), "nothing was reused: nothing was rounded"
    assert (largest.loc[1:, "bf16"] > largest.loc[1:, "fp32"] * 10).all()
    assert (largest.loc[1:, ["bf16", "int8"]] < 1).all().all()
    size = frame.groupby("checkpoint_dtype")["checkpoint_bytes"].first()
    assert size["bf16"] * 2 == size["fp32"]
    assert size["int8"] < size["bf16"]


def test_checkpoint_bytes_by_hand():
    """kimi-linear, small: 3 KDA layers, 2 heads of 8 × 12, windows of (2·16 + 24) channels × 3 tokens."""
    rows = {
        d: reuse_chain(small_model("kimi-linear"), CHAIN, "page_exact", d, turns=1)[0]
        for d in ("fp32", "int8")
    }
    state, window = 2 * 8 * 12, (2 * 2 * 8 + 2 * 12) * 3
    assert rows["fp32"].checkpoint_bytes == 3 * 4 * (state + window)
    assert rows["int8"].checkpoint_bytes == 3 * (state + 4 * 2 * 8 + 2 * window)


def test_a_chain_resumes_every_turn():
    rows = reuse_chain(small_model("nemotron-h"), CHAIN, "page_exact", "int8", turns=6, turn_tokens=48)
    assert [row.reuses for row in rows] == list(range(6))
    # a match stops one token before the end: at the last page of the turn before
    assert [row.reused_tokens for row in rows] == [0, *(48 * n // 32 * 32 for n in range(1, 6))]
    with pytest.raises(ValueError, match=r"turn_tokens=31: .* nearest legal: 32"):
        reuse_chain(small_model("nemotron-h"), CHAIN, "absolute", "int8", turn_tokens=31)


def test_bfloat16_within_a_stated_tolerance():
    """A whole model in bfloat16 (states in float32): 0.25 on logits with a spread of about one. Resuming changes
    which tokens share a matrix product, hence the rounding of activations; greedy tokens may differ at near ties."""
    model = small_model("qwen3-next", dtype=torch.bfloat16)
    found = divergence(model, SEED, "absolute", Scenario(output=8), strict=True)
    assert found.reused == 512
    assert found.largest < 0.25
    wrong = divergence(model, SEED, "prefix_relative", Scenario(output=8))
    assert wrong.largest > 4 * found.largest


# --- figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_say_what_they_show(theme):
    model = small_model("kimi-linear")
    found = divergence(model, SEED, "prefix_relative", Scenario(fresh=40, output=12))
    frame = found.frame()
    assert list(frame.columns) == list(DIVERGENCE)
    assert frame["position_tokens"].tolist() == list(range(512, 651))
    fig = divergence_chart(
        {"prefix_relative": frame},
        (512, 576),
        {"prefix_relative": found.first_changed},
        found.prompt,
        theme=theme,
    )
    (line,) = [x for x in fig.axes[0].lines if x.get_label() == "prefix_relative"]
    assert line.get_ydata().max() == pytest.approx(found.largest)
    words = [text.get_text() for text in fig.axes[0].texts]
    assert f"first changed token: {found.first_changed:,}" in words
    assert "64 tokens read twice" in [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    strip = token_chart({"prefix_relative": found.output}, found.right_output, theme=theme)
    ids = [text.get_text() for text in strip.axes[0].texts]
    assert ids == [str(token) for token in [*found.right_output, *found.output]]
    sweep = precision_sweep(model, CHAIN, turns=3, seeds=[0])
    names = [text.get_text() for text in precision_chart(sweep, theme=theme).axes[0].get_legend().get_texts()]
    assert [name.split()[0] for name in names] == ["fp32", "bf16", "int8"]


def test_figures_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="runs: 0 of them"):
        divergence_chart({})
    with pytest.raises(ValueError, match=r"outputs\['a'\]: 1 tokens; right has 2"):
        token_chart({"a": [1]}, [1, 2])


def test_matches_and_donations_of_the_scenario():
    """The scenario is the one it claims to be: the cut falls at 64, and the state is filed with 576 tokens read."""
    model = small_model("kimi-linear")
    engine = Engine(model, SEED, "prefix_relative", kv_tokens=8192, state_slots=16, strict=False)
    dice = torch.Generator().manual_seed(0)
    engine.submit("neighbour", torch.randint(128, [960], generator=dice).tolist(), 1)
    engine.generate("first", torch.randint(128, [604], generator=dice).tolist(), 1)
    (given,) = [event for event in engine.log.of(Donated) if event.request == "first"]
    assert (given.wanted, given.depth, given.node_end) == (576, 576, 512)
    assert [event.tokens for event in engine.log.of(Matched)] == [0, 0]
