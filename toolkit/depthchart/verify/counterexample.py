"""A history that breaks an invariant: as a script, as a story, as frames for a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthchart.cases.replay import Replay
from depthchart.cases.script import Script, UnwidenedTracking, load_script
from depthchart.cases.story import tell
from depthchart.depth import Rule
from depthchart.files import write_text
from depthchart.geometry import Geometry
from depthchart.presets import Preset
from depthchart.redraw import redraw
from depthchart.verify.bounds import Bounds, Plan
from depthchart.verify.world import Fault, Step

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Counterexample"]


@dataclass(frozen=True)
class Counterexample:
    """``script`` is a conformance script (a JSON-ready object) whose last step shows ``fault``."""

    fault: Fault
    script: Mapping[str, Any]

    @classmethod
    def of(
        cls, subject: Rule | Preset, plan: Plan, bounds: Bounds, history: tuple[Step, ...], fault: Fault
    ) -> Counterexample:
        """From a history of the search."""
        g = plan.geometry
        geometry = {
            "page_size": g.page_size, "dcp_size": g.dcp_size, "chunk_width": g.chunk_width, "index_pool": g.index_pool,
            "track_interval": g.track_interval,
        }  # fmt: skip
        script: dict[str, Any] = {
            "geometry": geometry,
            "preset" if isinstance(subject, Preset) else "rule": subject.name,
            "strict": False,
            "pools": {"kv_tokens": plan.kv_tokens, "state_slots": plan.state_slots},
            "steps": [dict(step) for step in history],
        }
        if isinstance(g, UnwidenedTracking):
            script["decode_grid"] = "interval"
        if fault.kind in ("misplaced state", "shared page", "lost or doubly owned"):
            script["expect"] = {"violations_not_empty": True, "error": None}
        return cls(fault, script)

    @property
    def tokens(self) -> int:
        """Tokens that it computes, prefill and decode."""
        return sum(step["tokens"] for step in self.script["steps"] if step["op"] in ("extend", "decode"))

    @property
    def steps(self) -> int:
        return len(self.script["steps"])

    @property
    def loaded(self) -> Script:
        """The script, checked as one from a file is."""
        return load_script(self.script, "counterexample")

    def scaled(self, factor: int) -> Counterexample:
        """The same history with all lengths ``factor`` times as long: page, chunk, interval, pools, tokens (what a
        preset's name says, as ``llamacpp@2,1`` does, stays as it is)."""
        if factor < 1:
            raise ValueError(f"factor={factor}: must be at least 1; nearest legal: 1")
        script = json.loads(json.dumps(self.script))
        for name in ("page_size", "chunk_width", "track_interval"):
            script["geometry"][name] *= factor
        script["pools"]["kv_tokens"] *= factor
        for step in script["steps"]:
            if "kv_tokens" in step:
                step["kv_tokens"] *= factor
            tokens = step.get("tokens")
            if isinstance(tokens, int):
                step["tokens"] = tokens * factor
            elif tokens is not None:
                step["tokens"] = [[name, length * factor] for name, length in tokens]
        return Counterexample(self.fault, script)

    def story(self) -> list[str]:
        """What happens, step by step, in words."""
        return tell(self.loaded)[0]

    @property
    def title(self) -> str:
        """A heading for a figure."""
        return f"{self.script.get('preset') or self.script['rule']}: {self.fault.kind} after {self.tokens} tokens"

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame, Geometry]:
        """Nodes and checkpoints after the last step (columns.NODES, columns.CHECKPOINTS), and the geometry:
        ``checkpoint_chart(*one.frames())``. Needs pandas."""
        from depthchart import frames

        run = Replay(self.loaded)
        run.run()
        return frames.nodes(redraw(run.log)), frames.checkpoints(run.log), self.loaded.geometry

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the script as JSON for ``depthchart replay``."""
        return write_text(path, json.dumps(self.script, indent=1) + "\n")
