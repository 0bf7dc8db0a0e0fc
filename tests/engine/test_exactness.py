"""DESIGN section 3.7: logits with reuse are those without, in random workloads, whatever happens to the caches.

Every row of logits that the engine computes (of every token of every extend and decode step, of tokens computed
twice after a retraction, too) is held against the same text computed alone on empty pools, and against a float64 model
that reads the whole text at once. Where the model itself is badly conditioned in float32 (a norm of a nearly vanishing
vector), the text alone is off as far from float64 as the text with reuse.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from dense import dense_logits  # noqa: E402
from workloads import live  # noqa: E402

from depthchart.engine import cold_logits  # noqa: E402

TOLERANCE = 1e-4  # largest difference of logits with a spread of about one, float32
FAST = range(26)


def judge(lived, tolerance=TOLERANCE):
    """(largest difference, rows judged); asserts that every sampled token is the right one.

    A position's difference is that to the text computed alone, or that to float64 where it is smaller: where plain
    float32 is off without any reuse, reuse may be nearer to the truth.
    """
    model, names = lived.engine.model, list(lived.texts)
    truth = dict(zip(names, dense_logits(model, [lived.texts[n] for n in names]), strict=True))
    alone = {name: cold_logits(model, lived.texts[name]).cpu() for name in names}
    own_error = {name: float((alone[name] - truth[name]).abs().max()) for name in names}
    worst, seen = 0.0, {name: set() for name in names}
    for row in lived.rows:
        at = slice(row.first, row.first + len(row.values))
        to_alone = (row.values.cpu() - alone[row.request][at]).abs().amax(1)
        to_truth = (row.values.cpu() - truth[row.request][at]).abs().amax(1)
        assert to_alone.isfinite().all(), (
            f"{row.request} at {row.first}: something unwritten or freed was read"
        )
        assert float(to_truth.max()) < tolerance + own_error[row.request]
        worst = max(worst, float(torch.minimum(to_alone.double(), to_truth).max()))
        seen[row.request].update(range(row.first, row.first + len(row.values)))
    for name in names:
        job = lived.engine.scheduler.done[name]
        for at in range(job.prompt_tokens, len(lived.texts[name])):
            best = truth[name][at - 1].topk(2)
            near_tie = float(best.values[0] - best.values[1]) < 2 * tolerance
            assert lived.texts[name][at] == int(best.indices[0]) or near_tie, f"{name}: token {at} differs"
    return worst, sum(map(len, seen.values()))


@pytest.fixture(scope="module")
def fast():
    """The workloads of the default suite, run once."""
    return {seed: live(seed) for seed in FAST}


def test_logits_with_reuse_equal_those_without(fast):
    rows = 0
    for seed, lived in fast.items():
        worst, judged = judge(lived)
        assert worst < TOLERANCE, f"workload {seed}: {worst}"
        rows += judged
    assert rows > 3000


def test_the_workloads_meet_everything_that_could_spoil_a_state(fast):
    """Otherwise the test above would prove little."""
    total = Counter()
    for lived in fast.values():
        total.update(lived.happened())
    assert min(total.values()) >= 5, total
    assert {lived.engine.geometry.dcp_size for lived in fast.values()} >= {1, 2, 4, 8}


@pytest.mark.parametrize("seed", range(40, 44))
def test_in_float64_the_difference_is_rounding(seed):
    """A small true error could hide under the float32 tolerance; here it could not."""
    worst, _ = judge(live(seed, model_options={"dtype": torch.float64}))
    assert worst < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 700, 50))
def test_hundreds_more(first):
    for seed in range(first, first + 50):
        worst, _ = judge(live(seed, turns=5))
        assert worst < TOLERANCE, f"workload {seed}: {worst}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kimi-linear", "qwen3-next", "nemotron-h"])
def test_on_the_triton_kernels_interpreted(kind):
    """The GPU's kernels on a CPU: reuse of a checkpoint off the chunk grid, decode checkpoints, two DCP ranks."""
    pytest.importorskip("triton")
    root = Path(__file__).resolve().parents[2]
    roots = os.pathsep.join([str(root / "toolkit"), str(root / "kernels")])
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": roots}
    script = Path(__file__).parent / "interpreted.py"
    shown = subprocess.run(
        [sys.executable, script, kind], env=env, capture_output=True, text=True, timeout=600
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert float(shown.stdout) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40, 46))
def test_on_a_gpu(seed):
    """Triton kernels, whose products round to TF32 or better: twenty times the tolerance of float32."""
    wide = {
        "device": "cuda",
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "latent_dim": 16,
        "key_dim": 16,
        "value_dim": 16,
    }
    worst, _ = judge(live(seed, model_options=wide), tolerance=20 * TOLERANCE)
    assert worst < 20 * TOLERANCE
