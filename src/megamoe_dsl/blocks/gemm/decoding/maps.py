"""The tensor maps of a GEMM that decodes its weights: in the place of rows of B codes and records of packed tiles, line by line."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ....hardware.map_fields import MapFields
from ....hardware.packed_part import PackedPart, tiles_of
from ....hardware.packed_tile import LINE_BYTES, TILE_LINES
from ..config import GemmConfig
from ..maps import rows, with_weights


class DecodingMap(IntEnum):
    """Position among the kernel's parameters."""

    TOKENS = 0
    TOKENS_PART = 1
    CODES = 2
    RECORDS = 3
    SFA = 4
    D = 5


def decoding_map_fields(config: GemmConfig, args: Any) -> list[MapFields]:
    """Of every map, in order; `args` has the fields of `GemmArguments`."""
    problem, part = config.problem, PackedPart(config.block_n)
    count = problem.num_groups * tiles_of(problem.n) * problem.k_blocks * TILE_LINES
    lines = [rows(args.b, LINE_BYTES, count, box, swizzle=0) for box in (part.code_lines, part.record_lines)]
    return with_weights(config, args, lines)
