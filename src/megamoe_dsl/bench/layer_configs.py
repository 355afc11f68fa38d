"""Every kernel that a `MegaMoE` layer runs, for machines that compile them for others."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels.pre_dispatch.config import PreDispatchConfig
from ..kernels.registry import AnyConfig
from ..problem import Problem
from ..runtime.selection import Selection


def layer_configs(problem: Problem, num_sms: int, gpu: str | None, bounds: Sequence[int] = ()) -> list[AnyConfig]:
    """Configurations that the layer asks its store for on such a GPU: of every bound, and of what quantises BF16 tokens."""
    kernels = Selection(problem, bounds).configs(num_sms, gpu).values()
    return [*dict.fromkeys(kernels), PreDispatchConfig.choose(problem, num_sms)]
