"""Every kernel that a `MegaMoE` layer runs, for machines that compile them for others."""

from __future__ import annotations

from collections.abc import Sequence

from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.moe.pre_dispatch.config import PreDispatchConfig
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.selection import Selection
from megamoe_dsl.target import Target


def layer_configs(problem: Problem, target: Target, bounds: Sequence[int] = ()) -> list[KernelConfig]:
    """Configurations that the layer asks its store for on such a GPU: of every bound, and of what brings tokens into the buffer."""
    kernels = Selection(problem, bounds).configs(target).values()
    return [*dict.fromkeys(kernels), *(PreDispatchConfig.choose(problem, target, quantized) for quantized in (False, True))]
