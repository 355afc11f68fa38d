"""vLLM: experts of FP8 and MXFP4 checkpoints on this project's kernels (docs/howto/vllm.md).

Set `MEGAMOE_VLLM=1`: the package is a plug-in of vLLM (entry point `vllm.general_plugins`), which calls `register` in each of its
processes.  vLLM's layer of experts may be replaced by name (`PluggableLayer`); the one in its place asks `method_of` how to compute.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Annotated, Any

import torch

from ...problem import Problem, ProblemError
from ...runtime import symmetric_memory
from ...runtime.layer import MegaMoE
from .shared_parts import LAYERS, combine_element, load, new_layer, recipe_of, require_constants, require_values

VARIABLE, RESERVED, W4A4 = "MEGAMOE_VLLM", "MEGAMOE_RESERVED_SMS", "MEGAMOE_W4A4"
FP8 = "vllm.model_executor.layers.quantization.fp8.Fp8MoEMethod"
MXFP4 = "vllm.model_executor.layers.quantization.mxfp4.Mxfp4MoEMethod"
SCALE_BLOCK = (128, 128)

VllmEnvironment = Annotated[Any, "vllm.envs"]
VllmSettings = Annotated[Any, "vllm.config.parallel.ParallelConfig"]
Step = Annotated[Any, "vllm.forward_context.DPMetadata"]
Parallel = Annotated[Any, "vllm.model_executor.layers.fused_moe.config.FusedMoEParallelConfig"]
Config = Annotated[Any, "vllm.model_executor.layers.fused_moe.config.FusedMoEConfig"]
RoutedExperts = Annotated[Any, "vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts"]
VllmFp8Method = Annotated[Any, "vllm.model_executor.layers.quantization.fp8.Fp8MoEMethod"]
"""Objects of vLLM's classes: `make engines` finds there which of their attributes this module names."""


class WholeLayer:
    """Answers vLLM's questions about a method's kernel: it exchanges tokens between ranks itself, and its result needs no reduction."""

    is_monolithic = False
    can_overlap_shared_experts = False
    consumes_expert_mask = False

    @property
    def fused_experts(self) -> WholeLayer:
        return self

    def output_is_reduced(self) -> bool:
        return True


class ExpertsMethod:
    """How experts are loaded and computed; `theirs`, vLLM's method, makes the parameters that a checkpoint is loaded into.

    Raises `ProblemError` for a format, a shape, an activation or a parallelism that no kernel here has.
    """

    supports_eplb = True
    is_monolithic = False
    topk_indices_dtype = torch.int64

    def __init__(self, theirs: Any, experts: RoutedExperts, moe: Config) -> None:
        self.theirs, self.moe, self.moe_quant_config, self.moe_kernel = theirs, moe, None, WholeLayer()
        scale = scale_name(theirs)
        self.names = {"fc1": "w13_weight", "fc1_sf": f"w13_{scale}", "fc2": "w2_weight", "fc2_sf": f"w2_{scale}"}
        self.problem = problem_of(moe, experts, packed=kind_of(theirs) == MXFP4)

    def maybe_roundup_sizes(self, hidden_size: int, intermediate_size_per_partition: int, *_: Any, **__: Any) -> tuple[int, int]:
        """The sizes of the checkpoint: nothing is rounded up."""
        return hidden_size, intermediate_size_per_partition

    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None:
        self.theirs.create_weights(layer, *sizes, **attributes)

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig

        return FusedMoEQuantConfig.make()

    def process_weights_after_loading(self, layer: Any) -> None:
        load(layer, self.names, lambda parameters: layer_of(self.problem, parameters["fc1"].device))

    def apply(self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """y of all ranks' experts for this rank's tokens, of which there may be none; vLLM itself computes shared experts."""
        moe = LAYERS[layer]
        bound = min(num_tokens_bound(len(x)), moe.problem.max_tokens_per_rank)
        y: torch.Tensor = moe(x, topk_ids, topk_weights.float(), num_tokens_bound=bound)
        return y


def kind_of(theirs: Any) -> str:
    """The dotted name of a method's class."""
    return f"{type(theirs).__module__}.{type(theirs).__name__}"


def scale_name(theirs: Any) -> str:
    """How vLLM's method ends the names of scales.  Raises `ProblemError` for a format that no kernel here has."""
    if kind_of(theirs) == MXFP4:
        return "weight_scale"
    if kind_of(theirs) != FP8:
        raise ProblemError("quantization", type(theirs).__name__, "block FP8 or MXFP4: Fp8MoEMethod or Mxfp4MoEMethod")
    method: VllmFp8Method = theirs
    block = None if method.weight_block_size is None else tuple(method.weight_block_size)
    if block != SCALE_BLOCK:
        raise ProblemError("weight_block_size", block, str(SCALE_BLOCK))
    name: str = method.weight_scale_name
    return name


def problem_of(moe: Config, experts: RoutedExperts, packed: bool) -> Problem:
    """What the experts compute.  Raises `ProblemError`."""
    from vllm.config import get_current_vllm_config

    settings: VllmSettings = get_current_vllm_config().parallel_config
    parallel: Parallel = moe.moe_parallel_config
    require_values(
        f"with {VARIABLE}=1",
        ("tensor_parallel_size of experts", parallel.tp_size, 1),
        ("data_parallel_size without expert parallelism", 1 if parallel.use_ep else parallel.dp_size, 1),
        ("prefill_context_parallel_size", parallel.pcp_size, 1),
        ("expert_placement_strategy", experts.expert_map_manager.placement_strategy, "linear"),
        ("enable_dbo", settings.enable_dbo, False),
        ("elastic_ep_max_dp_size", moe.elastic_ep_max_dp_size, None),
        ("skip_final_all_reduce", moe.skip_final_all_reduce, False),
        ("has_bias", moe.has_bias, False),
        ("is_lora_enabled", moe.is_lora_enabled, False),
        ("in_dtype", moe.in_dtype, torch.bfloat16),
        ("apply_router_weight_on_input", experts.apply_router_weight_on_input, False),
    )
    return Problem(
        moe.hidden_dim,
        moe.intermediate_size,
        moe.num_experts,
        moe.experts_per_token,
        parallel.ep_size if parallel.use_ep else 1,
        moe.max_num_tokens,
        recipe=recipe_of(symmetric_memory.device_arch(torch.device(moe.device)), packed, os.environ.get(W4A4) == "1"),
        combine=combine_element(),
        activation=activation_of(moe),
        activation_clamp=moe.swiglu_limit,
    )


def activation_of(moe: Config) -> str:
    """This project's name of an activation, whose constants have to be the same.  Raises `ProblemError`."""
    swiglu, situ = (moe.swiglu_alpha, moe.swiglu_beta), (moe.activation_situ_beta, moe.activation_situ_linear_beta)
    known = {"silu": ("silu", swiglu), "swigluoai_uninterleave": ("swigluoai", swiglu), "situ": ("situ", situ)}
    value: str = moe.activation.value
    if value not in known:
        raise ProblemError("activation", value, " or ".join(known))
    name, found = known[value]
    require_constants(value, name, *found)
    return name


def layer_of(problem: Problem, device: torch.device) -> MegaMoE:
    """A new layer with vLLM's settings."""
    from vllm import envs
    from vllm.distributed.parallel_state import get_ep_group

    environment: VllmEnvironment = envs
    group = get_ep_group().device_group if problem.num_ranks > 1 else None
    return new_layer(problem, device, group, reserved_sms(), environment.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def reserved_sms() -> int:
    """SMs that `MEGAMOE_RESERVED_SMS` leaves to other streams, 0 by default.  Raises `ProblemError`."""
    text = os.environ.get(RESERVED) or "0"
    if not text.isdecimal():
        raise ProblemError(RESERVED, text, "a number of SMs")
    return int(text)


def num_tokens_bound(rows: int) -> int:
    """The most tokens that a data-parallel rank has in this step, as vLLM knows them; this rank's, where there is one such rank only."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    metadata: Step | None = get_forward_context().dp_metadata if is_forward_context_available() else None
    return max(1, rows if metadata is None else max(rows, int(metadata.num_tokens_across_dp_cpu.max())))


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
"""Methods of vLLM's layer of experts, and their replacements."""
NAME = "RoutedExperts"
"""Under which vLLM looks its layer of experts up."""
