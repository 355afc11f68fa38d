"""Experts from the safetensors files that models are published in (docs/howto/checkpoints.md); needs the extra `checkpoints`."""

from .experts import PublishedExperts, find_layers
from .files import Checkpoint, CheckpointError
from .load import ExpertTarget, load_experts
from .published import PUBLISHED

__all__ = [
    "PUBLISHED", "Checkpoint", "CheckpointError", "ExpertTarget", "PublishedExperts", "find_layers", "load_experts",
]  # fmt: skip
