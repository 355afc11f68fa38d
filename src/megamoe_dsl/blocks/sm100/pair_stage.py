"""A stage of the ring of one CTA of a pair: sizes of its operands and scales, the bytes that TMA counts for them, and the tensor maps by
which loaders fetch them (load.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...hardware.cta_pair import BLOCK_N, PAIR_MMAS, PairMma
from ...hardware.operand_tile import (
    ALL_BYTES,
    BLOCK_K,
    BYTE_VALUES,
    OPERAND_ALIGNMENT,
    PLAIN_VALUES,
    SF_ATOM_BYTES,
    SF_ATOM_ROWS,
    KBlock,
    packed_values,
)
from ...hardware.tensor_map import MapFields, TensorMapDtype
from ...layouts.arith import align, ceil_div
from ...layouts.region import U8, Field
from ...recipe import Recipe


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
        """Fields of scales in a ring: sfb, of weights, an atom per word of scales and consumer; sfa, of tokens.  None without scales."""
        words = self.k_block.words
        if not words:
            return ()
        return (
            Field("sfb", (num_stages, words * self.consumers * SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
            Field("sfa", (num_stages, words * self.sfa_atoms * SF_ATOM_BYTES), U8, SF_ATOM_BYTES),
        )


# --- of a configuration, whose problem has `formats` (recipe.py), and whose `block_k` is the K of a stage
def block_ks(formats: Recipe, *ks: int) -> tuple[int, ...]:
    """K that a stage can have: 128 values, of BF16 64; with E2M1 activations also 256, if each K of the GEMMs is whole in it."""
    least = BLOCK_K if formats.scaled else PLAIN_VALUES.channels
    return (least, 2 * least) if formats.packs_activations and all(k % (2 * least) == 0 for k in ks) else (least,)


def check_k(config: Any, depths: Sequence[int], of: str) -> None:
    """Replaces 0 by the smallest allowed K.  Raises `ConfigError` for a K that is not allowed."""
    if config.block_k == 0:
        object.__setattr__(config, "block_k", min(depths))
    config.require_any("block_k", depths, f" for {of}")


def k_block_of(config: Any) -> KBlock:
    """K of one pipeline stage."""
    formats = config.problem.formats
    if not formats.scaled:
        return PLAIN_VALUES
    if formats.packs_activations:
        return packed_values(config.block_k, formats.activations.channels)
    return ALL_BYTES if formats.weights.element_bits == ALL_BYTES.weight_bits else BYTE_VALUES


def mma_of(config: Any) -> PairMma:
    """The kind of tcgen05.mma for these operands."""
    formats = config.problem.formats
    return PAIR_MMAS[formats.weights.scale][formats.weights.element, formats.activations.element]


def byte_rows(address: Any, width: int, height: Any, box_height: int, span: int) -> MapFields:
    """`height` rows of `width` bytes, in boxes of `span` bytes, which is the swizzle, by `box_height` rows."""
    return MapFields(address, TensorMapDtype.U8, (width, height), (width,), (span, box_height), span)


def weight_rows(address: Any, k: int, height: Any, k_block: KBlock, box_height: int = BLOCK_N) -> MapFields:
    """`height` rows of `k` weights, as they are in memory; a CTA's of a stage, unpacked where a stage has a byte for each E2M1."""
    row_bytes = k * k_block.weight_bits // 8
    if not k_block.unpacks:
        return byte_rows(address, row_bytes, height, box_height, k_block.row_bytes)
    box = (k_block.channels, box_height)
    return MapFields(address, TensorMapDtype.FP4_UNPACKED, (k, height), (row_bytes,), box, k_block.row_bytes)


def k_tiles(k: int, k_block: KBlock) -> int:
    """Number of weight tiles along K."""
    return ceil_div(k, k_block.channels // k_block.weight_tiles)


def weight_tiles(address: int, tiles: int, k_block: KBlock) -> MapFields:
    """So many tiles of weights, as `quant.tile_sm100` orders them, in boxes of those of a stage.  Its dimensions: a row, tiles, rows."""
    row_bytes = k_block.weight_row_bytes // k_block.weight_tiles
    dtype, row = (TensorMapDtype.FP4_UNPACKED, k_block.channels) if k_block.unpacks else (TensorMapDtype.U8, row_bytes)
    dims, box = (row, tiles, BLOCK_N), (row, k_block.weight_tiles, BLOCK_N)
    return MapFields(address, dtype, dims, (BLOCK_N * row_bytes, row_bytes), box, k_block.row_bytes)


def scale_words(address: Any, width: Any, height: int, box_width: int, k_block: KBlock, pitch: Any = None) -> MapFields:
    """[words of a row, rows] words of scales in UTCCP order, `height` by `width` of them, `pitch` words from one row to the next; a stage's
    for `box_width` rows."""
    strides = (4 * (width if pitch is None else pitch),)
    return MapFields(address, TensorMapDtype.U32, (width, height), strides, (box_width, k_block.words), 0)
