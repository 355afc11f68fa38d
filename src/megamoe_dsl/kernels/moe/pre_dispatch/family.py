"""The inputs stage, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ....problem import Problem
from ...kernel import Kernel, with_fields
from ..arguments import Arguments
from ..family import MegaMoeKernel
from .config import PreDispatchConfig

TOKENS = "x", "topk_idx", "topk_weights", "num_tokens", "padded_tokens"


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
