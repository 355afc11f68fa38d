"""The tensor maps: said once, for the driver, the simulator and the launching functions."""

from __future__ import annotations

from typing import Any

from ...hardware.map_fields import MapFields
from ...hardware.operand_tile import BLOCK_K
from ...hardware.tensor_map import TensorMapDtype
from ..gemm.maps import L2_PROMOTION, part
from .config import GatherGemmConfig
from .problem import GatherGemmProblem

ALWAYS = ("weights", "d")
OF_SORTED_ROWS = ("tokens", "tokens_part", "sfa")


def map_names(problem: GatherGemmProblem) -> tuple[str, ...]:
    """Of every map, in the order of the kernel's parameters."""
    return ALWAYS if problem.gathers else (*ALWAYS, *OF_SORTED_ROWS)


def map_fields(config: GatherGemmConfig, args: Any) -> list[MapFields]:
    """The same; `args` has the fields of `GatherGemmArguments`."""
    problem, tile = config.problem, config.tile

    def rows(address: Any, count: Any, box: int) -> MapFields:
        return MapFields(address, TensorMapDtype.U8, (problem.k, count), (problem.k,), (BLOCK_K, box), 128, L2_PROMOTION)

    # What is activated leaves row by row; its map is there and not used.
    columns = problem.d_columns
    d_dims, d_box = (columns, args.d_rows), (tile.store_columns, tile.store_rows)
    kind = TensorMapDtype.U8 if problem.gate_up else TensorMapDtype.BF16
    scale_dims, scale_box = (args.a_rows, problem.k_blocks), (config.smem.scale_rows, 1)
    fields = {
        "weights": rows(args.b, problem.num_groups * problem.n, config.weight_rows),
        "d": MapFields(args.d, kind, d_dims, (columns * problem.output_bytes,), d_box, tile.store_swizzle, L2_PROMOTION),
        "tokens": rows(args.a, args.a_rows, tile.m),
        "tokens_part": rows(args.a, args.a_rows, part(tile.m)),
        "sfa": MapFields(args.a_sf, TensorMapDtype.F32, scale_dims, (4 * args.a_sf_ld,), scale_box, 0, L2_PROMOTION),
    }
    return [fields[name] for name in map_names(problem)]
