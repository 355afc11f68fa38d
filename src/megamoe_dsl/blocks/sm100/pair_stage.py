"""A stage of the ring of one CTA of a pair: sizes of its operands and scales, and the bytes that TMA counts for them."""

from __future__ import annotations

from dataclasses import dataclass

from ...hardware.cta_pair import BLOCK_N
from ...hardware.operand_tile import OPERAND_ALIGNMENT, SF_ATOM_BYTES, SF_ATOM_ROWS, KBlock
from ...layouts.arith import align
from ...layouts.region import U8, Field


@dataclass(frozen=True)
class PairStage:
    """`block_m` tokens by the pair's 256 weight rows for each of `consumers`, `k_block` of K."""

    block_m: int
    k_block: KBlock
    consumers: int = 1

    @property
    def weight_rows(self) -> int:
        return BLOCK_N * self.consumers

    @property
    def weight_bytes(self) -> int:
        """[weight_rows][k], of E2M1 a byte per value beside E4M3 tokens."""
        return self.weight_rows * self.k_block.row_bytes

    @property
    def token_bytes(self) -> int:
        """One CTA's half of the tile's tokens: [block_m / 2][k], aligned."""
        return align(self.block_m // 2 * self.k_block.row_bytes, OPERAND_ALIGNMENT)

    @property
    def sfa_atoms(self) -> int:
        """512-byte atoms of token scales: one per 128 rows."""
        return align(self.block_m, SF_ATOM_ROWS) // SF_ATOM_ROWS

    @property
    def weight_transaction(self) -> int:
        """Bytes TMA counts for one CTA's weights and scales: those in memory, whatever their footprint."""
        return self.consumers * (BLOCK_N * self.k_block.weight_row_bytes + self.k_block.words * SF_ATOM_BYTES)

    @property
    def token_transaction(self) -> int:
        """Bytes TMA counts for one CTA's half of the tokens and the scales of all."""
        return self.block_m // 2 * self.k_block.row_bytes + self.k_block.words * self.sfa_atoms * SF_ATOM_BYTES

    def operands(self, num_stages: int) -> tuple[Field, Field]:
        return (
            Field("weights", (num_stages, self.weight_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (num_stages, self.token_bytes), U8, OPERAND_ALIGNMENT),
        )

    def scales(self, num_stages: int) -> tuple[Field, ...]:
        """Fields of the scales in a ring: sfb, of the weights, an atom per word of scales and consumer; sfa, of the tokens.  None without
        scales."""
        words = self.k_block.words
        if not words:
            return ()
        return (
            Field("sfb", (num_stages, words * self.consumers * SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
            Field("sfa", (num_stages, words * self.sfa_atoms * SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
        )
