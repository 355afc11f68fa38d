"""What an architecture decides about the GEMM of an expert-parallel kernel: tiles, registers, and values that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....arch import SM90, SM100, Arch
from ....blocks.gemm.config import GemmConfig
from ....blocks.gemm.problem import GATE_FIRST, GemmProblem, PooledRowsProblem
from ....blocks.gemm.sm100.config import ROWS, Sm100GemmConfig
from ....blocks.sm100.pair_stage import block_ks
from ....hardware.cta_pair import CLUSTER, PAIR_ROWS
from ....hardware.operand_tile import SF_ATOM_ROWS, utccp_row
from ....layouts.arith import Int
from ....problem import Problem

MOST_COLUMNS = 128
"""N of a wgmma: 512 threads start with 128 registers each, ptxas accepts no instruction that names more, and 128 columns take 64."""


GroupedGemm = GemmConfig | Sm100GemmConfig
HALVED = 128  # rows of a tile of which half may be multiplied
GROUP_M = 16  # row blocks of a group in the grouped tile order
GATE_UP = STORED, ACTIVATED = "stored", "activated"


@dataclass(frozen=True)
class GemmPart:
    """An architecture's share of a configuration (config.py)."""

    arch: Arch
    recipes: tuple[str, ...]
    allowed: Mapping[str, tuple[int, ...]] = field(hash=False)  # what fields may be
    gemm: Callable[[Any, int], GroupedGemm]  # that of a configuration (blocks/gemm), with a ring of this depth
    activated_tile: Mapping[str, int] = field(hash=False)  # fields of a launch that activates gate and up, or makes their gradients
    clusters_of: Callable[[int], int] = lambda num_sms: CLUSTER  # what `choose` takes for `cluster` on a grid of so many CTAs
    scale_rows: int = 0  # whose scales are fetched together; 0 where a tile's are
    scale_row: Callable[[Int], Int] = lambda row: row  # where a row's scales lie among those of all rows
    # of a thread of each group of warps after `setmaxnreg`; empty: all keep what they begin with
    registers: Mapping[str, int] = field(hash=False, default_factory=dict)


def warpgroup_gemm(config: Any, num_stages: int) -> GemmConfig:
    """The GEMM with two warpgroups, whose wgmmas are narrow enough for a CTA that has communication warps too."""
    return GemmConfig(
        config.gemm_problem,
        config.block_m,
        config.block_n,
        config.num_sms,
        warpgroups=2,
        cluster=config.cluster,
        dynamic_schedule=True,
        group_m=GROUP_M,
        half_tiles=config.block_m == HALVED and not (config.transposed or config.gemm_problem.gate_up),
        num_stages=num_stages,
        most_columns=MOST_COLUMNS,
    )


def pair_gemm(config: Any, num_stages: int) -> Sm100GemmConfig:
    """The GEMM whose CTA pairs multiply 256 weight rows by up to 192 received rows."""
    tile = (config.block_m, config.num_sms, max(block_ks(config.gemm_problem.formats, config.gemm_problem.k)), GROUP_M)
    return Sm100GemmConfig(config.gemm_problem, *tile, dynamic_schedule=True, num_stages=num_stages)


def pooled_problem(plain: GemmProblem, layer: Problem, keeps: bool) -> PooledRowsProblem:
    """Linear1 with the layer's activation behind it, and gate and up if somebody `keeps` them; of a transposed linear its gradient."""
    what: dict[str, Any] = {"gradient": GATE_FIRST} if plain.transposed_b else {"gate_up": GATE_FIRST, "preactivations": keeps}
    what |= {name: getattr(layer, name) for name in ("recipe", "activation", "activation_clamp", "fast_math")}
    return PooledRowsProblem(plain.n, plain.k, num_groups=plain.num_groups, transposed_b=plain.transposed_b, **what)


WARPGROUPS = GemmPart(
    arch=SM90,
    recipes=("fp8xfp8", "bf16xbf16"),
    allowed={"block_m": (64, HALVED), "block_n": (64, 128, 256), "cluster": (1, 2)},
    gemm=warpgroup_gemm,
    activated_tile={"block_m": HALVED, "block_n": 256},
    clusters_of=lambda num_sms: 1 if num_sms % 2 else 2,
    registers={"communication": 48, "loader": 32, "math": 216},
)
PAIRS = GemmPart(
    arch=SM100,
    recipes=("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "bf16xbf16"),
    allowed={"block_m": ROWS, "block_n": (PAIR_ROWS,), "cluster": (CLUSTER,)},
    gemm=pair_gemm,
    activated_tile={},
    scale_rows=SF_ATOM_ROWS,
    scale_row=utccp_row,  # the order in which `tcgen05.cp` takes scales
)
PARTS: dict[str, GemmPart] = {one.arch.name: one for one in (WARPGROUPS, PAIRS)}
