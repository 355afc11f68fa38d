"""The inputs stage, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....blocks.gemm.arguments import OPTIONAL
from ....problem import Problem
from ...kernel import Kernel, with_fields
from ..family import MegaMoeKernel
from .config import PreDispatchConfig

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class PreDispatchArguments:
    """What a launch that quantizes one rank's tokens takes; pointers are 64-bit addresses."""

    sym: Int64  # this rank's symmetric buffer
    x: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx: Int64  # i64 [num_tokens, topk]
    topk_weights: Int64  # f32 [num_tokens, topk]
    num_tokens: Int32  # tokens of this rank
    padded_tokens: Int32  # at least num_tokens: rows up to here are masked
    # of tokens that are quantized already: their scales, K-major, 4-byte aligned; x is then e4m3, 8-byte aligned, or packed e2m1, 4-byte
    # aligned
    x_sf: Int64 = OPTIONAL
    first_shared: Int32 = OPTIONAL  # number of the rank's first shared expert; `topk_idx` and `topk_weights` are without their slots
    factors: Int64 = OPTIONAL  # f32 [El, 5], as of `Arguments`, of tokens that are quantized with a factor


class PreDispatchKernel(Kernel):
    """Tokens, BF16 ones quantized with scales on the way, and routing, into the symmetric buffer that the mega kernel reads."""

    name = "pre_dispatch"
    ctas_per_sm = 0
    per_sm = 4
    code = "inputs.pre_dispatch_kernel"
    problem = Problem
    configs: ClassVar[Mapping[str, type[PreDispatchConfig]]] = dict.fromkeys(MegaMoeKernel.configs, PreDispatchConfig)
    recipes = MegaMoeKernel.recipes

    def arguments_type(self, config: PreDispatchConfig) -> type[PreDispatchArguments]:
        """With scales where tokens have them, the rank's first shared expert, if any, and factors for what is quantized with one."""
        factors = not config.copies and config.problem.formats.activations.factor
        return with_fields(PreDispatchArguments, x_sf=config.quantized, first_shared=config.shared, factors=factors)

    def label(self, config: PreDispatchConfig) -> str:
        given = ("-quantized" if config.quantized else "") + (f"-shared{config.shared}" if config.shared else "")
        return f"{config.problem.label}-pre{given}"
