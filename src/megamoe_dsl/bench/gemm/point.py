"""Points at which GEMMs are timed (a problem and the rows of each group), and the configurations to try there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ...blocks.gemm.choose import NARROW, WIDE, choose, cost, decoding_tiles, unscaled
from ...blocks.gemm.config import NUM_SMS, GemmConfig
from ...blocks.gemm.problem import DENSE, GEMM_RECIPES, KINDS, GemmProblem
from ...config_error import ConfigError, parse_integer
from ...kernels.moe.roofline import value_bytes
from ...kernels.registry import find_kernel
from ...layouts.arith import align
from ...problem import ProblemError
from ...target import Target


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


def read_points(text: str, recipe: str) -> list[GemmPoint]:
    """Points by their names, as in "512x2112x7168,packed 32x384x4096x4096": rows x N x K, or a kind and groups x rows x N x K.  Raises
    `ProblemError`."""
    points, recipes = [], find_kernel("gemm").recipes[GemmConfig.arch.name]
    if recipe not in recipes:
        raise ProblemError("recipe", recipe, f"one of {', '.join(recipes)}: GEMMs are timed on Hopper")
    for name in text.split(","):
        kind, _, sizes = name.rpartition(" ")
        found = [number for size in sizes.split("x") if (number := parse_integer(size))]
        if kind not in ("", *KINDS) or len(found) != sizes.count("x") + 1 or len(found) != (3 if kind in ("", DENSE) else 4):
            raise ProblemError("points", name, "as 512x2112x7168 (rows, N, K) or packed 32x384x4096x4096 (groups, rows, N, K)")
        groups, rows, n, k = found if kind not in ("", DENSE) else (1, *found)
        points.append(GemmPoint(GemmProblem(n, k, kind or DENSE, groups, recipe=recipe), (rows,) * groups))
    return points


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
