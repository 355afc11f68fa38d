"""vLLM: experts of FP8 and MXFP4 checkpoints on this project's kernels (docs/howto/vllm.md).

Set `MEGAMOE_VLLM=1`: the package is a plug-in of vLLM (entry point `vllm.general_plugins`), which calls `register` in each of its
processes.  vLLM's layer of experts may be replaced by name (`PluggableLayer`); the one in its place asks `method_of` how to compute.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

import torch

from ...problem import ProblemError
from .vllm_layer import LAYERS, VARIABLE, ExpertsMethod, RoutedExperts


def register() -> None:
    """What vLLM calls in each of its processes, perhaps twice: replaces its layer of experts if `MEGAMOE_VLLM` asks for it."""
    if os.environ.get(VARIABLE) != "1":
        return
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot

    if NAME not in op_registry_oot:
        PluggableLayer.register_oot(experts_type(), name=NAME)


@lru_cache
def experts_type() -> type:
    """vLLM's layer of experts, with the methods of this module."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts as Theirs

    own: dict[str, Any] = {hook.rpartition(".")[2]: function for hook, function in HOOKS.items()}
    return type(f"MegaMoe{NAME}", (Theirs,), {"__module__": __name__, **own})


@lru_cache
def method_type() -> type:
    """What vLLM takes for the method of a layer of experts."""
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

    return type("MegaMoeMethod", (ExpertsMethod, FusedMoEMethodBase), {"__module__": __name__})


def method_of(self: RoutedExperts, prefix: str, quant_config: Any, moe_config: Any) -> Any:
    """The method of a layer: this project's, or vLLM's own for a layer that no kernel here takes, with one warning for each reason."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts as Theirs

    theirs = Theirs._get_quant_method(self, prefix, quant_config, moe_config)
    try:
        return method_type()(theirs, self, moe_config)
    except ProblemError as error:
        warn_once(f"{type(theirs).__name__} of vLLM computes its experts: {error}")
        return theirs


def get_expert_weights(self: RoutedExperts) -> list[torch.Tensor]:
    """What vLLM's balancing moves: for every tensor that the kernel reads a row for each expert."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts as Theirs

    if self not in LAYERS:
        return list(Theirs.get_expert_weights(self))
    layer = LAYERS[self]
    tensors = [one for one in vars(layer.memory.weights).values() if one is not None and one.numel()]
    return [one.view(torch.uint8).view(layer.problem.experts_per_rank, -1) for one in tensors]


@lru_cache
def warn_once(text: str) -> None:
    """One line in the log for each text."""
    logging.getLogger("megamoe_dsl").warning(text)


HOOKS: dict[str, Any] = {
    "vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts._get_quant_method": method_of,
    "vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts.get_expert_weights": get_expert_weights,
}
"""Methods of vLLM's layer of experts that this module has in their place."""
NAME = "RoutedExperts"
"""Under which vLLM looks its layer of experts up."""
