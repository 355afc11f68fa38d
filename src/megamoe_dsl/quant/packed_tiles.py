"""E2M1 weights as the SM90 kernel reads them: 4 bits a value from memory to the registers, exact, in tiles of 256 rows by 128 of K.

The tensor core multiplies E4M3, and scales are promoted once per 128 of K.  So the UE8M0 scales per 32 are taken apart, exactly, into a
power of two per row of a tile, one per tile and block of 128 of K, and a shift of 0 to 14 per 32 that goes into the E4M3 numbers: an E2M1
value times 2^(6 - shift) is one (`hardware.packed_tile`).

Where the scales of a tile's 256 rows are within 2^11 of one another in every 128 of K, as published ones are, its rows have no power of
their own, and no E4M3 number is subnormal.  Else `split_exponents` finds powers, and refuses a matrix only when there are none.

Weights are filled up to whole tiles with zeros, in the memory of one rank, and cut back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from megamoe_dsl.hardware.operand_tile import ROW_BYTES
from megamoe_dsl.hardware.packed_tile import CODE_BYTES, HIGHEST, RECORD_BYTES, SHIFTS, TILE_BYTES, TILE_K, TILE_ROWS, unit_of
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant.formats import SCALE_BLOCK, pack_e2m1, unpack_e2m1
from megamoe_dsl.recipe import UE8M0

_BIAS = 127
_SCALES = TILE_K // SCALE_BLOCK
_FREE = 1 << 14  # bound of a block of zeros
_LOWEST, _HIGHEST = -126, 127  # of a power of two that is a normal FP32 number
_MAGNITUDE, _SIGN = 7, 8
_NAN = 255
_SUBNORMAL_SHIFTS = 3  # the largest, that make some E4M3 numbers subnormal


class PackedWeightsError(ValueError):
    """SM90 kernels cannot apply some scales exactly; the message names the matrix, expert, row and block, and counts such blocks."""


def pack_tiles(packed: torch.Tensor, sf: torch.Tensor, name: str = "w", rows: torch.Tensor | None = None) -> torch.Tensor:
    """Tiles of the weights of some experts: uint8 [experts, N / 256, K / 128, 17408], each tile as `hardware.packed_tile` says.

    packed  uint8 [experts, N, K / 2], two E2M1 a byte, N a multiple of 256 and K of 128
    sf      uint8 [experts, N, K / 32], UE8M0
    name    of the matrix, in errors
    rows    int64 [N], for each row of the tiles its row in `packed`; None: the same

    Raises `PackedWeightsError` when scales of a tile are too far apart, or out of FP32's range, and `ProblemError` on sizes that are not
    multiples.
    """
    experts, n, k = packed.shape[0], packed.shape[1], 2 * packed.shape[2]
    if n % TILE_ROWS or k % TILE_K:
        raise ProblemError(f"{name}.shape", (experts, n, k), f"multiples of {TILE_ROWS} and {TILE_K}")
    tiles = torch.empty(experts, n // TILE_ROWS, k // TILE_K, TILE_BYTES, dtype=torch.uint8, device=packed.device)
    order = torch.arange(n, device=packed.device) if rows is None else rows.to(packed.device)
    for expert in range(experts):  # one at a time: intermediate tensors are many times larger than the result
        codes, scales = unpack_e2m1(packed[expert][order]), sf[expert][order]
        shifts, row_exponents, block_exponents = _place(codes, scales, f"{name}[{expert}]", order)
        tiles[expert, ..., :CODE_BYTES] = _arrange_codes(codes)
        tiles[expert, ..., CODE_BYTES:] = _arrange_records(shifts, row_exponents, block_exponents)
    return tiles


def unpack_tiles(tiles: torch.Tensor, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of `pack_tiles`: (packed, sf), to the byte but for blocks of 32 zeros, whose scale may be another."""
    experts, n_tiles, k_tiles = tiles.shape[:3]
    n, k, device = n_tiles * TILE_ROWS, k_tiles * TILE_K, tiles.device
    packed = torch.empty(experts, n, k // 2, dtype=torch.uint8, device=device)
    sf = torch.empty(experts, n, k // SCALE_BLOCK, dtype=torch.uint8, device=device)
    order = torch.arange(n, device=device) if rows is None else rows.to(device)
    for expert in range(experts):
        packed[expert, order] = pack_e2m1(_collect_codes(tiles[expert, ..., :CODE_BYTES]))
        sf[expert, order] = _collect_scales(tiles[expert, ..., CODE_BYTES:])
    return packed, sf


def split_exponents(lowest: torch.Tensor, highest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers r per row and b per block with lowest <= r + b <= highest, by relaxation of the difference constraints (Bellman-Ford).

    Takes int32 [tiles, rows, blocks] twice; gives int32 [tiles, rows], int32 [tiles, blocks] and bool [tiles, rows, blocks]: which
    constraints do not hold. Where a solution exists they all hold, and b is 0 if one with b = 0 exists; then r is as small as can be.
    """
    block = torch.zeros_like(lowest[:, 0])
    row = lowest.amax(dim=2)
    for _ in range(lowest.shape[1] + lowest.shape[2]):  # a path has at most so many edges
        # b <= highest - r, and r >= lowest - b.
        lowered = torch.minimum(block, (highest - row[:, :, None]).amin(dim=1))
        raised = torch.maximum(row, (lowest - lowered[:, None, :]).amax(dim=2))
        if torch.equal(lowered, block) and torch.equal(raised, row):
            break
        block, row = lowered, raised
    total = row[:, :, None] + block[:, None, :]
    return row, block, (total < lowest) | (total > highest)


def _place(codes: torch.Tensor, sf: torch.Tensor, name: str, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one matrix: shifts uint8 [N, K / 32]; exponents of rows int32 [N / 256, 256]; of tiles int32 [N / 256, K / 128]."""
    n, scales = sf.shape
    zero = ~(codes & _MAGNITUDE).to(torch.bool).view(n, scales, SCALE_BLOCK).any(dim=2)
    if bool(((sf == _NAN) & ~zero).any()):
        row, block = ((sf == _NAN) & ~zero).nonzero()[0].tolist()
        raise PackedWeightsError(f"{name}: row {int(order[row])}, block {block} of {SCALE_BLOCK}: scale {_NAN}, which is NaN")
    by_tile = (n // TILE_ROWS, TILE_ROWS, scales // _SCALES, _SCALES)
    zero, exponent = zero.view(by_tile), sf.view(by_tile).to(torch.int32) - _BIAS
    # value * 2^exponent = value * 2^(6 - shift) * 2^(row + block)
    highest = torch.where(zero, _FREE, exponent + SHIFTS - 1 - HIGHEST).amin(dim=3)
    lowest = torch.where(zero, -_FREE, exponent - HIGHEST).amax(dim=3)
    row, block, bad = split_exponents(lowest, highest)
    # Rows of one tile that have scales near one another, as published weights do, need no powers of their own.
    common = lowest.amax(dim=1)
    alike = (common[:, None] <= highest - _SUBNORMAL_SHIFTS).flatten(1).all(dim=1)
    row, block = torch.where(alike[:, None], 0, row), torch.where(alike[:, None], common, block)
    if bool(bad.any()):
        alone = lowest > highest  # without the others
        found = alone if bool(alone.any()) else bad
        raise PackedWeightsError(_too_far_apart(name, found, torch.where(zero, -_FREE, exponent), order))
    row, block = (torch.where(one < -_FREE // 2, 0, one) for one in (row, block))  # of zeros
    if bool(((row < _LOWEST) | (row > _HIGHEST)).any()) or bool((block < _LOWEST).any()):
        used = exponent[~zero]
        ends = f"scales from 2^{int(used.min())} to 2^{int(used.max())}"
        raise PackedWeightsError(f"{name}: {ends}; allowed: those whose products with 2^-8 and 2^6 are normal FP32 numbers")
    shift = (row[:, :, None] + block[:, None, :])[..., None] + HIGHEST - exponent
    return shift.clamp(0, SHIFTS - 1).view(n, scales).to(torch.uint8), row, block


def _too_far_apart(name: str, bad: torch.Tensor, exponent: torch.Tensor, order: torch.Tensor) -> str:
    """The message about the block of 128 with the widest spread of scales among `bad`; zeros have an exponent far below all others."""
    spread = exponent.amax(dim=3) - torch.where(exponent == -_FREE, _FREE, exponent).amin(dim=3)
    tile, row, block = torch.where(bad, spread, -_FREE).eq(spread[bad].max()).nonzero()[0].tolist()
    channels = f"channels {block * TILE_K} to {(block + 1) * TILE_K - 1}"
    found = f"{name}: row {int(order[tile * TILE_ROWS + row])}, {channels}: scales 2^{int(spread[tile, row, block])} apart"
    others = (
        "" if int(spread[tile, row, block]) >= SHIFTS else ", and none of its rows' and blocks' powers of two places it beside the others"
    )
    return f"{found}{others}; {int(bad.sum())} such blocks; allowed: within 2^{SHIFTS - 1} of a power of two per row and one per tile"


# --- bytes of a tile.  Of a matrix [N, K]: N is (tile, group 2, block 2, warp 4, of two rows 2, row 8), K (tile, half 2, step 2, run 2,
# thread 4, value 4).


def _arrange_codes(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K] to [N / 256, K / 128, CODE_BYTES]."""
    n, k = codes.shape
    parts = codes.view(n // TILE_ROWS, 2, 2, 4, 2, 8, k // TILE_K, 2, 2, 2, 4, 4)
    # tile, K tile, group, block, half, warp, row, thread, step, of two rows, run, value
    parts = _order(parts.permute(0, 6, 1, 2, 7, 3, 5, 10, 8, 4, 9, 11))
    pairs, signs = (parts & _MAGNITUDE).unflatten(-1, (2, 2)), parts & _SIGN
    words = pairs[..., 0] | (pairs[..., 1] << 4)  # run, pair of values: the bytes in order
    words = words.flatten(-2) | signs[..., 1, :] | (signs[..., 0, :] << 4)
    return words.reshape(n // TILE_ROWS, k // TILE_K, CODE_BYTES)


def _order(parts: torch.Tensor) -> torch.Tensor:
    """From the order of threads to that of units, or back. The last six dimensions are row, thread, step, row of two, run, value."""
    lane = torch.arange(32, device=parts.device)
    units = parts.flatten(-6, -5)[..., unit_of(lane), :, :, :, :].unflatten(-5, (8, 4))
    return torch.stack([units[..., 0, :, :], units[..., 1, :, :].flip(-2)], dim=-3)


def _collect_codes(tiles: torch.Tensor) -> torch.Tensor:
    n_tiles, k_tiles = tiles.shape[:2]
    words = tiles.reshape(n_tiles, k_tiles, 2, 2, 2, 4, 8, 4, 2, 2, 4)
    magnitudes = torch.stack([words & _MAGNITUDE, words >> 4 & _MAGNITUDE], dim=-1).flatten(-2).unflatten(-1, (2, 4))
    signs = torch.stack([words >> 4 & _SIGN, words & _SIGN], dim=-2)
    parts = _order(magnitudes | signs).permute(0, 2, 3, 5, 9, 6, 1, 4, 8, 10, 7, 11)
    return parts.reshape(n_tiles * TILE_ROWS, k_tiles * TILE_K)


def _arrange_records(shifts: torch.Tensor, row: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """uint8 [N / 256, K / 128, RECORDS_BYTES]."""
    n_tiles, k_tiles = block.shape
    # tile, K tile, group, warp, row, block, of two rows, step
    parts = shifts.view(n_tiles, 2, 2, 4, 2, 8, k_tiles, _SCALES).permute(0, 6, 1, 3, 5, 2, 4, 7)
    eighths = (parts << 3).contiguous()
    first, second = eighths[..., 0, :], eighths[..., 1, :]
    # Rotated left by 4 as a word: the high nibble of a byte becomes the low one of the next.
    places = first | (second << 4) | (second >> 4).roll(1, dims=-1)
    scale = ((block + _BIAS) << 23).view(n_tiles, k_tiles, 1, 1, 1, 1).contiguous().view(torch.uint8)
    rows = (row + _BIAS).to(torch.uint8).reshape(n_tiles, 1, 2, 2, 4, 2, 8).permute(0, 1, 2, 4, 6, 3, 5).flatten(-2)
    shape = places.shape[:5]
    record = torch.cat([places.flatten(-2), scale.expand(*shape, 4), rows.expand(*shape, 4)], dim=-1)
    return record.reshape(n_tiles, k_tiles, -1)


def _collect_scales(records: torch.Tensor) -> torch.Tensor:
    """UE8M0 bytes [N, K / 32] of a matrix's records."""
    n_tiles, k_tiles = records.shape[:2]
    record = records.reshape(n_tiles, k_tiles, 2, 4, 8, RECORD_BYTES)
    places = record[..., :8].unflatten(-1, (2, 4))
    low, high = places & 0x78, places & 0x87
    second = (high >> 4) | (high.roll(-1, dims=-1) << 4)
    shift = torch.stack([low, second & 0x78], dim=-2).to(torch.int32) >> 3  # block, of two, step
    block = record[..., 8:12].contiguous().view(torch.int32) >> 23  # both biased
    base = record[..., 12:].unflatten(-1, (2, 2)).to(torch.int32) + (block[..., None] - _BIAS)
    exponent = base[..., None] + HIGHEST - shift
    return exponent.permute(0, 2, 5, 3, 6, 4, 1, 7).reshape(n_tiles * TILE_ROWS, k_tiles * _SCALES).to(torch.uint8)


UE8M0_ONE = 127


class MatrixShape(NamedTuple):
    """Shape of a linear's weights: matrices of `rows` x `k` below one another, gate and up of Linear1."""

    parts: int
    rows: int
    k: int


def weight_shapes(problem: Problem) -> dict[str, MatrixShape]:
    return {"fc1": MatrixShape(2, problem.intermediate, problem.hidden), "fc2": MatrixShape(1, problem.hidden, problem.intermediate)}


def tiled_shapes(problem: Problem) -> dict[str, MatrixShape]:
    return {
        name: MatrixShape(
            parts, align(rows, TILE_ROWS // parts), align(k, min(TILE_K, ROW_BYTES * 8 // problem.formats.weights.element_bits))
        )
        for name, (parts, rows, k) in weight_shapes(problem).items()
    }


def resize(problem: Problem, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, MatrixShape]) -> dict[str, torch.Tensor]:
    """Weights, scales and biases in checkpoint order with other shapes: what is there, zeros beyond it, and UE8M0 scales of 1."""
    form, found = problem.formats.weights, dict(tensors)
    for name, (parts, rows, k) in shapes.items():
        scales, bias = f"{name}_sf", f"{name}_bias"
        fill = UE8M0_ONE if form.scale == UE8M0 else 0
        found[name] = resized(tensors[name], parts, rows, form.row_bytes(k) // tensors[name].itemsize)
        found[scales] = resized(tensors[scales], parts, -(-rows // form.rows), form.scales_of(k), fill)
        if bias in tensors:
            found[bias] = resized(tensors[bias].unsqueeze(-1), parts, rows, 1).squeeze(-1)
    return found


def resized(values: torch.Tensor, parts: int, rows: int, columns: int, fill: int = 0) -> torch.Tensor:
    """[experts, parts * n, m] as [experts, parts * rows, columns]: of each part its first rows and columns, and `fill` where it has none.
    The tensor itself where it has that shape."""
    if values.shape[1:] == (parts * rows, columns):
        return values
    new = torch.zeros(len(values), parts, rows, columns, dtype=values.dtype, device=values.device)  # full() makes no E4M3
    if fill:
        new.fill_(fill)
    given = values.unflatten(1, (parts, -1))[:, :, :rows, :columns]
    new[:, :, : given.shape[2], : given.shape[3]] = given
    return new.flatten(1, 2)
