"""Layouts derived from the algebra against what is known independently: the simulator's tables, weight transforms, documented formulas."""

import numpy as np
import pytest
import torch
from gate_up import gate_up_rows
from hardware_layouts import (
    CTA,
    accumulators,
    combine_channels,
    k_step,
    load_columns,
    operand_tile,
    pair_m128,
    pair_m256,
    pool_scales,
    scale_bytes,
    stmatrix_b8,
    stmatrix_b16,
    swizzle_atom,
    tmem_32x32b,
    tmem_scales,
    unpacked_fp4_row,
    utccp_atom,
    utccp_order,
    utccp_row_inverse,
    utccp_source,
    weight_scales,
    wgmma_accumulator,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from layout_algebra import coalesce, right_inverse
from megamoe_dsl.hardware.cta_pair import TmemPlan
from megamoe_dsl.hardware.fragments import tmem_16x256b
from megamoe_dsl.hardware.operand_tile import CHANNELS_PER_WORD, Swizzle, pool_sf_row, utccp_row
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.layouts.layout import Layout, idx2crd
from megamoe_dsl.quant.formats import SCALE_BLOCK
from megamoe_dsl.quant.weights import interleave_gate_up, utccp_scale_order
from megamoe_dsl.sim.chunks import to_shared_format
from megamoe_dsl.sim.descriptors import SmemDescriptor, operand_bytes
from megamoe_dsl.sim.tensor_unit import fragment
from megamoe_dsl.sim.umma import to_registers


# --- register fragments
@pytest.mark.parametrize("repeats", [1, 2, 4, 8])
@pytest.mark.parametrize(("layout", "shape", "per_repeat"), [(tmem_32x32b, "32x32b", 1), (tmem_16x256b, "16x256b", 4)])
def test_tmem_loads(layout, shape, per_repeat, repeats):
    lanes, columns, _ = fragment(shape, repeats)
    mine = layout(repeats)
    assert mine.size == 32 * per_repeat * repeats and mine.injective
    for register in range(per_repeat * repeats):
        for thread in range(32):
            assert mine(thread, register) == lanes[register, thread] + 32 * columns[register, thread]


@pytest.mark.parametrize("groups", [2, 4])
def test_load_columns(groups):
    """Value 4 s + 2 h + q of tuple g: lane 16 s + 8 h + t / 4, column 8 g + 2 (t % 4) + q; every lane and column exactly once."""
    mine = load_columns(groups)
    for t in range(32):
        for g in range(groups):
            for value in range(8):
                s, h, q = value >> 2, value >> 1 & 1, value & 1
                assert mine(t, value + 8 * g) == 16 * s + 8 * h + t // 4 + 32 * (8 * g + 2 * (t % 4) + q)
    assert sorted(mine.indices()) == list(range(32 * 8 * groups))


@pytest.mark.parametrize("n", [8, 64, 128, 256])
def test_wgmma_accumulator(n):
    mine = wgmma_accumulator(n)
    assert sorted(mine.indices()) == list(range(64 * n))
    for warp in range(4):
        rows = np.arange(16 * warp, 16 * warp + 16)[:, None] + 64 * np.arange(n)[None, :]
        registers = to_registers(rows.astype(np.float32)).astype(int)
        for register in range(n // 2):
            assert [mine(32 * warp + t, register) for t in range(32)] == registers[register].tolist()


@pytest.mark.parametrize("n", [0, 4, 12, 264])
def test_wgmma_widths(n):
    with pytest.raises(ValueError, match=f"n = {n}: must be a multiple of 8"):
        wgmma_accumulator(n)


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_stmatrix_formulas(tiles):
    """PTX ISA, stmatrix: half q of thread t is row t / 4, column 2 (t % 4) + q of its tile; .trans exchanges row and column.

    SM100_FACTS for b8.
    """
    plain, transposed, bytes8 = stmatrix_b16(tiles, transposed=False), stmatrix_b16(tiles, transposed=True), stmatrix_b8(tiles)
    for t in range(32):
        for k in range(tiles):
            for q in range(2):
                row, column = t // 4, 2 * (t % 4) + q
                assert plain(t, q + 2 * k) == column + 8 * (row + 8 * k)
                assert transposed(t, q + 2 * k) == row + 8 * (column + 8 * k)
                for h in range(2):
                    assert bytes8(t, q + 2 * h + 4 * k) == (t // 4 + 8 * h) + 16 * (2 * (t % 4) + q + 8 * k)
    for layout in (plain, transposed, bytes8):
        assert sorted(layout.indices()) == list(range(layout.size))


def test_fragments_of_one_core():
    """A 16x256b load, a b8 store and a wgmma accumulator tile differ in their strides only: 16 rows by 8 columns each."""
    assert tmem_16x256b(1).shape == stmatrix_b8(1).shape == ((4, 8), (2, 2, 1))
    rows = {f: [idx2crd(i, (pitch, 8)) for i in f.indices()] for f, pitch in ((tmem_16x256b(1), 32), (stmatrix_b8(1), 16))}
    assert len(set(map(tuple, rows.values()))) == 1


# --- tensor memory
@pytest.mark.parametrize("n", [16, 64, 256])
def test_accumulator_maps_fill_their_columns(n):
    """M = 256: row r is lane r % 128 of CTA r / 128.  M = 128: lane row + 64 * (n >= N / 2), column n mod N / 2 (SM100_FACTS)."""
    wide, narrow = pair_m256(n), pair_m128(n)
    for row in range(256):
        for column in range(0, n, 7):
            assert wide(row, column) == row % 128 + 128 * column + CTA * (row // 128)
    for row in range(128):
        for column in range(n):
            half = n // 2
            assert narrow(row, column) == row % 64 + 64 * (column >= half) + 128 * (column % half) + CTA * (row // 64)
    for layout, columns in ((wide, n), (narrow, n // 2)):
        assert {i % CTA for i in layout.indices()} == set(range(128 * columns)) and layout.injective


@pytest.mark.parametrize("block_m", [16, 32, 64, 96, 128, 192])
def test_accumulators_of_the_plan(block_m):
    plan, both = TmemPlan(block_m), accumulators(block_m, 2, block_m)
    assert both.injective
    for buffer in range(2):
        assert both(0, 0, buffer) == 128 * plan.accumulator(buffer)
    assert both.cosize - CTA == 128 * plan.sfa


# --- scale factors
@settings(max_examples=80)
@given(st.integers(1, 64), st.data())
def test_utccp_order(atoms, data):
    order = utccp_order(128 * atoms)
    row = data.draw(st.integers(0, 128 * atoms - 1))
    assert order(row) == utccp_row(row)
    assert right_inverse(order)(order(row)) == row == utccp_row_inverse(order(row))
    assert sorted(order.indices()) == list(range(128 * atoms))


def test_utccp_lands_rows_where_the_mma_reads_them():
    """Source word, by UTCCP's reading order, to lane and column: the atom composed with it is the TMEM place of the row."""
    place = right_inverse(utccp_source())
    for row in range(128):
        lane, column = idx2crd(place(utccp_atom()(row)), (32, 4))
        assert lane + 128 * column == tmem_scales()(row, 0) == row % 32 + 128 * (row // 32)
        assert {tmem_scales()(row, quarter) % 128 // 32 for quarter in range(4)} == {0, 1, 2, 3}
    descriptor = SmemDescriptor(0, 0, 128, 0)
    words = operand_bytes(descriptor, 32, 16, 1, False)[:, ::4].reshape(-1) // 4
    assert words.tolist() == [utccp_source()(i // 4, i % 4) for i in range(128)]


def test_scale_bytes_of_an_atom():
    """SM100_FACTS: byte = (m % 32) * 16 + (m / 32) * 4 + k; CuTe's ((32,4),4):((16,4),1)."""
    assert str(scale_bytes(128)) == "(((32,4),1),4):(((16,4),0),1)"
    assert all(scale_bytes(128)(m, k) == m % 32 * 16 + m // 32 * 4 + k for m in range(128) for k in range(4))


@settings(max_examples=80)
@given(st.sampled_from((128, 256)), st.integers(1, 20), st.integers(1, 8), st.integers(0, 5), st.data())
def test_pool_scales(sf_block_m, blocks, words, more, data):
    layout = pool_scales(blocks, sf_block_m, words, (blocks + more) * sf_block_m)
    row, block, word = (data.draw(st.integers(0, n - 1)) for n in (sf_block_m, blocks, words))
    assert layout(row, block, word) == word * (blocks + more) * sf_block_m + pool_sf_row(block, row, sf_block_m)
    assert layout.injective


@pytest.mark.parametrize(("experts", "rows", "k"), [(1, 128, 128), (3, 256, 256), (2, 384, 512)])
def test_weight_scale_transform(experts, rows, k):
    """`quant.utccp_scale_order` puts the word of (row, word of K, expert) where the layout says."""
    source = torch.arange(experts * rows * k // SCALE_BLOCK, dtype=torch.int32).remainder(251).to(torch.uint8).reshape(experts, rows, -1)
    words = source.view(torch.int32)
    result = utccp_scale_order(source).reshape(-1)
    layout = weight_scales(rows, k // CHANNELS_PER_WORD, experts)
    assert layout.size == result.numel() and layout.injective
    for index in range(layout.size):
        row, word, expert = index % rows, index // rows % (k // CHANNELS_PER_WORD), index // rows // (k // CHANNELS_PER_WORD)
        assert result[layout(index)] == words[expert, row, word]


@settings(max_examples=80)
@given(st.integers(1, 128))
def test_gate_up_rows(runs):
    """`quant.interleave_gate_up` moves row i of [gate | up] to layout(i)."""
    rows = torch.arange(16 * runs)
    layout = gate_up_rows(8 * runs)
    indices = torch.tensor(layout.indices())
    assert torch.equal(interleave_gate_up(rows, dim=0)[indices], rows)
    assert torch.equal(interleave_gate_up(rows, dim=0, inverse=True), rows[indices])
    assert str(layout) == f"(8,({runs},2)):(1,({16 if runs > 1 else 0},8))" and layout.injective


# --- operand tiles
@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("rows", [8, 64, 128])
def test_operand_tile_is_what_the_descriptor_names(rows, span):
    """Byte (row, k) as the tensor core addresses it, for every MMA of the row, at several aligned starts."""
    tile = operand_tile(rows, span)
    assert sorted(tile.indices()) == list(range(rows * span))
    for start in (0, 8 * span, 40 * span):
        for step in range(span // 32):
            theirs = operand_bytes(SmemDescriptor(start + 32 * step, 0, 8 * span, span), rows, 32, 1, False)
            part = k_step(tile, step)
            mine = np.array([[start + part(row, k) for k in range(32)] for row in range(rows)])
            assert np.array_equal(mine, theirs)
            assert all(part(row, k) == tile(row, 32 * step + k) for row in range(rows) for k in (0, 15, 16, 31))


@pytest.mark.parametrize("span", [32, 64, 128])
def test_operand_tile_is_what_tma_writes(span):
    tile = operand_tile(64, span)
    box = Swizzle(span)(np.arange(64 * span)).reshape(64, span)
    assert all(tile(row, byte) == box[row, byte] for row in range(64) for byte in range(span))


@pytest.mark.parametrize("span", [32, 64, 128])
def test_swizzle_atoms(span):
    atom = swizzle_atom(span)
    assert atom.size == atom.cosize == 8 * span


def test_unpacked_fp4_is_what_tma_writes():
    """128 values of a row: nibble i of the packed row comes to nibble layout(i) of 128 bytes."""
    tensor_map = TensorMap(0, TensorMapDtype.FP4_UNPACKED, (128, 1), (64,), (128, 1), 128)
    values = np.arange(128) * 7 % 16
    packed = (values[0::2] | values[1::2] << 4).astype(np.uint8)
    row = to_shared_format(tensor_map, packed.reshape(1, 64))
    nibbles = np.stack([row & 15, row >> 4], axis=1).reshape(-1)
    layout = unpacked_fp4_row()
    assert [int(nibbles[layout(i)]) for i in range(128)] == values.tolist()


# --- combine
@pytest.mark.parametrize("chunk", [256, 768, 1792, 2048])
def test_combine_channels(chunk):
    """A bijection of the chunk; a warp's 16-byte accesses are contiguous."""
    layout = combine_channels(chunk)
    assert sorted(layout.indices()) == list(range(chunk))
    lanes, (elements, vectors) = layout[0], layout[1].modes
    in_memory_order = Layout(
        (elements.shape, lanes.shape, vectors.shape), (elements.stride, lanes.stride, vectors.stride if vectors.size > 1 else 0)
    )
    assert coalesce(in_memory_order) == Layout(chunk, 1)
