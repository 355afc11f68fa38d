"""Points at which GEMMs are timed (a problem and the rows of each group), and the configurations to try there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...blocks.gemm.choose import NARROW, WIDE, choose, cost, decoding_tiles, unscaled
from ...blocks.gemm.config import NUM_SMS, GemmConfig
from ...blocks.gemm.problem import CONTIGUOUS, GEMM_RECIPES, MASKED, PACKED, GemmProblem
from ...config_error import ConfigError
from ...kernels.moe.roofline import value_bytes
from ...layouts.arith import align
from ...problem import ProblemError
from ...target import Target

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


@dataclass(frozen=True)
class GemmPoint:
    """A problem with a number of rows for each group (`counts`)."""

    problem: GemmProblem
    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def placed_rows(self) -> int:
        """Rows of A; some problems pad each group to whole blocks."""
        return sum(align(count, self.problem.row_step) for count in self.counts)

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.problem.n * self.problem.k

    @property
    def num_bytes(self) -> float:
        """HBM traffic: A, D, and B of the groups that have rows, each once; of scales only those of 32 values of B."""
        p, touched = self.problem, sum(count > 0 for count in self.counts)
        written = p.n * p.output_bytes * (1 + p.accumulate)
        return self.rows * (p.formats.activations.row_bytes(p.k) + written) + touched * p.n * p.k * value_bytes(p.formats.weights)

    @property
    def name(self) -> str:
        """dense 4096x7168x2048 (M x N x K), or packed 32x384x4096x4096 (groups x rows x N x K); then the recipe unless it is the first"""
        p = self.problem
        formats = "" if p.recipe == GEMM_RECIPES[0] else f" {p.recipe}"
        if not p.has_groups:
            return f"{p.kind} {self.rows}x{p.n}x{p.k}{formats}"
        rows = str(self.counts[0]) if len(set(self.counts)) == 1 else "skewed"
        return f"{p.kind} {p.num_groups}x{rows}x{p.n}x{p.k}{formats}"

    def having(self, recipe: str) -> GemmPoint:
        return replace(self, problem=replace(self.problem, recipe=recipe))


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
MOST = 8
REACH = 1.8  # Longest estimate that is still timed, over the least.

VARIANTS: tuple[dict[str, Any], ...] = (
    {}, {"cluster": 2}, {"cluster": 2, "dynamic_schedule": True}, {"cluster": 2, "split_k": True}, {"group_m": 4},
    {"cluster": 2, "group_m": 16},
)  # fmt: skip
"""What is tried with every tile."""


def estimate(point: GemmPoint, config: GemmConfig) -> float:
    """A rough time in clocks (blocks/gemm/choose.py)."""
    return cost(point.problem, list(point.counts), asdict(config), config.num_sms)


def within_reach(point: GemmPoint, configs: list[GemmConfig]) -> list[GemmConfig]:
    """The configurations whose estimate is at most `REACH` times the least."""
    least = min((estimate(point, config) for config in configs), default=0.0)
    return [config for config in configs if estimate(point, config) <= REACH * least]


def candidates(point: GemmPoint, most: int = MOST) -> list[GemmConfig]:
    """The configuration chosen for the typical GPU, and the `most` tiles with the least estimates, each with all `VARIANTS`."""
    chosen = choose(point.problem, Target.typical(GemmConfig.arch), point.placed_rows)
    if point.problem.decodes:
        orders = (False, True) if point.problem.has_groups else (False,)
        tiles = decoding_tiles(point.problem, point.rows / point.problem.num_groups)
        decoding = [GemmConfig(point.problem, num_sms=NUM_SMS, **{**tile, "dynamic_schedule": one}) for tile in tiles for one in orders]
        return list(dict.fromkeys([chosen, *decoding]))
    found: list[list[GemmConfig]] = []
    for tile in (*NARROW, *WIDE) if point.problem.formats.scaled else map(unscaled, (*NARROW, *WIDE)):
        same = []
        for variant in VARIANTS:
            try:
                same.append(GemmConfig(point.problem, num_sms=NUM_SMS, **{**tile, **variant}))
            except ConfigError:
                continue
        if same:
            found.append(same)
    found.sort(key=lambda same: estimate(point, same[0]))
    return list(dict.fromkeys([chosen, *(config for same in found[:most] for config in same)]))
