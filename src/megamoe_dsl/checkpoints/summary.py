"""What is in a checkpoint, by its headers."""

from __future__ import annotations

from dataclasses import dataclass

from .experts import PublishedExperts, find_layers
from .files import Checkpoint


@dataclass(frozen=True)
class LayerSummary:
    """Experts of one layer: their layout by name, how many, published channels, bytes, files."""

    layer: int
    layout: str
    num_experts: int
    hidden: int
    intermediate: int
    num_bytes: int
    files: tuple[str, ...]


def summarise(checkpoint: Checkpoint) -> list[LayerSummary]:
    """Every layer with experts, after a look at every one of their tensors' headers.

    Raises `CheckpointError` for the first that is missing or of another dtype or shape, and for a file that is missing or damaged.
    """
    return [_summary(PublishedExperts.of(checkpoint, layer)) for layer in find_layers(checkpoint)]


def _summary(experts: PublishedExperts) -> LayerSummary:
    count, (hidden, intermediate) = experts.num_experts, experts.shape
    for expert in range(1 if experts.layout.stacked else count):
        experts.check_tensors(expert)
    names = dict.fromkeys(name for expert in range(count) for name in experts.names(expert))
    files = tuple(sorted({experts.checkpoint.files[name].name for name in names}))
    values = 3 * count * hidden * intermediate
    num_bytes = round(values * experts.layout.format.bytes_per_value)
    return LayerSummary(experts.layer, experts.layout.name, count, hidden, intermediate, num_bytes, files)
