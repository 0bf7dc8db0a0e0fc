"""A real hybrid model on the same cache and scheduler as the simulator: the second executor."""

from depthchart.engine.config import PRESETS, ModelConfig, preset
from depthchart.engine.executor import ModelExecutor
from depthchart.engine.model import HybridModel, build_model
from depthchart.engine.ranks import EmulatedRanks, ProcessRanks
from depthchart.engine.sampling import Sampling
from depthchart.engine.serving import Engine, cold_logits

__all__ = [
    "PRESETS",
    "EmulatedRanks",
    "Engine",
    "HybridModel",
    "ModelConfig",
    "ModelExecutor",
    "ProcessRanks",
    "Sampling",
    "build_model",
    "cold_logits",
    "preset",
]
