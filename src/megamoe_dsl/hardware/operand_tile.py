"""Operand tiles in shared memory, as TMA writes them and the tensor core reads them: K-major rows of 128 bytes, swizzles, orders of
scale factors, and the K of a stage of SM100.

A swizzle permutes 16-byte chunks inside a row of eight rows by XOR of the byte address; its buffer is aligned to `8 * span` bytes.  UE8M0
scale factors come K-major, one byte per 32 channels, row by row, as quantization writes them; M-major, one word per row and 128 channels,
words of all rows adjacent; or in UTCCP order: M-major, the 128 rows of an atom transposed 4 x 32, so that `tcgen05.cp.32x128b` lands row m
in lane m % 32, column m / 32.

Sources: PTX ISA, "Shared memory descriptor" and "Canonical Layouts", tcgen05.cp, the scale-factor layouts of tcgen05.mma; SM100_FACTS
(SMEM descriptor, swizzle, unpacked FP4, UTCCP).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..layouts.arith import Int

CORE_ROWS = 8
ROW_BYTES = 128  # bytes of K of a stage, whatever its elements: a row of an operand, the span of its swizzle
BLOCK_K = ROW_BYTES  # K elements of a stage of E4M3, and of one 32-bit word of scales
OPERAND_ALIGNMENT = 1024  # bytes: of SW128 operands, eight rows of 128 bytes
MMA_K_BYTES = 32  # bytes of K that one MMA takes


K_ROWS = ROW_BYTES // 2
"""Rows of K of a stage of BF16 that is MN-major, and columns of a box: 128 bytes of each row, then the next columns follow."""
BOX_BYTES = K_ROWS * ROW_BYTES
CHUNK = 16  # bytes that move together


@dataclass(frozen=True)
class Swizzle:
    """`span` is 32, 64 or 128 bytes, or 0 for none."""

    span: int

    def __post_init__(self) -> None:
        if self.span not in (0, 32, 64, 128):
            raise ValueError(f"span = {self.span}: must be 0, 32, 64 or 128")

    @property
    def mask(self) -> int:
        return max(self.span // CHUNK - 1, 0)

    @property
    def alignment(self) -> int:
        """Bytes that a tile must start at a multiple of: its pattern repeats after 8 rows."""
        return max(8 * self.span, CHUNK)

    def __call__(self, address: Int) -> Int:
        """Swizzled byte address; an involution."""
        return address ^ (((address >> 7) & self.mask) << 4)

    def chunk(self, index: Int, row: Int) -> Int:
        return ((index ^ row) & self.mask) << 4


SW32 = Swizzle(32)
SW64 = Swizzle(64)
SW128 = Swizzle(128)


SF_ATOM_ROWS = 128  # UTCCP moves scales in atoms of 128 rows
CHANNELS_PER_SCALE = 32
CHANNELS_PER_WORD = 128
SCALES_PER_WORD = 4
SF_ATOM_BYTES = SF_ATOM_ROWS * 4
SF_ROW_BYTES = 16  # from a row's word to the next row's, inside a quarter of an atom


def utccp_row(row: Int) -> Int:
    """Word index of a row, inside its run of whole atoms: atom base + (row % 32) * 4 + (row / 32) % 4."""
    return (row & -SF_ATOM_ROWS) + (row & 31) * 4 + ((row >> 5) & 3)


def pool_sf_row(pool_block: Int, row_in_block: Int, sf_block_m: int) -> Int:
    """Word index of a pool row in an M-major pool scale buffer whose blocks take `sf_block_m` words each."""
    return pool_block * sf_block_m + utccp_row(row_in_block)


@dataclass(frozen=True)
class KBlock:
    """The K extent of a pipeline stage.

    channels   a multiple of 128; of BF16 64
    row_bytes  of an operand's row in shared memory, the span of its swizzle.  TMA moves as far along the row for the next stage: counted in
               bytes, or in values of unpacked FP4, which take a byte each
    weight_bits  of a weight in memory
    scale_channels   that share a scale; a word has four of a row's; 0 without scales
    """

    channels: int
    row_bytes: int
    weight_bits: int = 4
    scale_channels: int = CHANNELS_PER_SCALE

    @property
    def weight_row_bytes(self) -> int:
        return self.channels * self.weight_bits // 8

    @property
    def weight_tiles(self) -> int:
        """Number of weight tiles (`quant.tile_sm100`) that one stage holds of a CTA's rows."""
        return max(1, self.channels // CHANNELS_PER_WORD)

    @property
    def unpacks(self) -> bool:
        return self.weight_row_bytes < self.row_bytes

    @property
    def words(self) -> int:
        return self.channels // (SCALES_PER_WORD * self.scale_channels) if self.scale_channels else 0

    @property
    def mmas(self) -> int:
        return self.row_bytes // MMA_K_BYTES


BYTE_VALUES = KBlock(BLOCK_K, BLOCK_K)  # a byte per value: E4M3 tokens, and E2M1 weights that TMA unpacks
ALL_BYTES = KBlock(BLOCK_K, BLOCK_K, 8)  # E4M3 weights, too
PLAIN_VALUES = KBlock(ROW_BYTES // 2, ROW_BYTES, 16, 0)  # BF16, without scales


def packed_values(channels: int, scale_channels: int = CHANNELS_PER_SCALE) -> KBlock:
    return KBlock(channels, channels // 2, scale_channels=scale_channels)
