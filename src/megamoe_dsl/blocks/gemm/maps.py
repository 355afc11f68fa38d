"""The tensor maps of the GEMM kernel: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ...hardware.map_fields import MapFields
from ...hardware.operand_tile import ROW_BYTES
from ...hardware.tensor_map import TensorMapDtype
from .config import GemmConfig
from .problem import F32, GemmProblem

L2_PROMOTION, BURST_PROMOTION = 256, 128
SHORT_ROW, SHORT_PROMOTION = 512, 128
"""Bytes of a row, up to which L2 is better asked for one K block at a time where there are many matrices B (docs/gather_gemm.md)."""
PARTS = 2  # of a tile that a CTA fetches: for both CTAs of a cluster, or because it has no more rows


class GemmMap(IntEnum):
    """Position among the kernel's parameters."""

    TOKENS = 0
    TOKENS_PART = 1
    WEIGHTS = 2
    WEIGHTS_PART = 3
    SFA = 4
    D = 5


def map_fields(config: GemmConfig, args: Any) -> list[MapFields]:
    """Of every map, in order; `args` has the fields of `GemmArguments`."""
    problem, tile = config.problem, config.tile
    count = problem.num_groups * problem.n
    row = problem.formats.weights.row_bytes(problem.k)
    l2 = weight_promotion(config, promotion(problem, row))
    return with_weights(config, args, [rows(args.b, row, count, box, l2=l2) for box in (tile.n, part(tile.n))])


def with_weights(config: GemmConfig, args: Any, weights: list[MapFields]) -> list[MapFields]:
    """Those of `weights` between the ones of A and of its scales and D."""
    problem, tile = config.problem, config.tile
    row = problem.formats.activations.row_bytes(problem.k)
    # FP32 leaves from registers; its map is there and not used.
    kind, swizzle = (TensorMapDtype.F32, 0) if problem.output == F32 else (TensorMapDtype.BF16, tile.store_swizzle)
    d_row, d_box = (problem.n * problem.output_bytes,), (tile.store_columns, tile.store_rows)
    return [
        *(rows(args.a, row, args.m, box, l2=promotion(problem, row)) for box in (tile.m, part(tile.m))),
        *weights,
        # Without scales their map is there, too, and not used.
        scales(config, args) if tile.scaled else rows(args.a, row, args.m, tile.m),
        MapFields(args.d, kind, (problem.n, args.m), d_row, d_box, swizzle, L2_PROMOTION),
    ]


def scales(config: GemmConfig, args: Any) -> MapFields:
    """Of A: FP32, of the rows of a tile and one K block."""
    dims, box = (args.m, config.problem.k_blocks), (config.smem.scale_rows, 1)
    return MapFields(args.a_sf, TensorMapDtype.F32, dims, (4 * args.a_sf_ld,), box, 0, L2_PROMOTION)


def promotion(problem: GemmProblem, width: int) -> int:
    """Bytes that L2 fetches at a time, of an operand whose rows are so many bytes."""
    return SHORT_PROMOTION if problem.has_groups and width <= SHORT_ROW else L2_PROMOTION


def weight_promotion(config: GemmConfig, alone: int) -> int:
    """The same of B, `alone` where K blocks are asked for one by one: in bursts those that follow one another are asked for anyway, and
    promoted would be read twice."""
    return BURST_PROMOTION if config.burst > 1 else alone


def rows(address: Any, width: int, count: Any, box: int, swizzle: int = 128, l2: int = L2_PROMOTION) -> MapFields:
    """Of a matrix of bytes, whose boxes are so many rows of 128."""
    return MapFields(address, TensorMapDtype.U8, (width, count), (width,), (ROW_BYTES, box), swizzle, l2)


def part(rows: int) -> int:
    """Rows of a part of a tile."""
    return max(rows // PARTS, 1)
