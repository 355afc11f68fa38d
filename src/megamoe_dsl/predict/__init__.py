"""A model of performance: how long a launch of the fused MoE kernels takes on a GPU, what limits it, and which configuration is faster.

It simulates K blocks, rings, tensor cores and epilogues over shared memory bandwidths (engine.py) in the order of the kernels' own
schedule, with constants that were fitted to measured times (calibration.py).  How well it does: docs/predict.md.
"""

from .calibration import Calibration, calibrated, calibration_of, find_gpu
from .clock import Launched
from .launch import RankLoad
from .limits import Gain, gains
from .prediction import Prediction
from .preference import NO_PREFERENCE, prefers, worth_timing
from .subject import Subject

__all__ = [
    "NO_PREFERENCE",
    "Calibration",
    "Gain",
    "Launched",
    "Prediction",
    "RankLoad",
    "Subject",
    "calibrated",
    "calibration_of",
    "find_gpu",
    "gains",
    "prefers",
    "worth_timing",
]
