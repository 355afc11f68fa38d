"""GEMMs, as the registry knows them: of rows as they lie, and of the rows of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...blocks.gemm.arguments import GemmArguments
from ...blocks.gemm.base_config import BaseGemmConfig
from ...blocks.gemm.choose import choose as choose_gemm
from ...blocks.gemm.config import GemmConfig
from ...blocks.gemm.problem import GEMM_RECIPES, SUMMED_RECIPES, GatherGemmProblem, GemmProblem, VarlenKProblem
from ...blocks.gemm.sm100.choose import choose as choose_pair_gemm
from ...blocks.gemm.sm100.config import Sm100GemmConfig
from ...hardware.tensor_map import TensorMap
from ...target import Target
from ..kernel import Kernel, Measures, with_fields
from ..measures import measure_gemm, measure_pair_gemm

CHOOSE: Mapping[str, Callable[..., BaseGemmConfig]] = {GemmConfig.arch.name: choose_gemm, Sm100GemmConfig.arch.name: choose_pair_gemm}


class GemmKernel(Kernel):
    """D = A x B of BF16 numbers, or of block-scaled ones of 8 and 4 bits, dense or grouped."""

    name = "gemm"
    problem: ClassVar[type[GemmProblem]] = GemmProblem
    configs: ClassVar[Mapping[str, type[BaseGemmConfig]]] = {"sm_90a": GemmConfig, "sm_100a": Sm100GemmConfig}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {arch: kind.recipes for arch, kind in configs.items()}
    early = True
    measured: ClassVar[Mapping[str, Measures]] = {"sm_90a": measure_gemm, "sm_100a": measure_pair_gemm}
    code = "kernel.gemm_kernel"

    def choose(self, problem: GemmProblem, target: Target, num_tokens: int, **fields: Any) -> BaseGemmConfig:
        return CHOOSE[target.arch.name](problem, target, num_tokens, **fields)

    def arguments_type(self, config: Any) -> type[GemmArguments]:
        """What every GEMM takes, and what the problem's own parts do."""
        problem, factors = config.problem, config.problem.formats.weights.factor
        groups = {
            ("d_sf", "sources", "d_sf_ld", "a_rows", "d_rows"): problem.of_experts,
            ("factors",): factors,
            ("up_factors", "hidden_factors"): factors and problem.of_experts and problem.hidden.factor,
            ("bias",): problem.biases,
            ("preactivations",): problem.preactivations,
            ("gate_up", "row_weights", "weighted", "dots"): problem.gradient,
            ("trace",): config.trace,
        }
        return with_fields(GemmArguments, **{name: there for names, there in groups.items() for name in names})

    def label(self, config: Any) -> str:
        p = config.problem
        groups = f"-{p.kind}{p.num_groups}" if p.has_groups else ""
        output = f"-{p.output}{'+' if p.accumulate else ''}" if p.output != "bf16" else ""
        tile = f"n{config.block_n}" if config.arch == GemmConfig.arch else ""
        tile += "" if p.recipe == GEMM_RECIPES[0] else f"-{p.recipe}"
        tile += f"-{p.biases}-biases" if p.biases else ""
        return f"{p.n}x{p.k}{groups}{output}-m{config.block_m}{tile}"


class VarlenKKernel(GemmKernel):
    """D[g] = left^T x right over each group's rows: gradients of weights.  In BF16 one side is gathered, in FP8 both lie transposed."""

    name = "varlen_k_gemm"
    problem = VarlenKProblem
    measured: ClassVar[Mapping[str, Measures]] = {}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {"sm_90a": SUMMED_RECIPES[:2], "sm_100a": SUMMED_RECIPES[::2]}

    def label(self, config: Any) -> str:
        return f"{super().label(config)}-{config.problem.gathered or 'k'}"


class GatherGemmKernel(GemmKernel):
    """D = A x B over the rows of experts, which are gathered from tokens or sorted already."""

    name = "gather_gemm"
    problem = GatherGemmProblem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {"sm_90a": ("fp8xfp8", "bf16xbf16"), "sm_100a": Sm100GemmConfig.recipes}

    def parameters(
        self, config: Any, arguments: Mapping[str, int], encode: Callable[[TensorMap], bytes] = TensorMap.encode
    ) -> tuple[int | bytes, ...]:
        """As of a GEMM.  Raises `ConfigError` for more rows than the kernel counts."""
        config.check_rows(arguments["m"])
        return super().parameters(config, arguments, encode)

    def label(self, config: Any) -> str:
        problem = config.problem
        more = [one for one in (problem.gate_up, "stored" if problem.preactivations else "", "traced" if config.trace else "") if one]
        return "-".join([super().label(config), problem.source, problem.result, *more])
