"""What configurations of kernels have in common whose CTAs multiply in pairs."""

from __future__ import annotations

from typing import Any

from ...hardware.cta_pair import CLUSTER
from ...hardware.k_block import BYTE_VALUES, KBlock, packed_values
from ...hardware.scaled_mma import MXF4, MXF8F6F4, ScaledMma


class PairConfig:
    """Before the family's base: `problem` has `formats` (recipe.py), `block_k` is the K of a stage."""

    problem: Any
    block_k: int

    @property
    def cluster(self) -> int:
        """The CTA pair of an MMA."""
        return CLUSTER

    @property
    def blocks_per_fetch(self) -> int:
        """A pair works on one tile."""
        return 1

    @property
    def k_block(self) -> KBlock:
        """K of a stage."""
        return packed_values(self.block_k) if self.problem.formats.packs_activations else BYTE_VALUES

    @property
    def mma(self) -> ScaledMma:
        """The kind of the MMAs."""
        return MXF4 if self.problem.formats.packs_activations else MXF8F6F4
