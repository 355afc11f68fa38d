"""Index expressions of the device code against their algebraic objects, on host integers: all coordinates, or samples of the large ones."""

import os

import numpy as np
import pytest
from gate_up import gate_up_rows
from hardware_layouts import (
    accumulators,
    combine_channels,
    fc1_tile,
    k_step,
    load_columns,
    operand_tile,
    packed_tile,
    pool_scales,
    result_tile,
    scale_bytes,
    stmatrix_b8,
    stmatrix_b16,
    weight_scales,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from layout_algebra import right_inverse
from megamoe_dsl.blocks.sm100.epilogue_tile import (
    FC1_CHANNELS,
    HALF_BYTES,
    channel_bytes,
    fc1_scale,
    fc1_store_address,
    packed_store_address,
    packed_token,
    read_address,
    read_row,
    result_bytes,
    write_address,
)
from megamoe_dsl.hardware.cta_pair import BLOCK_N, CLUSTER, PAIR_MMAS, ScaledMma
from megamoe_dsl.hardware.operand_tile import (
    BYTE_VALUES,
    MMA_K_BYTES,
    PLAIN_VALUES,
    SF_ATOM_BYTES,
    SF_ROW_BYTES,
    packed_values,
    pool_sf_row,
)
from megamoe_dsl.kernels.moe.layouts.smem_plan import LANES, VECTOR, CombinePlan, CombineRow, vector_address
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.layouts.layout import Layout, idx2crd
from megamoe_dsl.recipe import BF16, E2M1, E4M3
from megamoe_dsl.sim.descriptors import SmemDescriptor, operand_bytes
from megamoe_dsl.testing import configs_sm100

SCALED = configs_sm100().filter(lambda config: config.problem.formats.scaled)

WARPS, THREADS = range(4), range(32)
PASSES = (16, 32)  # store_block_m


@pytest.fixture(scope="module")
def tcgen05():
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    from megamoe_dsl.device import tcgen05

    return tcgen05


# --- mma.py, tcgen05.py
def word(low, high):
    return high << 32 | low


OPERANDS = {
    "bytes": (BYTE_VALUES, PAIR_MMAS["ue8m0"]["e2m1", "e4m3"]),
    "packed 128": (packed_values(128), PAIR_MMAS["ue8m0"]["e2m1", "e2m1"]),
    "packed 256": (packed_values(256), PAIR_MMAS["ue8m0"]["e2m1", "e2m1"]),
    "bf16": (PLAIN_VALUES, PAIR_MMAS[None]["bf16", "bf16"]),
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("rows", [8, 16, 48, 96, 128])
def test_operand_descriptors_name_the_operand_tile(tcgen05, rows, name):
    """OPERAND_HIGH, and K_STEP per MMA: each of the descriptors names 32 bytes of K of every row of the tile."""
    k_block, kind = OPERANDS[name]
    tile, high = operand_tile(rows, k_block.row_bytes), tcgen05.OPERAND_HIGH[k_block.row_bytes]
    steps = k_block.mmas
    assert steps == (k_block.words * len(kind.scale_ids) if isinstance(kind, ScaledMma) else 4)
    assert steps * kind.channels == k_block.channels and steps * MMA_K_BYTES == k_block.row_bytes
    for start in (0, 1024, 5 * 16384):
        for step in range(steps):
            low = (start >> 4) + step * tcgen05.K_STEP
            theirs = operand_bytes(SmemDescriptor.decode_sm100(word(low, high)), rows, 32, 1, False)
            part = k_step(tile, step)
            assert theirs.tolist() == [[start + part(row, k) for k in range(32)] for row in range(rows)]


@pytest.mark.parametrize("rows", [128, 256])
def test_scale_descriptors_name_the_atoms(tcgen05, rows):
    """SCALE_HIGH, 512 bytes an atom: lane l of column c gets the four scales of row 32 c + l."""
    scales = scale_bytes(rows)
    for atom in range(rows // 128):
        low = (SF_ATOM_BYTES >> 4) * atom
        source = operand_bytes(SmemDescriptor.decode_sm100(word(low, tcgen05.SCALE_HIGH)), 32, 16, 1, False)
        for lane in THREADS:
            for column in range(4):
                for k in range(4):
                    assert source[lane, 4 * column + k] == scales(128 * atom + 32 * column + lane, k)


@pytest.mark.parametrize("block_m", [t.block_m for t in TIERS])
def test_accumulator_columns(block_m):
    """mma.py, epilogue.py: buffer i starts at column i * block_m; a pass starts `first` columns further."""
    both = accumulators(block_m, 2, block_m)
    assert all(both(0, first, index) == 128 * (index * block_m + first) for index in range(2) for first in range(0, block_m, 16))


# --- load.py
@settings(max_examples=80)
@given(SCALED, st.data())
def test_loader_coordinates(config, data):
    """Scale boxes start at the words that hold the tile's scales; the two token boxes are the halves of what the MMA covers."""
    per_stage, sf_block_m, experts = config.k_block.words, config.sf_block_m, config.problem.experts_per_rank
    words = config.fc1_k_blocks * per_stage
    assert words * (64 if config.problem.recipe == "nvfp4xnvfp4" else 128) == config.problem.hidden
    block, k = data.draw(st.integers(0, 100)), data.draw(st.integers(0, config.fc1_k_blocks - 1)) * per_stage
    pitch = 101 * sf_block_m
    assert pool_scales(101, sf_block_m, words, pitch)(0, block, k) == k * pitch + block * sf_block_m
    rows = 2 * config.problem.intermediate
    expert, n_block, cta = (
        data.draw(st.integers(0, experts - 1)),
        data.draw(st.integers(0, config.fc1_n_blocks - 1)),
        data.draw(st.integers(0, 1)),
    )
    channel, sf_k = (n_block * CLUSTER + cta) * BLOCK_N, expert * config.fc1_k_blocks * per_stage
    assert weight_scales(rows, words, experts)(channel, (k, expert)) == (sf_k + k) * rows + channel
    valid = data.draw(st.integers(1, config.block_m))
    mma_n = (valid + 15) & -16
    tile = Layout((mma_n // 2, 2))
    assert all(tile(row, half) == half * (mma_n >> 1) + row for half in range(2) for row in range(mma_n // 2))
    assert mma_n // 2 <= config.block_m // 2 and (mma_n // 2) % 8 == 0


# --- pool.py
@settings(max_examples=80)
@given(st.integers(0, 500), st.integers(0, 191), st.integers(0, 55), st.sampled_from((128, 256)))
def test_pulled_scales(block, row, k, sf_block_m):
    row %= sf_block_m
    layout = pool_scales(501, sf_block_m, 56, 501 * sf_block_m)
    assert layout(row, block, k) == k * 501 * sf_block_m + pool_sf_row(block, row, sf_block_m)


# --- kernels/moe/sm100/epilogue.py, Linear1
def accumulator_value(warp, thread, group, value, groups):
    """(accumulator row of the CTA, token of the pass) of a value that `load_columns` returns."""
    lane, token = idx2crd(load_columns(groups)(thread, value + 8 * group), (32, 8 * groups))
    return 32 * warp + lane, token


@pytest.mark.parametrize("tokens", PASSES)
def test_fc1_pairs_gate_with_up(tokens):
    """`activate(v[0:2], v[2:4])` and `(v[4:6], v[6:8])`: gate and up of one channel and token; outputs are channels t / 4 and 8 + t / 4."""
    to_checkpoint = right_inverse(gate_up_rows(FC1_CHANNELS))
    groups = tokens // 8
    for warp in WARPS:
        for thread in THREADS:
            for group in range(groups):
                for s in range(2):
                    for q in range(2):
                        gate, up = (accumulator_value(warp, thread, group, 4 * s + 2 * h + q, groups) for h in range(2))
                        (channel, half), (up_channel, up_half) = (idx2crd(to_checkpoint(row), (FC1_CHANNELS, 2)) for row, _ in (gate, up))
                        assert (half, up_half) == (0, 1) and channel == up_channel == 16 * warp + 8 * s + thread // 4
                        assert gate[1] == up[1] == 8 * group + 2 * (thread % 4) + q  # `pair`: the token of weights, maxima and scales


@pytest.mark.parametrize("tokens", PASSES)
def test_fc1_bytes_reach_their_place_in_the_tile(tokens):
    """Byte 2 s + q of word g, through stmatrix with the addresses that the lanes give, is fc1_tile(token, channel)."""
    tile, groups = fc1_tile(tokens), tokens // 8
    position = stmatrix_b8(groups)
    base = 4096
    seen = set()
    for warp in WARPS:
        addresses = [fc1_store_address(base, lane & (tokens - 1), warp) for lane in THREADS]
        for thread in THREADS:
            for group in range(groups):
                for byte in range(4):
                    s, q = byte >> 1, byte & 1
                    offset, supplier = idx2crd(position(thread, byte + 4 * group), (16, 8 * groups))
                    address = addresses[supplier] + offset
                    token, channel = 8 * group + 2 * (thread % 4) + q, 16 * warp + 8 * s + thread // 4
                    assert address == base + tile(token, channel)
                    seen.add(address)
    assert seen == set(range(base, base + tokens * FC1_CHANNELS))


@settings(max_examples=80)
@given(SCALED, st.data())
def test_fc1_scale_addresses(config, data):
    """fc2_sf word and byte, and 16 bytes from a token to the next, inside a pass: scale n of a row scales channels 32 n to 32 n + 31."""
    block, words = data.draw(st.integers(0, 100)), config.fc2_k_blocks * config.k_block.words
    n_block, warp = data.draw(st.integers(0, 2 * config.fc1_n_blocks - 1)), data.draw(st.integers(0, 3))
    first = config.store_block_m * data.draw(st.integers(0, config.block_m // config.store_block_m - 1))
    pair, group, q = (
        data.draw(st.integers(0, 3)) * 2,
        data.draw(st.integers(0, config.store_block_m // 8 - 1)),
        data.draw(st.integers(0, 1)),
    )
    scale = fc1_scale(n_block, warp)
    assert scale == (n_block * FC1_CHANNELS + 16 * warp) // 32 < 4 * words
    pitch = 101 * config.sf_block_m
    address = (
        ((scale >> 2) * pitch + pool_sf_row(block, first + pair, config.sf_block_m)) * 4 + (scale & 3) + (8 * group + q) * SF_ROW_BYTES
    )
    layout = pool_scales(101, config.sf_block_m, words, pitch)
    assert address == 4 * layout(first + pair + 8 * group + q, block, scale // 4) + scale % 4


# --- blocks/sm100/results.py
@pytest.mark.parametrize("tokens", PASSES)
def test_fc2_values_reach_their_place_in_the_tile(tokens):
    """v[2 k], v[2 k + 1] of group g, through stmatrix.trans at `write + g * 8 * HALF`, is result_tile(token, channel)."""
    tile, groups, base = result_tile(tokens), tokens // 8, 8192
    position = stmatrix_b16(4, transposed=True)
    seen = set()
    for warp in WARPS:
        addresses = [write_address(base, warp, lane, tokens) for lane in THREADS]
        for thread in THREADS:
            for group in range(groups):
                for value in range(8):
                    element, supplier = idx2crd(position(thread, value), (8, 32))
                    address = addresses[supplier] + group * (8 * HALF_BYTES) + 2 * element
                    channel, token = accumulator_value(warp, thread, group, value, groups)
                    assert address == base + tile(token, channel)
                    seen.add(address)
    assert seen == set(range(base, base + tokens * BLOCK_N * 2, 2))


@pytest.mark.parametrize("tokens", PASSES)
def test_fc2_reads_whole_rows(tokens):
    """`read + step * HALF`: 16 bytes are channels 8 (lane % 16).. of token own_row + step; all lanes and steps cover the tile once."""
    tile, base = result_tile(tokens), 8192
    seen = set()
    for warp in WARPS:
        for lane in THREADS:
            row = read_row(warp, lane)
            address = read_address(base, row, lane, tokens)
            for step in range(0, tokens, 8):
                for element in range(8):
                    place = address + step * HALF_BYTES + 2 * element
                    assert place == base + tile(row + step, 8 * (lane & 15) + element)
                    seen.add(place)
    assert seen == set(range(base, base + tokens * BLOCK_N * 2, 2))


def test_packed_rows_fill_the_tile():
    """Every lane's 8 bytes are the warp's 16 channels of its token: packed_tile(token, 8 * warp), together the whole tile."""
    tile, base = packed_tile(32), 4096
    seen = set()
    for warp in WARPS:
        assert sorted(packed_token(lane) for lane in THREADS) == list(range(32))
        for lane in THREADS:
            place = packed_store_address(base, packed_token(lane), warp)
            assert [place + i for i in range(8)] == [base + tile(packed_token(lane), 8 * warp + i) for i in range(8)]
            seen.update(range(place, place + 8))
    assert seen == set(range(base, base + tile.size))


def test_nibbles_reach_the_row_of_their_token(monkeypatch):
    """device/e2m1.py with 32 lanes as a numpy array: lane l ends with all channels of `packed_token(l)`, lowest nibble first."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    from megamoe_dsl.device import e2m1

    lanes = np.arange(32, dtype=np.uint32)
    monkeypatch.setattr(e2m1, "Uint32", np.uint32)
    monkeypatch.setattr(e2m1, "select", np.where)
    monkeypatch.setattr(e2m1, "shuffle_xor", lambda value, mask: value[lanes ^ mask])
    monkeypatch.setattr(e2m1, "emit_to", lambda kind, text, a, b, selector: permute(a, b, selector))
    code = np.random.default_rng(0).integers(0, 16, (32, 16), dtype=np.uint32)  # token, channel
    words = np.zeros((2, 32), dtype=np.uint32)
    for group in range(4):
        for q in range(2):
            row, token = lanes >> 2, 8 * group + 2 * (lanes & 3) + q
            byte = code[token, row] | code[token, row + 8] << np.uint32(4)
            words[group >> 1] |= byte << np.uint32(8 * (2 * (group & 1) + q))
    low, high = e2m1.gather_rows(*words, lanes)
    for lane in THREADS:
        nibbles = [int(word[lane]) >> 4 * i & 15 for word in (low, high) for i in range(8)]
        assert nibbles == code[packed_token(lane)].tolist()


def permute(a, b, selector):
    """prmt.b32 of every lane."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    picked = [both >> np.uint64(8) * (selector >> np.uint32(4 * i) & np.uint32(7)).astype(np.uint64) & np.uint64(255) for i in range(4)]
    return sum(byte << np.uint64(8 * i) for i, byte in enumerate(picked)).astype(np.uint32)


def test_fc2_channel_bytes():
    """The row's bytes of the CTA's channels, 16 lanes after one another."""
    channel = Layout((8, 16, 28))
    assert all(channel_bytes(n, lane) == 2 * channel(0, lane & 15, n) for n in range(28) for lane in THREADS)


@settings(max_examples=80)
@given(configs_sm100())
def test_tiles_are_aligned_for_their_swizzles(config):
    """Every buffer that a swizzle acts on starts at a multiple of its period."""
    plan = config.smem
    cd = [plan.region.offset("cd", group) for group in range(config.epilogue_warpgroups)]
    assert all(start % 1024 == 0 for start in cd)
    # BF16 outputs take half of a tile of results.
    fc1 = {E2M1: packed_tile, E4M3: fc1_tile, BF16: result_tile}[config.problem.formats.hidden.element](config.store_block_m)
    assert config.fc1_tile_bytes % fc1.outer.alignment == 0
    assert (config.store_block_m * HALF_BYTES) % result_tile(config.store_block_m).outer.alignment == 0
    assert config.fc1_tile_bytes == fc1.size and result_bytes(config.store_block_m) == 2 * result_tile(config.store_block_m).size
    span = config.k_block.row_bytes
    for name in ("weights", "tokens"):
        assert all(plan.region.offset(name, stage) % operand_tile(8, span).outer.alignment == 0 for stage in range(config.num_stages))
    assert config.pair_stage.weight_bytes == operand_tile(BLOCK_N, span).size
    assert config.pair_stage.token_bytes >= operand_tile(max(8, config.block_m // 2), span).size
    assert operand_tile(8, span).size == 8 * span == 8 * config.block_k * {"mxf8f6f4": 1, "f16": 2}.get(config.mma.name, 0.5)


# --- combine.py
@settings(max_examples=80)
@given(st.integers(1, 40).map(lambda n: CombinePlan(CombineRow(256 * n), 6, 8).chunk), st.integers(0, 1 << 16), st.data())
def test_combine_vectors(chunk, slot, data):
    """Sum j * 8 + 2 i + h of a lane is half h of word i of vector j."""
    channels = combine_channels(chunk)
    lane, vector = data.draw(st.integers(0, LANES - 1)), data.draw(st.integers(0, chunk // (VECTOR * LANES) - 1))
    for i in range(4):
        for h in range(2):
            assert vector_address(slot, lane, vector) + 4 * i + 2 * h == slot + 2 * channels(lane, vector * VECTOR + 2 * i + h)
            assert channels(lane, (2 * i + h, vector)) == 256 * vector + 8 * lane + 2 * i + h


def test_expressions_are_the_same_traced():
    """Int32 arithmetic agrees with the host's."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    from cutlass import Int32

    for warp in WARPS:
        for lane in THREADS:
            w, x, base = Int32(warp), Int32(lane), Int32(4096)
            row = read_row(warp, lane)
            assert int(fc1_store_address(base, x, w)) == fc1_store_address(4096, lane, warp)
            assert int(packed_store_address(base, packed_token(x), w)) == packed_store_address(4096, packed_token(lane), warp)
            assert int(write_address(base, w, x, 32)) == write_address(4096, warp, lane, 32)
            assert int(read_row(w, x)) == row
            assert int(read_address(base, Int32(row), x, 32)) == read_address(4096, row, lane, 32)
            assert int(vector_address(base, x, 3)) == vector_address(4096, lane, 3)
