"""The inputs stage, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ....problem import Problem
from ....target import Target
from ...kernel import Kernel, with_fields
from ..arguments import PreDispatchArguments
from ..family import MegaMoeKernel
from .config import PreDispatchConfig

CTAS_PER_SM = 4


class PreDispatchKernel(Kernel):
    """Tokens, BF16 ones quantized with scales on the way, and routing, into the symmetric buffer that the mega kernel reads."""

    name = "pre_dispatch"
    ctas_per_sm = 0
    code = "inputs.pre_dispatch_kernel"
    problem = Problem
    configs: ClassVar[Mapping[str, type[PreDispatchConfig]]] = dict.fromkeys(MegaMoeKernel.configs, PreDispatchConfig)
    recipes = MegaMoeKernel.recipes

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> PreDispatchConfig:
        """A grid that fills the target's SMs, whatever the number of tokens; `fields` replace what is chosen.  Raises `ConfigError`."""
        problem.check_num_tokens(num_tokens)
        return PreDispatchConfig(problem, **{"num_sms": CTAS_PER_SM * target.num_sms, "arch_name": target.arch.name, **fields})

    def arguments_type(self, config: PreDispatchConfig) -> type[PreDispatchArguments]:
        """With scales where tokens have them, the rank's first shared expert, if any, and factors for what is quantized with one."""
        factors = not config.copies and config.problem.formats.activations.factor
        return with_fields(PreDispatchArguments, x_sf=config.quantized, first_shared=config.shared, factors=factors)

    def label(self, config: PreDispatchConfig) -> str:
        given = ("-quantized" if config.quantized else "") + (f"-shared{config.shared}" if config.shared else "")
        return f"{config.problem.label}-pre{given}"
