"""Wavefronts of the kernel's shared-memory accesses from registers, counted from their addresses; and what they would be unswizzled."""

import pytest
from hardware_layouts import fewest_wavefronts

from megamoe_dsl.blocks.sm100.epilogue_tile import fc1_store_address, read_address, read_row, write_address
from megamoe_dsl.hardware.fragments import wavefronts
from megamoe_dsl.kernels.moe.layouts.smem_plan import vector_address

LANES = range(32)
WARPS = range(4)


@pytest.mark.parametrize(
    ("addresses", "width", "expected"),
    [
        (range(0, 128, 4), 4, 1),
        ([0] * 32, 4, 1),
        (range(0, 32 * 128, 128), 4, 32),
        (range(0, 256, 8), 8, 2),
        (range(0, 512, 16), 16, 4),
        (range(0, 8 * 128, 128), 16, 8),
        ([0, 4, 128, 132], 4, 2),
    ],
)
def test_wavefronts(addresses, width, expected):
    assert wavefronts(list(addresses), width) == expected


def test_unaligned_addresses():
    with pytest.raises(ValueError, match="an address is not a multiple of 16"):
        wavefronts([8], 16)


def tiles(addresses):
    """A matrix instruction: one request per eight rows of 16 bytes."""
    return [addresses[i : i + 8] for i in range(0, len(addresses), 8)]


@pytest.mark.parametrize("tokens", [16, 32])
@pytest.mark.parametrize("warp", WARPS)
def test_fc1_store(warp, tokens):
    """stmatrix b8: eight tokens, 16 channels each."""
    rows = [fc1_store_address(0, token, warp) for token in range(tokens)]
    assert [wavefronts(tile, 16) for tile in tiles(rows)] == [1] * (tokens // 8)
    assert [wavefronts([64 * token + 16 * warp for token in tile], 16) for tile in tiles(range(tokens))] == [4] * (tokens // 8)


@pytest.mark.parametrize("tokens", [16, 32])
@pytest.mark.parametrize("warp", WARPS)
def test_fc2_store(warp, tokens):
    """stmatrix b16: eight tokens, 8 channels each."""
    rows = [write_address(0, warp, lane, tokens) for lane in LANES]
    assert [wavefronts(tile, 16) for tile in tiles(rows)] == [1] * 4
    assert wavefronts([256 * token + 64 * warp for token in range(8)], 16) == 8


@pytest.mark.parametrize("tokens", [16, 32])
@pytest.mark.parametrize("warp", WARPS)
def test_fc2_load(warp, tokens):
    """16 bytes a lane."""
    addresses = [read_address(0, read_row(warp, lane), lane, tokens) for lane in LANES]
    assert wavefronts(addresses, 16) == fewest_wavefronts(addresses, 16) == 4


@pytest.mark.parametrize("vector", range(8))
def test_combine_vectors(vector):
    addresses = [vector_address(0, lane, vector) for lane in LANES]
    assert wavefronts(addresses, 16) == fewest_wavefronts(addresses, 16) == 4


@pytest.mark.parametrize("group", range(4))
def test_fc1_maxima(group):
    """Written by four lanes, 8 bytes each; read by all, eight lanes at the same address: one wavefront each time."""
    read = [(lane & 3) * 8 + group * 32 for lane in LANES]
    assert wavefronts(read[:4], 8) == 1
    assert wavefronts(read[:16], 8) == wavefronts(read[16:], 8) == 1
