"""The points of the tables of docs/lab/gemms.md."""

from __future__ import annotations

from collections.abc import Sequence

from megamoe_dsl.bench.gemm.point import GemmPoint
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, GEMM_RECIPES, MASKED, PACKED, GemmProblem
from megamoe_dsl.problem import ProblemError

COLUMNS_AND_DEPTHS = ((7168, 2048), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (2112, 7168))
"""Projections of DeepSeek-V3: (N, K)."""
ROWS = (64, 128, 512, 4096)
DECODED = "fp8xmxfp4"
DECODED_ROWS = (8, 32, 64, 128, 512, 4096)  # At which weights that are decoded are measured.
UNSCALED = "bf16xbf16"
UNSCALED_COLUMNS_AND_DEPTHS = ((7168, 2048), (4096, 7168))
GROUPS = (
    # groups, rows of each, N, K
    (32, 384, 4096, 4096),
    (48, 1024, 6144, 7168),
    (256, 64, 4096, 4096),
    (8, 4096, 4096, 4096),
)
SKEWED = (2048, 1200, 700, 420, 260, 170, 120, 90, 64, 50, 40, 33, 27, 20, 16, 12, 9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0)
"""Uneven numbers of rows, of 32 experts."""


def dense(m: int, n: int, k: int) -> GemmPoint:
    return GemmPoint(GemmProblem(n, k), (m,))


def grouped(kind: str, counts: Sequence[int], n: int, k: int) -> GemmPoint:
    return GemmPoint(GemmProblem(n, k, kind, len(counts)), tuple(counts))


def all_points() -> list[GemmPoint]:
    """Those of the table in docs/lab/gemms.md."""
    found = [dense(8192, 8192, 8192)]
    found += [dense(m, n, k) for m in reversed(ROWS) for n, k in COLUMNS_AND_DEPTHS]
    for groups, rows, n, k in GROUPS:
        kinds = (MASKED, PACKED) if rows < 128 else (CONTIGUOUS, PACKED)
        found += [grouped(kind, [rows] * groups, n, k) for kind in kinds]
    found += [grouped(kind, SKEWED, 4096, 4096) for kind in (CONTIGUOUS, PACKED)]
    return found


def decoded_points() -> list[GemmPoint]:
    """Points of 4-bit weights, which the kernel decodes."""
    found = [dense(m, n, k) for m in reversed(DECODED_ROWS) for n, k in COLUMNS_AND_DEPTHS]
    found += [grouped(kind, [rows] * groups, 4096, 4096) for groups, rows in ((256, 64), (32, 16), (32, 384)) for kind in (MASKED, PACKED)]
    return [one.having(DECODED) for one in found]


def unscaled_points() -> list[GemmPoint]:
    """Points of BF16: dense with few rows and with many, and groups of experts."""
    found = [dense(8192, 8192, 8192), *(dense(m, n, k) for m in (4096, 512, 64) for n, k in UNSCALED_COLUMNS_AND_DEPTHS)]
    found += [grouped(kind, [384] * 32, 4096, 4096) for kind in (CONTIGUOUS, PACKED)]
    found += [grouped(kind, [64] * 256, 4096, 4096) for kind in (MASKED, PACKED)]
    return [one.having(UNSCALED) for one in found]


def find_points(names: Sequence[str], recipe: str = GEMM_RECIPES[0]) -> list[GemmPoint]:
    """The points of a recipe with one of these texts in their names, or all.  Raises `ProblemError`."""
    if recipe not in MEASURED:
        raise ProblemError("recipe", recipe, f"one of {', '.join(MEASURED)}: GEMMs are timed on Hopper")
    points = MEASURED[recipe]()
    for text in names:
        if not any(text in one.name for one in points):
            raise ProblemError("points", text, f"a part of a name, as in {points[0].name} or {points[-1].name}")
    return [one for one in points if not names or any(text in one.name for text in names)]


MEASURED = {GEMM_RECIPES[0]: all_points, DECODED: decoded_points, UNSCALED: unscaled_points}  # Points by recipe.
