"""What configurations of kernels have in common whose CTAs multiply in pairs."""

from __future__ import annotations

from typing import Any

from ...hardware.cta_pair import CLUSTER, PAIR_MMAS, PairMma
from ...hardware.operand_tile import ALL_BYTES, BYTE_VALUES, PLAIN_VALUES, KBlock, packed_values


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
        formats = self.problem.formats
        if not formats.scaled:
            return PLAIN_VALUES
        if formats.packs_activations:
            return packed_values(self.block_k, formats.activations.channels)
        return ALL_BYTES if formats.weights.element_bits == ALL_BYTES.weight_bits else BYTE_VALUES

    @property
    def mma(self) -> PairMma:
        """The kind of the MMAs."""
        formats = self.problem.formats
        return PAIR_MMAS[formats.weights.scale][formats.weights.element, formats.activations.element]
