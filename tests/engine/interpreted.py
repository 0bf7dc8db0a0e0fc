"""Run with TRITON_INTERPRET=1: the engine on the Triton kernels, without a GPU; prints the largest difference."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from dense import dense_logits

from depthchart import Geometry
from depthchart.engine import Engine, build_model, preset
from depthchart.events import Matched, Tracked

model = build_model(
    preset(sys.argv[1], vocab=64, width=32, state_heads=2, key_heads=1, key_dim=16, value_dim=16, heads=2, kv_heads=1,
           latent_dim=16, head_dim=16, rope_dim=0),
    chunk_width=16, impl="triton",
)  # fmt: skip
geometry = Geometry(8, 2, 16, chunked_prefill_size=40, track_interval=16)
engine = Engine(model, geometry, "page_exact", kv_tokens=160, state_slots=12, record="all")
dice = random.Random(0)
first = [dice.randrange(64) for _ in range(45)]
engine.generate("a", first, 4)
engine.generate("b", [*engine.text("a"), *(dice.randrange(64) for _ in range(9))], 3)
assert [event.tokens for event in engine.log.of(Matched)] == [0, 48]
assert {event.kind for event in engine.log.of(Tracked)} == {"prefill", "decode"}
texts = [engine.text("a"), engine.text("b")]
worst = 0.0
for name, right in zip("ab", dense_logits(model, texts), strict=True):
    for at, values in engine.logits[name].items():
        worst = max(worst, float((values.double() - right[at]).abs().max()))
print(worst)
