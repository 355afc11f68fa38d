"""Experts from the safetensors files that models are published in (docs/checkpoints.md); needs the extra `checkpoints`."""

from .experts import PublishedExperts, find_layers, find_layout
from .files import Checkpoint, CheckpointError
from .load import ExpertTarget, load_experts, read_experts
from .published import PUBLISHED, PublishedLayout

__all__ = [
    "PUBLISHED",
    "Checkpoint",
    "CheckpointError",
    "ExpertTarget",
    "PublishedExperts",
    "PublishedLayout",
    "find_layers",
    "find_layout",
    "load_experts",
    "read_experts",
]
