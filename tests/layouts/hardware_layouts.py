"""Orders that the chip defines as layouts of the algebra, which tests hold the index expressions of device code against.

Sources: PTX ISA, tcgen05.mma ("Data path layout"), tcgen05.ld, tcgen05.cp, stmatrix, wgmma; SM100_FACTS.
"""

from __future__ import annotations

from collections.abc import Sequence

from layout_algebra import ComposedLayout, composition, identity, join, logical_product, row_major, swizzled
from megamoe_dsl.blocks.sm100.epilogue_tile import FC1_CHANNELS, HALF_BYTES, HALF_CHANNELS
from megamoe_dsl.hardware.cta_pair import BLOCK_N, TMEM_COLUMNS, TMEM_LANES
from megamoe_dsl.hardware.fragments import REQUEST_BYTES, WINDOW, tmem_16x256b
from megamoe_dsl.hardware.operand_tile import CORE_ROWS, MMA_K_BYTES, SCALES_PER_WORD, SF_ATOM_ROWS, SW32, SW64, SW128, Swizzle
from megamoe_dsl.kernels.moe.layouts.smem_plan import LANES, VECTOR
from megamoe_dsl.layouts.arith import Int
from megamoe_dsl.layouts.layout import Layout
from megamoe_dsl.pictures.orders import COLUMNS, QUARTER

ROW_VALUES = 128  # E2M1 values of an unpacked row
CTA = TMEM_LANES * TMEM_COLUMNS
"""Index distance between the tensor memories of the two CTAs."""


CORE = Layout(((4, 8), 2), ((16, 1), 8))
"""(thread, value) -> row + 8 * column of an 8x8 matrix, of which all fragments are made: read through the strides of a target, repeated."""


def core_matrix(row: int, column: int) -> Layout:
    """`CORE` in a target whose rows are `row` apart and whose columns are `column` apart."""
    return composition(Layout((8, 8), (row, column)), CORE)


def repeat_values(fragment: Layout, *modes: Layout) -> Layout:
    """The fragment with more values per thread, repeated as the modes say: (thread, (value, *modes))."""
    return join(fragment[0], join(fragment[1], *modes))


def stmatrix_b8(tiles: int) -> Layout:
    """stmatrix.m16n8.xN.trans.b8: (thread, (q, h, word)) -> byte + 16 * (column + 8 * tile); byte 2 h + q of the word.

    Column c of tile k is the 16 bytes at the address that lane 8 k + c gives.
    """
    return repeat_values(core_matrix(1, 16), Layout(2, 8), Layout(tiles, 128))


def swizzle_atom(span: int) -> ComposedLayout:
    """(row, byte) -> byte of the 8-row block that a swizzle of `span` bytes permutes."""
    return swizzled(Swizzle(span), Layout((CORE_ROWS, span), (span, 1)))


def utccp_source() -> Layout:
    """(lane, column) -> word: tcgen05.cp.32x128b reads 16 bytes a lane, one after another."""
    return row_major(QUARTER, COLUMNS)


def utccp_atom() -> Layout:
    """Row -> word of an atom: the row's place in TMEM, counted in the order in which UTCCP reads its source."""
    return composition(utccp_source(), identity(SF_ATOM_ROWS))


def fc1_tile(tokens: int) -> ComposedLayout:
    return swizzled(SW64, Layout((tokens, FC1_CHANNELS), (FC1_CHANNELS, 1)))


def packed_tile(tokens: int) -> ComposedLayout:
    """(token, pair of channels) -> byte."""
    return swizzled(SW32, Layout((tokens, FC1_CHANNELS // 2), (FC1_CHANNELS // 2, 1)))


def result_tile(tokens: int) -> ComposedLayout:
    """(token, (channel, half)) -> byte of the channel's BF16."""
    channels = Layout((HALF_CHANNELS, BLOCK_N // HALF_CHANNELS), (2, tokens * HALF_BYTES))
    return swizzled(SW128, join(Layout(tokens, HALF_BYTES), channels))


def pair_m256(n: int) -> Layout:
    """cta_group::2, M = 256: ((row of the CTA, CTA), column) -> lane + 128 * column + CTA * cta.  Row r of a CTA is lane r."""
    return join(Layout((TMEM_LANES, 2), (1, CTA)), Layout(n, TMEM_LANES))


def pair_m128(n: int) -> Layout:
    """cta_group::2, M = 128: ((row of the CTA, CTA), (column, half)) -> index as above.

    64 rows a CTA; the second half of N lies in the lanes below them.
    """
    half = TMEM_LANES // 2
    return join(Layout((half, 2), (1, CTA)), Layout((n // 2, 2), (TMEM_LANES, half)))


def accumulators(n: int, buffers: int, pitch: int) -> Layout:
    """((row, CTA), column, buffer) -> index: `buffers` accumulators of M = 256, the first columns of two of them `pitch` apart."""
    return join(*pair_m256(n).modes, Layout(buffers, pitch * TMEM_LANES))


def _pair(value: object) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return value[0], value[1]


def wgmma_accumulator(n: int) -> Layout:
    """D of wgmma.m64nNk*: (thread of the warpgroup, (q, h, j)) -> row + 64 * column; register 4 j + 2 h + q.

    Each warp has 16 rows.  Raises ValueError unless n is a multiple of 8 from 8 to 256.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n = {n}: must be a multiple of 8 from 8 to 256")
    core = core_matrix(1, 64)
    threads = Layout((*_pair(core[0].shape), 4), (*_pair(core[0].stride), 16))
    return repeat_values(join(threads, core[1]), Layout(2, 8), Layout(n // 8, 8 * 64))


def stmatrix_b16(tiles: int, *, transposed: bool) -> Layout:
    """stmatrix.m8n8.xN[.trans].b16: (thread, (half of the word, word)) -> element + 8 * (row + 8 * tile).

    Row r of tile k is the 16 bytes at the address that lane 8 k + r gives.
    """
    core = core_matrix(1, 8) if transposed else core_matrix(8, 1)
    return repeat_values(core, Layout(tiles, 64))


def load_columns(groups: int) -> Layout:
    """`device.tcgen05.load_columns`: (thread, (q, h, s, g)) -> lane + 32 * column; value 4 s + 2 h + q of tuple g.

    Two 16x256b.xN loads, the second (s) 16 lanes below the first.
    """
    half = tmem_16x256b(groups)
    q, h, g = half[1].modes
    return join(half[0], join(q, h, Layout(2, 16), g))


def tmem_32x32b(repeats: int) -> Layout:
    """tcgen05.ld.32x32b.xN: (thread, register) -> lane + 32 * column.  Thread t has lane t, register j column j."""
    return Layout((WINDOW, repeats), (1, WINDOW))


def unpacked_fp4_row() -> Layout:
    """(nibble of 16, group) -> nibble of a row of 128 E2M1 values: 8 packed bytes, then 8 of padding, in every 16."""
    return Layout((16, ROW_VALUES // 16), (1, 32))


def k_step(tile: ComposedLayout, step: int) -> ComposedLayout:
    """(row, byte) -> byte offset of the 32 bytes of K that MMA number `step` takes: the descriptor's start moves inside the atom."""
    part = composition(tile, (None, Layout(MMA_K_BYTES)))
    return ComposedLayout(part.outer, part.offset + step * MMA_K_BYTES, part.inner)


def operand_tile(rows: int, span: int = 128) -> ComposedLayout:
    """((row % 8, row / 8), byte) -> byte offset of a K-major tile `span` bytes wide: swizzle atoms stacked along the rows.

    `rows` is a multiple of 8.  The tile starts at a multiple of the swizzle's period.
    """
    atom = swizzle_atom(span)
    stacked = logical_product(atom.inner, Layout(rows // CORE_ROWS))
    (row, byte), block = stacked[0].modes, stacked[1]
    return ComposedLayout(atom.outer, 0, join(join(row, block), byte))


def weight_scales(rows: int, k_words: int, experts: int) -> Layout:
    """(row, word of K, expert) -> word of the transformed weight scales [experts * k_words, rows]."""
    return logical_product(utccp_order(rows), Layout((k_words, experts)))


def pool_scales(pool_blocks: int, sf_block_m: int, k_words: int, pitch: int) -> Layout:
    """(row of the block, pool block, word of K) -> word of an M-major pool scale buffer with `pitch` words per word of K."""
    return join(utccp_order(sf_block_m), Layout(pool_blocks, sf_block_m), Layout(k_words, pitch))


def scale_bytes(rows: int) -> Layout:
    """(row, k) -> byte: the four scales of a row and 128 channels share its word, lowest k first."""
    words = utccp_order(rows)
    return join(composition(Layout(words.size, SCALES_PER_WORD), words), Layout(SCALES_PER_WORD))


def utccp_order(rows: int) -> Layout:
    """(row % 128, row / 128) -> word of a run of whole atoms; `rows` is a multiple of 128."""
    return logical_product(utccp_atom(), Layout(rows // SF_ATOM_ROWS))


def tmem_scales() -> Layout:
    """((row % 32, row / 32), quarter) -> lane + 128 * column: row m in lane m % 32 of every quarter, column m / 32."""
    return Layout(((QUARTER, COLUMNS), TMEM_LANES // QUARTER), ((1, TMEM_LANES), QUARTER))


def utccp_row_inverse(word: Int) -> Int:
    """The row whose scales are at `word`."""
    return (word & -SF_ATOM_ROWS) + (word & 3) * 32 + ((word >> 2) & 31)


def fewest_wavefronts(addresses: Sequence[int], width: int) -> int:
    """The least that the number of requests allows."""
    return -(-len(addresses) // (REQUEST_BYTES // width))


def combine_channels(chunk: int) -> Layout:
    """(lane, (element, vector)) -> channel of the chunk; element + 8 * vector is the index of the lane's FP32 sum (`CombinePlan`)."""
    return Layout((LANES, (VECTOR, chunk // (VECTOR * LANES))), (VECTOR, (1, VECTOR * LANES)))
