"""What the tensor maps of SM90's GEMMs are made of: said once, for the driver, the simulator and the launching function."""

from __future__ import annotations

from typing import Any

from ...hardware.operand_tile import ROW_BYTES
from ...hardware.tensor_map import MapFields, TensorMapDtype
from .problem import BF16, F32, GemmProblem

L2_PROMOTION, BURST_PROMOTION = 256, 128
SHORT_ROW, SHORT_PROMOTION = 512, 128
"""Bytes of a row, up to which L2 is better asked for one K block at a time of many matrices B (docs/lab/one_gpu.md)."""
PARTS = 2  # of a tile that a CTA fetches: for both CTAs of a cluster, or because it has no more rows


def result_map(config: Any, args: Any) -> dict[str, MapFields]:
    """Fields of D's map, by name.  It is there and not used where FP32, or what is activated, leaves from registers."""
    problem, tile = config.problem, config.tile
    kind, swizzle = {
        F32: (TensorMapDtype.F32, 0),
        BF16: (TensorMapDtype.BF16, tile.store_swizzle),
    }.get(problem.output, (TensorMapDtype.U8, tile.store_swizzle))
    dims, pitch = (problem.d_columns, rows_of_d(problem, args)), (problem.d_columns * problem.output_bytes,)
    return {"d": MapFields(args.d, kind, dims, pitch, (tile.store_columns, tile.store_rows), swizzle, L2_PROMOTION)}


def rows_of_a(problem: GemmProblem, args: Any) -> Any:
    return args.a_rows if problem.of_experts else args.m


def rows_of_d(problem: GemmProblem, args: Any) -> Any:
    return args.d_rows if problem.of_experts else args.m


def promotion(problem: GemmProblem, width: int) -> int:
    """Bytes that L2 fetches at a time, of an operand whose rows are so many bytes."""
    short = problem.has_groups and not problem.of_experts and width <= SHORT_ROW
    return SHORT_PROMOTION if short else L2_PROMOTION


def weight_promotion(config: Any, alone: int) -> int:
    """The same of B, `alone` where K blocks are asked for one by one: in bursts those that follow one another are asked for anyway, and
    promoted would be read twice."""
    return BURST_PROMOTION if config.burst > 1 else alone


def byte_rows(address: Any, width: int, count: Any, box: int, swizzle: int = 128, l2: int = L2_PROMOTION) -> MapFields:
    """A matrix of bytes, whose boxes are so many rows of 128."""
    return MapFields(address, TensorMapDtype.U8, (width, count), (width,), (ROW_BYTES, box), swizzle, l2)


def part(rows: int) -> int:
    """Rows of a part of a tile."""
    return max(rows // PARTS, 1)
