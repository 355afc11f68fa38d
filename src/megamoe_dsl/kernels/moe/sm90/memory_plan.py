"""Memory of the SM90 kernel: a CTA's shared memory, and the table of twelve tensor maps, Linear2's after Linear1's.

An operand has two maps: the box of one is a stage's whole operand, that of the other a part: what a CTA fetches for all CTAs of its
cluster, or the tokens of a half tile.  Where each CTA decodes half of the packed weights, the boxes are its codes and all records.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ....hardware.operand_tile import BLOCK_K, OPERAND_ALIGNMENT
from ....hardware.packed_tile import ENTRY_BYTES, GROUP, SHIFTS, TILE_BYTES, WHOLE_TILE
from ....hardware.tensor_map import MapFields, TensorMapDtype
from ....layouts.arith import align, ceil_div
from ....layouts.region import F32, U8, U32, Field, MBarrier
from ..layouts.smem_plan import TILE_ROWS, Place, SmemPlan, layer_plan

MATH_WARPGROUPS = 2
FC1_OUTPUTS = TILE_ROWS // 2  # channels of a Linear1 tile
MOST_COLUMNS = 32  # tokens as columns whose BF16 rows are transposed at a time, and the most of them but for packed weights
PULL_CHUNK = 1024
PULL_SLOTS = (4, 2)  # per dispatch warp; the first that fits beside the ring
MOST_PULL_SLOTS = 8  # of dispatch as a launch of its own


def pull_chunk(row: int) -> int:
    """Bytes of a token's row of `row` bytes that one bulk copy moves: the largest divisor of them up to 1024 that is a multiple of 128.
    Where they are no multiple of 256, 1024, and a row's last copy moves what is left."""
    if row % 256:
        return min(row, PULL_CHUNK)
    return next(n for n in range(PULL_CHUNK, 0, -128) if row % n == 0)


def smem_plan(config: Any, num_stages: int, pull_slots: int = PULL_SLOTS[-1], keeps: tuple[str, ...] = ()) -> SmemPlan:
    """With a ring of so many stages; with `keeps` that of a launch of one stage, which has only these fields.

    codes: packed tiles before they are decoded; row_exponents: UE8M0 of four rows a word, as in the tile's records; sfb: the tile's scale.
    cd, Linear1: [boxes][block_m] of 128 bytes; Linear2: one tile per warpgroup.  sfa: of the tokens; scales of weights that nobody decodes
    do not pass through the ring.  amax: one word per math warp and token, or, where a ring of codes leaves less room, per token of the
    warp's 16; none where Linear1's outputs have no scales.  decoded: the table of packed weights (device/e2m1.py).
    """
    cluster, math_warps, decode_warps, chunk = config.cluster, config.epilogue_warps, config.warps.decode, pull_chunk(config.token_bytes)
    if keeps:
        pull_slots = min(config.problem.hidden // chunk, MOST_PULL_SLOTS)
    staged = align(max(config.fc1_box(config.fc1_boxes), MATH_WARPGROUPS * config.fc2_tile_bytes), OPERAND_ALIGNMENT)
    exponents = Field("row_exponents", (num_stages, TILE_ROWS // 4), U32, 16)
    codes = (operand("codes", num_stages, TILE_BYTES), exponents, Field("sfb", (num_stages,), F32))
    ring = (
        operand("weights", num_stages, config.weight_bytes),
        operand("tokens", num_stages, config.block_m * BLOCK_K),
        *(codes if config.decoded else ()),
        Field("cd", (staged,), U8, OPERAND_ALIGNMENT),
        Field("sfa", (num_stages, align(config.scale_bytes, 128) // 4), F32, 128),
    )
    exchanged = (16 if config.decoded else config.block_m) if config.scaled else 0  # tokens
    decoded = (Field("decoded", (SHIFTS, ENTRY_BYTES), U8, 16 * ENTRY_BYTES),) if config.packed else ()
    # All warps read work tiles but dispatch and the one that deals them.  Where warps decode, the first CTA's warp that deals tiles
    # stores its tiles, too; that of another CTA reads them as all others do.
    tile_readers = config.warps.loader - (2 if keeps else 1) + math_warps + decode_warps
    readers = 32 * (tile_readers * cluster + (cluster - 1 if decode_warps else 0))
    operands, fill = "operands and token scales, from either CTA", "every decode warp" if decode_warps else "weight loader"
    of_codes = (
        MBarrier("codes_full", num_stages, 1, "weight loader", "a packed tile", "decode warps"),
        MBarrier("codes_empty", num_stages, decode_warps, "every decode warp", "", "weight loader"),
    )
    barriers = (
        MBarrier("full", num_stages, 1 + decode_warps if decode_warps else 2, f"token loader and {fill}", operands, "math warps"),
        MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", f"token loader and {fill}"),
        *(of_codes if decode_warps else ()),
        MBarrier("store_full", 1, math_warps, "every math warp, per Linear1 tile", "", "store warp"),
        MBarrier("store_empty", 1, 1, "store warp, when the tile has been read", "", "math warps"),
    )
    amax = Field("amax", (math_warps, exchanged), U32, 16)
    return layer_plan(config, ring, (pull_slots, chunk), amax, barriers, (1, readers), before_tiles=decoded, keeps=keeps)


def operand(name: str, num_stages: int, num_bytes: int) -> Field:
    return Field(name, (num_stages, num_bytes), U8, OPERAND_ALIGNMENT)


LINEAR_MAPS = ("tokens", "sfa", "weights", "tokens_part", "weights_part")
TABLE_MAPS = (*LINEAR_MAPS, *LINEAR_MAPS, "fc1_output", "fc1_output_part")


def byte_lines(address: int, width: int, height: int, box_height: int, swizzle: int = 128) -> MapFields:
    """Rows of `width` bytes, in boxes of 128 bytes by `box_height` rows."""
    return MapFields(address, TensorMapDtype.U8, (width, height), (width,), (BLOCK_K, box_height), swizzle)


def linear_maps(config: Any, name: str, rows: Place, scales: Place, k: int, tiles: int, weights: Mapping[str, int]) -> list[MapFields]:
    """fc1, fc2 of the weights: tiles of 256 rows by `block_k`, one after another (quant.tile_sm90, hardware/packed_tile.py)."""
    tokens, lines = partial(byte_lines, *rows), config.weight_lines
    whole, part = (GROUP.code_lines, WHOLE_TILE.record_lines) if config.halves_decoding else (lines, lines // config.cluster)
    height = config.problem.experts_per_rank * tiles * lines * ceil_div(k, config.block_k)
    operand = partial(byte_lines, weights[name], BLOCK_K, height, swizzle=0 if config.packed else 128)
    address, words, sf_rows = scales
    sfa = MapFields(address, TensorMapDtype.U32, (sf_rows, words), (4 * sf_rows,), (config.block_m, 1), 0)
    # Without scales nobody reads the map in their place.
    return [
        tokens(config.block_m),
        sfa if config.scaled else tokens(config.block_m),
        operand(whole),
        tokens(config.part_tokens),
        operand(part),
    ]


def output_maps(config: Any, rows: Place) -> list[MapFields]:
    return [byte_lines(*rows, config.block_m), byte_lines(*rows, config.part_tokens)]
