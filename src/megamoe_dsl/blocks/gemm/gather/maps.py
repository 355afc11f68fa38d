"""The tensor maps: said once, for the driver, the simulator and the launching functions."""

from __future__ import annotations

from typing import Any

from ....hardware.map_fields import MapFields
from ....hardware.tensor_map import TensorMapDtype
from ..maps import L2_PROMOTION, part, rows, weight_promotion
from .config import GatherGemmConfig
from .problem import BF16, GatherGemmProblem

ALWAYS = ("weights", "d")
OF_SORTED_ROWS = ("tokens", "tokens_part", "sfa")


def map_names(problem: GatherGemmProblem) -> tuple[str, ...]:
    """Of every map, in the order of the kernel's parameters."""
    return ALWAYS if problem.gathers else (*ALWAYS, *OF_SORTED_ROWS)


def map_fields(config: GatherGemmConfig, args: Any) -> list[MapFields]:
    """The same; `args` has the fields of `GatherGemmArguments`."""
    problem, tile = config.problem, config.tile
    a_row, b_row = (one.row_bytes(problem.k) for one in (problem.formats.activations, problem.formats.weights))
    l2 = weight_promotion(config, L2_PROMOTION)
    # What is activated leaves row by row; its map is there and not used.
    columns = problem.d_columns
    d_dims, d_box = (columns, args.d_rows), (tile.store_columns, tile.store_rows)
    kind = TensorMapDtype.BF16 if problem.output == BF16 else TensorMapDtype.U8
    scale_dims, scale_box = (args.a_rows, problem.k_blocks), (config.smem.scale_rows, 1)
    scales = MapFields(args.a_sf, TensorMapDtype.F32, scale_dims, (4 * args.a_sf_ld,), scale_box, 0, L2_PROMOTION)
    tokens = rows(args.a, a_row, args.a_rows, tile.m)
    fields = {
        "weights": rows(args.b, b_row, problem.num_groups * problem.n, config.weight_rows, l2=l2),
        "d": MapFields(args.d, kind, d_dims, (columns * problem.output_bytes,), d_box, tile.store_swizzle, L2_PROMOTION),
        "tokens": tokens,
        "tokens_part": rows(args.a, a_row, args.a_rows, part(tile.m)),
        "sfa": scales if tile.scaled else tokens,  # where it is not used
    }
    return [fields[name] for name in map_names(problem)]
