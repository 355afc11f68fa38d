"""Packed tiles of E2M1 weights, read back byte by byte as a kernel's thread reads them; what is refused, and that nothing is rounded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import quant
from megamoe_dsl.arch import SM90
from megamoe_dsl.hardware.packed_tile import CODE_BYTES, HIGHEST, RECORD_BYTES, SHIFTS, TILE_BYTES
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant.packed_tiles import MatrixShape, resize, resized, split_exponents

torch.set_num_threads(1)
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ROWS, K = 256, 256


def draw(seed: int, *shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def weights(seed: int, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of one expert, scales from `low` to `high`."""
    return draw(seed, 1, ROWS, K // 2), draw(seed + 1, 1, ROWS, K // 32, low=low, high=high + 1)


def word(data: bytes) -> int:
    return int.from_bytes(data, "little")


def value_of(tile: bytes, row: int, k: int) -> float:
    """One weight as hardware/packed_tile.py has it: what `prmt` and the masks of device/e2m1.py do, in words."""
    group, block, warp, half, g = row // 128, row // 64 % 2, row // 16 % 4, row // 8 % 2, row % 8
    step, run, thread, j = k // 32, k // 16 % 2, k // 4 % 4, k % 4
    unit, second = 4 * g + (thread ^ g // 2), run != half
    code = ((((group * 2 + block) * 2 + step // 2) * 4 + warp) * 32 + unit) * 16 + (step % 2 * 2 + half) * 4
    packed = word(tile[code : code + 4])
    magnitude = packed >> 4 * (4 * second + j) & 7
    negative = packed >> (8 * j + (3 if second else 7)) & 1
    record = CODE_BYTES + ((group * 4 + warp) * 8 + g) * RECORD_BYTES
    shifts, tile_scale, exponents = (word(tile[record + at : record + at + 4]) for at in (4 * block, 8, 12))
    rotated = (shifts >> 4 | shifts << 28) if half else shifts
    shift = (rotated >> 8 * step & 0x78) // 8
    assert shift < SHIFTS
    e4m3 = MAGNITUDES[magnitude] * 2.0 ** (HIGHEST - shift)
    assert torch.tensor(e4m3).to(torch.float8_e4m3fn).item() == e4m3, "no E4M3 number"
    scale = 2.0 ** ((tile_scale >> 23) - 127) * 2.0 ** ((exponents >> 8 * (2 * block + half) & 255) - 127)
    return (-e4m3 if negative else e4m3) * scale


@given(st.integers(0, 1000), st.integers(0, SHIFTS - 1), st.integers(20, 230))
@settings(max_examples=20, deadline=None)
def test_a_thread_reads_the_published_numbers(seed, spread, low):
    packed, sf = weights(seed, low, low + spread)
    tiles = quant.pack_tiles(packed, sf)
    assert tiles.shape == (1, 1, K // 128, TILE_BYTES)
    published = quant.dequantize_e2m1(packed, sf)[0]
    chosen = torch.Generator().manual_seed(seed)
    for row, k in zip(*(torch.randint(0, n, (60,), generator=chosen).tolist() for n in (ROWS, K)), strict=True):
        assert value_of(bytes(tiles[0, 0, k // 128].tolist()), row, k % 128) == published[row, k]


@given(st.integers(0, 1000), st.integers(-40, 40), st.integers(-40, 40))
@settings(max_examples=20, deadline=None)
def test_rows_and_blocks_may_have_any_magnitude(seed, rows, blocks):
    """What is within 2^14 after a power of two per row and one per 128 channels comes back to the byte, however large those are."""
    packed, inner = weights(seed, 0, SHIFTS - 1)
    draw_more = torch.Generator().manual_seed(seed)
    row = torch.randint(-abs(rows), abs(rows) + 1, (1, ROWS, 1), generator=draw_more)
    block = torch.randint(-abs(blocks), abs(blocks) + 1, (1, 1, K // 128), generator=draw_more).repeat_interleave(4, dim=2)
    sf = (inner + row + block + 110).to(torch.uint8)
    back, scales = quant.unpack_tiles(quant.pack_tiles(packed, sf))
    assert torch.equal(back, packed) and torch.equal(scales, sf)


def test_zeros_take_any_scale():
    """Blocks of zeros, rows and whole tiles of them, with scales that no number could have beside the others, NaN too."""
    packed, sf = weights(0, 120, 130)
    packed[0, 3] = 0
    packed[0, :, :16] = 0x80  # zeros and minus zeros
    sf[0, 3], sf[0, :, 0] = 0, 255
    sf[0, 5, 0] = 7
    back, scales = quant.unpack_tiles(quant.pack_tiles(packed, sf))
    assert torch.equal(back, packed)
    assert torch.equal(quant.dequantize_e2m1(back, scales), quant.dequantize_e2m1(packed, torch.where(sf == 255, 0, sf)))
    assert quant.pack_tiles(torch.zeros_like(packed), sf).shape == (1, 1, K // 128, TILE_BYTES)


@pytest.mark.parametrize("spread", [SHIFTS, 40, 254])
def test_what_lies_further_apart_is_refused(spread):
    packed, sf = weights(1, 100, 100)
    packed[0, 77] = 0x11
    sf[0, 77, 4:] = torch.tensor([0, spread, 0, 0])
    with pytest.raises(quant.PackedWeightsError, match=rf"fc2\[0\]: row 77, channels 128 to 255: scales 2\^{spread} apart; 1 such blocks"):
        quant.pack_tiles(packed, sf, "fc2")
    with pytest.raises(quant.PackedWeightsError, match=r"fc2\[0\]: row 77, channels 128 to 255"):
        quant.pack_tiles(packed, sf, "fc2", torch.arange(ROWS).flip(0))
    sf[0, 77] = torch.tensor([0, 0, 0, 0, 0, SHIFTS - 1, 0, 0])
    assert torch.equal(quant.unpack_tiles(quant.pack_tiles(packed, sf))[1], sf)


def test_scales_that_no_powers_of_two_part_are_refused():
    """Each row and 128 of K is narrow; rows 0 and 1 cannot both have both blocks beside each other."""
    packed, sf = torch.full((1, ROWS, K // 2), 0x11, dtype=torch.uint8), torch.full((1, ROWS, K // 32), 120, dtype=torch.uint8)
    sf[0, 0, :4], sf[0, 1, 4:] = 100, 100
    with pytest.raises(quant.PackedWeightsError, match="none of its rows' and blocks' powers of two places it beside the others"):
        quant.pack_tiles(packed, sf)
    sf[0, 1, 4:], sf[0, 1:, :4] = 120, 100
    assert torch.equal(quant.unpack_tiles(quant.pack_tiles(packed, sf))[1], sf)


def test_nan_and_numbers_beyond_fp32_are_refused():
    packed, sf = weights(2, 120, 121)
    sf[0, 9, 2] = 255
    packed[0, 9] = 0x22
    with pytest.raises(quant.PackedWeightsError, match=r"row 9, block 2 of 32: scale 255, which is NaN"):
        quant.pack_tiles(packed, sf)
    backwards = torch.arange(ROWS).flip(0)
    with pytest.raises(quant.PackedWeightsError, match=r"row 9, block 2 of 32: scale 255, which is NaN"):
        quant.pack_tiles(packed, sf, rows=backwards)
    with pytest.raises(quant.PackedWeightsError, match=r"scales from 2\^-127 to"):
        quant.pack_tiles(packed, torch.zeros_like(sf))
    with pytest.raises(ValueError, match=r"w.shape = \(1, 128, 256\): must be multiples of 256 and 128"):
        quant.pack_tiles(packed[:, :128], sf[:, :128])


def test_a_layers_weights_and_back():
    problem = Problem(256, 256, 4, 1, recipe="fp8xmxfp4", num_ranks=2)
    given = quant.ExpertWeights(
        draw(0, 2, 512, 128), draw(1, 2, 512, 8, low=110, high=124), draw(2, 2, 256, 128), draw(3, 2, 256, 8, high=10)
    )
    given.fc2_sf.add_(115)
    made = quant.transform_weights(problem, SM90, given)
    assert made.fc1.shape == (2, 2, 2, TILE_BYTES) and made.fc1_sf.numel() == 0
    assert made.fc1.nbytes + made.fc2.nbytes == given.fc1.nbytes + given.fc2.nbytes + given.fc1_sf.nbytes + given.fc2_sf.nbytes
    back = quant.inverse_transform_weights(problem, SM90, made)
    for name in ("fc1", "fc1_sf", "fc2", "fc2_sf"):
        assert torch.equal(getattr(back, name), getattr(given, name)), name
    ordered = quant.order_rows_sm90(given.fc1)
    plain = quant.pack_tiles(ordered, quant.order_rows_sm90(given.fc1_sf))
    assert torch.equal(made.fc1, plain)


def test_large_weights_are_large_numbers():
    """A row's largest scale has shift 0, so that few weights are subnormal, and a power of two per block only where rows need it."""
    lowest = torch.tensor([[[0, -3], [5, 1]]], dtype=torch.int32)
    row, block, bad = split_exponents(lowest, lowest + 14)
    assert row.tolist() == [[0, 5]] and block.tolist() == [[0, 0]] and not bad.any()
    row, block, bad = split_exponents(lowest := torch.tensor([[[0, -20]]], dtype=torch.int32), lowest + 14)
    assert row.tolist() == [[0]] and block.tolist() == [[0, -6]] and not bad.any()


@pytest.mark.parametrize(("spread", "alone"), [(11, False), (12, True)])
def test_rows_have_powers_of_their_own_where_numbers_would_be_subnormal(spread, alone):
    packed, sf = torch.full((1, ROWS, K // 2), 0x11, dtype=torch.uint8), torch.full((1, ROWS, K // 32), 100, dtype=torch.uint8)
    sf[0, 7] = 100 + spread
    exponents = quant.pack_tiles(packed, sf)[..., CODE_BYTES:].unflatten(-1, (-1, RECORD_BYTES))[..., 12:16]
    assert bool((exponents != 127).any()) == alone


def test_each_part_of_a_matrix_is_cut_or_filled_on_its_own():
    given = torch.tensor([[[1, 2], [3, 4], [5, 6], [7, 8]]], dtype=torch.uint8)
    assert resized(given, 2, 2, 2) is given
    assert resized(given, 2, 1, 1).tolist() == [[[1], [5]]]
    assert resized(given, 2, 3, 3).tolist() == [[[1, 2, 0], [3, 4, 0], [0, 0, 0], [5, 6, 0], [7, 8, 0], [0, 0, 0]]]
    assert resized(given, 1, 5, 1, 9).tolist() == [[[1], [3], [5], [7], [9]]]


@pytest.mark.parametrize(("recipe", "one"), [("fp8xfp8", 0.0), ("fp8xmxfp4", 127), ("nvfp4xnvfp4", 0.0)])
def test_what_a_layer_is_filled_with(recipe, one):
    """Weights and biases with zeros, scales in UE8M0 with 1, others with zeros; what was there stays."""
    problem = Problem(128, 128, 1, 1, recipe=recipe, biases=True)
    given = {name: torch.ones(shape).to(dtype) for name, (dtype, shape) in quant.weights.checkpoint_layout(problem).items()}
    shapes = {"fc1": MatrixShape(2, 256, 256), "fc2": MatrixShape(1, 256, 256)}
    found, form = resize(problem, given, shapes), problem.formats.weights
    for name, (parts, rows, k) in shapes.items():
        for end, height, width, fill in (("", rows, form.row_bytes(k), 0), ("_sf", rows // form.rows, k // form.channels, one)):
            here, before = found[name + end].float(), given[name + end]
            assert here.shape == (1, parts * height, width)
            top = before.shape[1] // parts
            for first in range(0, parts * height, height):
                assert (here[0, first : first + top, : before.shape[2]] == 1).all(), name + end
                assert (here[0, first + top : first + height] == fill).all() and (here[0, :, before.shape[2] :] == fill).all(), name + end
        assert found[f"{name}_bias"].unflatten(1, (parts, rows))[0, :, 127:129].tolist() == [[1.0, 0.0]] * parts
