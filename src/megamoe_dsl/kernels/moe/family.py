"""The fused MoE layer and its inputs stage, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...arch import SM90, SM100
from ...problem import Problem
from ...target import Target
from ..kernel import Kernel, Measures, with_fields
from ..measures import measure_sm90, measure_sm100
from .arguments import OVER_RANKS, Arguments
from .choose import choose
from .config import MegaMoeConfig
from .inputs_config import PreDispatchConfig
from .sm90.config import Sm90Config
from .sm100.config import Sm100Config

MIB = 1 << 20
ARGUMENTS = *OVER_RANKS, "maps", "y", "stats", "num_tokens", "trace"
"""Of every launch of the fused layer, and of its stages."""
TOKENS = "x", "topk_idx", "topk_weights", "num_tokens"
"""Of every launch of the inputs stage."""


class MegaMoeKernel(Kernel):
    """Dispatch, Linear1, SwiGLU, Linear2 and combine in one launch on every rank."""

    name = "mega_moe"
    problem = Problem
    configs: ClassVar[Mapping[str, type[MegaMoeConfig]]] = {SM90.name: Sm90Config, SM100.name: Sm100Config}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {arch: kind.recipes for arch, kind in configs.items()}
    measured: ClassVar[Mapping[str, Measures]] = {SM90.name: measure_sm90, SM100.name: measure_sm100}
    resident = True

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> MegaMoeConfig:
        return choose(self.configs[target.arch.name], problem, target, num_tokens, fields)

    def code_of(self, config: MegaMoeConfig) -> str:
        return f"{'sm90' if config.arch == SM90 else 'sm100'}.kernel.mega_moe_kernel"

    def arguments_type(self, config: MegaMoeConfig, results: bool = False) -> type[Arguments]:
        """Layers with biases or factors have arguments of their own, and SM90 for weights whose scales are not in their tiles."""
        biases, scales = config.problem.biases, config.problem.biases or config.weight_scales
        fields = {"fc1_sf": scales, "fc2_sf": scales, "fc1_bias": biases, "fc2_bias": biases}
        return with_fields(Arguments, *ARGUMENTS, **fields, factors=config.problem.formats.weights.factor, results=results)

    def label(self, config: MegaMoeConfig) -> str:
        return f"{config.problem.label}-m{config.block_m}"

    def facts(self, config: MegaMoeConfig) -> list[tuple[str, object]]:
        """Tile, pool if it is a ring, epilogue, schedule, grid, ring, registers and memory."""
        ring = f"a ring of {config.ring_blocks} blocks, of which Linear1 may be {config.window} ahead"
        problem = config.problem
        values = problem.experts_per_rank * 3 * problem.hidden * problem.intermediate
        weights, symmetric = values * problem.formats.weights.bytes_per_value / MIB, config.symmetric.size / MIB
        return [
            *super().facts(config),
            ("experts that Linear1 is ahead", config.lookahead),
            *([("token pool", ring)] if config.ring_blocks else []),
            ("stages", config.num_stages),
            ("register file", f"{config.register_total} of {config.arch.registers}"),
            ("memory per rank", f"{weights:,.0f} MiB of weights, {symmetric:,.0f} MiB of symmetric buffer"),
        ]


class PreDispatchKernel(Kernel):
    """Tokens, BF16 ones quantized with scales on the way, and routing, into the symmetric buffer that the mega kernel reads."""

    name = "pre_dispatch"
    ctas_per_sm = 0
    per_sm = 4
    code = "inputs.pre_dispatch_kernel"
    problem = Problem
    configs: ClassVar[Mapping[str, type[PreDispatchConfig]]] = dict.fromkeys(MegaMoeKernel.configs, PreDispatchConfig)
    recipes = MegaMoeKernel.recipes

    def arguments_type(self, config: PreDispatchConfig) -> type[Arguments]:
        """With scales where tokens have them, the rank's first shared expert, if any, and factors for what is quantized with one."""
        factors = not config.copies and config.problem.formats.activations.factor
        return with_fields(Arguments, *TOKENS, x_sf=config.quantized, first_shared=config.shared, factors=factors)

    def label(self, config: PreDispatchConfig) -> str:
        given = ("-quantized" if config.quantized else "") + (f"-shared{config.shared}" if config.shared else "")
        return f"{config.problem.label}-pre{given}"
