"""What one rank has to do in one launch, whatever does it."""

from __future__ import annotations

from dataclasses import dataclass

from ..recipe import Format


@dataclass(frozen=True)
class Work:
    """FLOP, bytes between a GPU's memory and its caches, and bytes over links to other GPUs in the direction that has more."""

    flop: float
    hbm_bytes: float
    nvlink_bytes: float


def value_bytes(one: Format) -> float:
    """Bytes of a value with its scales, those that many rows share left out."""
    return one.element_bits / 8 if one.rows > 1 else one.bytes_per_value
