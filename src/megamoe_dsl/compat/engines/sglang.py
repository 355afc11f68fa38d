"""SGLang: `--moe-a2a-backend megamoe` on this project's kernels (docs/howto/sglang.md).

Set `MEGAMOE_SGLANG=1`: the package is a plug-in of SGLang (entry point `sglang.srt.plugins`), which calls `register` in each of its
processes.  All of SGLang's models compute their experts through the functions in `HOOKS`; those of this module take their place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import torch

from ...problem import Problem, ProblemError
from ...runtime import symmetric_memory
from ...runtime.layer import MegaMoE
from .shared_parts import LAYERS, Parameters, combine_element, load, new_layer, recipe_of, require_constants, require_values

VARIABLE = "MEGAMOE_SGLANG"
ACTIVATION_NAMES = {"swiglu": "silu", "swigluoai": "swigluoai", "situ": "situ"}
"""SGLang's names of activations, and this project's."""
FP8_NAMES = {"fc1": "w13_weight", "fc1_sf": "w13_weight_scale_inv", "fc2": "w2_weight", "fc2_sf": "w2_weight_scale_inv"}
MXFP4_NAMES = {"fc1": "w13_weight", "fc1_sf": "w13_weight_scale", "fc2": "w2_weight", "fc2_sf": "w2_weight_scale"}
"""Fields of `ExpertWeights`, and SGLang's parameters: of FP8 checkpoints, whose experts may be FP4, and of MXFP4 ones."""


Fp8Method = Annotated[Any, "sglang.srt.layers.quantization.fp8.Fp8MoEMethod"]
Mxfp4Method = Annotated[Any, "sglang.srt.layers.quantization.mxfp4.Mxfp4MoEMethod"]
NvfpMethod = Annotated[Any, "sglang.srt.layers.quantization.minimax_m3_nvfp4.MiniMaxM3Nvfp4MoE"]
KimiLayer = Annotated[Any, "sglang.srt.models.kimi_k3.KimiK3MoE"]
RunnerConfig = Annotated[Any, "sglang.srt.layers.moe.moe_runner.base.MoeRunnerConfig"]
Experts = Annotated[Any, "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"]
Settings = Annotated[Any, "sglang.srt.arg_groups.fields.device.Device"]
Environment = Annotated[Any, "sglang.srt.environ.Envs"]
"""Objects of SGLang's classes: `make engines` finds there which of their attributes this module names."""


def build(experts: Experts, names: dict[str, str]) -> None:
    """Has `load` take over some experts.  Raises `ProblemError` for a format, a shape, an activation or a parallelism that no kernel here
    has."""
    load(experts, names, lambda parameters: layer_of(problem_of(experts, parameters), parameters["fc1"].device))
    experts._mega_moe_weights_built = True


def problem_of(experts: Experts, parameters: Parameters) -> Problem:
    """What the experts compute.  Raises `ProblemError`."""
    config: RunnerConfig = experts.moe_runner_config
    arch = symmetric_memory.device_arch(parameters["fc1"].device)
    require_values(
        f"with {VARIABLE}=1",
        ("moe_tp_size", experts.moe_tp_size, 1),
        ("with_bias", experts.with_bias, False),
        ("is_gated", config.is_gated, True),
        ("apply_router_weight_on_input", config.apply_router_weight_on_input, False),
    )
    activation = activation_of(experts)
    _, hidden, width = parameters["fc2"].shape
    packed = parameters["fc1"].dtype in (torch.int8, torch.uint8)
    return Problem(
        hidden,
        width * (2 if packed else 1),
        experts.num_experts,
        experts.top_k,
        experts.moe_ep_size,
        environment().SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.get(),
        recipe=recipe_of(arch, packed, experts._mega_moe_w4a4),
        combine=combine_element(),
        activation=ACTIVATION_NAMES[activation],
        activation_clamp=None if activation == "situ" else config.swiglu_limit or config.gemm1_clamp_limit,
    )


def activation_of(experts: Experts) -> str:
    """SGLang's name of the experts' activation.  Raises `ProblemError` for one that no kernel here has."""
    config: RunnerConfig = experts.moe_runner_config
    if config.activation not in ("silu", "situ"):
        raise ProblemError("activation", config.activation, "silu or situ")
    name: str = getattr(experts, "_minimax_activation", "swiglu" if config.gemm1_alpha is None else "swigluoai")
    name = "situ" if config.activation == "situ" else name
    if name not in ACTIVATION_NAMES:
        raise ProblemError("activation", name, ", ".join(ACTIVATION_NAMES))
    if name == "swigluoai" and config.gate_up_interleaved:
        raise ProblemError("gate_up_interleaved", True, "False: rows of w13 are gate, then up")
    if name != "swiglu":
        second = config.gemm1_beta if name == "swigluoai" else config.gemm1_clamp_limit
        require_constants(name, ACTIVATION_NAMES[name], config.gemm1_alpha, second)
    return name


def layer_of(problem: Problem, device: torch.device) -> MegaMoE:
    """A new layer with SGLang's settings."""
    from sglang.srt.runtime_context import get_parallel, get_server_args

    field = environment().SGLANG_OPT_DEEPGEMM_MEGA_MOE_RESERVED_SMS
    # The default is that of a kernel for SM100; SGLang has SM90's run on all SMs.
    reserved = max(0, field.get()) if symmetric_memory.device_arch(device).has_tensor_memory or field.is_set() else 0
    group = get_parallel().moe_ep_group.device_group if problem.num_ranks > 1 else None
    settings: Settings = get_server_args()
    return new_layer(problem, device, group, reserved, settings.watchdog_timeout)


def environment() -> Environment:
    """SGLang's environment variables; a `get` of one reads it."""
    from sglang.srt.environ import envs

    return envs


def num_tokens_bound(rows: int) -> int:
    """The most tokens that a data-parallel rank has in this step, as SGLang knows them; this rank's, where it knows none."""
    from sglang.srt.layers.dp_attention import get_dp_global_num_tokens

    return max([1, rows, *(get_dp_global_num_tokens() or [])])


def register() -> None:
    """What SGLang calls in each of its processes: puts `HOOKS` in place if `MEGAMOE_SGLANG` asks for it."""
    if os.environ.get(VARIABLE) != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.REPLACE)
    for target, around in AROUND.items():
        HookRegistry.register(target, around, HookType.AROUND)


def load_fp8(original: Callable[..., None], self: Fp8Method, layer: Any) -> None:
    """FP4 experts of an FP8 checkpoint (DeepSeek-V4), whatever runner they have otherwise; FP8 ones come to `build_sm90`."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    if get_moe_a2a_backend().is_megamoe() and self.is_fp4_expert and not self.dequant_fp4_to_fp8:
        build_sm90_mega_moe_experts_weights(layer)
    else:
        original(self, layer)


def load_mxfp4(original: Callable[..., None], self: Mxfp4Method, layer: Any) -> None:
    """Experts of an MXFP4 checkpoint (Kimi-K3)."""
    if self.use_mega_moe:
        build(layer, MXFP4_NAMES)
    else:
        original(self, layer)


def refuse_nvfp4(self: Any, layer: Any) -> None:
    """Experts of an NVFP4 checkpoint.  Raises `ProblemError`: this plug-in has no such layer."""
    raise ProblemError("quantization", "NVFP4", "block FP8 or MXFP4: this plug-in has no NVFP4 experts")


def load_minimax_nvfp4(original: Callable[..., None], self: NvfpMethod, layer: Any) -> None:
    """As `refuse_nvfp4`, of MiniMax-M3; what Marlin computes stays with it."""
    if not self.use_marlin:
        refuse_nvfp4(self, layer)
    original(self, layer)


def build_sm90_mega_moe_experts_weights(experts: Any) -> None:
    """Experts of an FP8 checkpoint, FP8 or FP4: weights with a scale per block."""
    build(experts, FP8_NAMES)


def is_mega_moe_experts_ready(experts: Any) -> bool:
    """Whether `build` has made a layer of these experts."""
    return experts in LAYERS


def should_use_mega_moe(moe: Any, hidden_states: torch.Tensor) -> bool:
    """Whether this module computes the experts: if it has loaded them, because no other kernel reads these weights."""
    return moe.experts in LAYERS


def should_fuse_mega_moe_shared_experts(moe: Any) -> bool:
    """False: SGLang computes shared experts itself, on another stream."""
    return False


def should_use_mega_gate(moe: Any, hidden_states: torch.Tensor, forward_batch: Any) -> bool:
    """False: DeepGEMM's router writes into DeepGEMM's buffer."""
    return False


def run_mega_routed_experts(
    experts: Any,
    hidden_states: torch.Tensor,
    topk_ids: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
    *,
    hidden_size: int,
    intermediate_size: int,
    top_k: int,
    num_tokens: int,
    activation_clamp: float | None = None,
    routed_scaling_factor: float = 1.0,
    activation: str = "swiglu",
    num_shared_experts: int = 0,
    shared_l1_weights: Any = None,
    shared_l2_weights: Any = None,
    routing_in_buffer: bool = False,
) -> torch.Tensor:
    """y, bf16 [num_tokens, hidden]: of all ranks' experts for this rank's tokens, of which there may be none.  Raises `ProblemError` before
    anything is launched, for more tokens than the buffer takes, and for what the experts were not built for."""
    layer = LAYERS[experts]
    problem = layer.problem
    clamp = problem.activation_clamp if activation_clamp is None else activation_clamp
    require_values(
        "as when the weights were loaded",
        ("hidden_size", hidden_size, problem.hidden),
        ("intermediate_size", intermediate_size, problem.intermediate),
        ("top_k", top_k, problem.topk),
        ("activation", ACTIVATION_NAMES.get(activation, activation), problem.activation),
        ("activation_clamp", clamp, problem.activation_clamp),
        ("num_shared_experts", num_shared_experts, 0),
        ("routing_in_buffer", routing_in_buffer, False),
    )
    most = problem.max_tokens_per_rank
    if num_tokens > most:
        variable = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"
        raise ProblemError("num_tokens", num_tokens, f"at most {variable} = {most}: no other kernel reads these weights")
    if topk_ids is None or topk_weights is None:
        topk_ids = hidden_states.new_empty((0, top_k), dtype=torch.int32)
        topk_weights = hidden_states.new_empty((0, top_k), dtype=torch.float32)
    y: torch.Tensor = layer(
        hidden_states.contiguous(),
        topk_ids.contiguous(),
        (topk_weights.float() * routed_scaling_factor).contiguous(),
        num_tokens_bound=min(num_tokens_bound(num_tokens), most),
    )
    return y


def run_kimi(self: KimiLayer, routed_input: torch.Tensor, topk_output: Any) -> torch.Tensor:
    """As `run_mega_routed_experts`, of a layer of Kimi-K3."""
    experts: Experts = self.experts
    fused = experts.should_fuse_routed_scaling_factor_in_topk
    return run_mega_routed_experts(
        experts,
        routed_input,
        topk_output.topk_ids,
        topk_output.topk_weights,
        hidden_size=self.moe_hidden_size,
        intermediate_size=self._mega_intermediate_size,
        top_k=self._mega_top_k,
        num_tokens=routed_input.shape[0],
        activation="situ",
        routed_scaling_factor=1.0 if fused or self.routed_scaling_factor is None else self.routed_scaling_factor,
    )


HOOKS: dict[str, Callable[..., Any]] = {
    "sglang.srt.layers.moe.mega_gate.should_use_mega_gate": should_use_mega_gate,
    "sglang.srt.layers.moe.mega_moe.is_mega_moe_experts_ready": is_mega_moe_experts_ready,
    "sglang.srt.layers.moe.mega_moe.run_mega_routed_experts": run_mega_routed_experts,
    "sglang.srt.layers.moe.mega_moe.should_fuse_mega_moe_shared_experts": should_fuse_mega_moe_shared_experts,
    "sglang.srt.layers.moe.mega_moe.should_use_mega_moe": should_use_mega_moe,
    "sglang.srt.layers.moe.mega_moe_sm90.build_sm90_mega_moe_experts_weights": build_sm90_mega_moe_experts_weights,
    "sglang.srt.layers.quantization.modelopt_quant.ModelOptNvFp4FusedMoEMethod._build_mega_moe_weights": refuse_nvfp4,
    "sglang.srt.models.kimi_k3.KimiK3MoE._forward_mega_experts": run_kimi,
}
"""Functions of SGLang and their replacements, which take the same arguments."""
AROUND: dict[str, Callable[..., Any]] = {
    "sglang.srt.layers.quantization.fp8.Fp8MoEMethod.process_weights_after_loading_block_quant": load_fp8,
    "sglang.srt.layers.quantization.minimax_m3_nvfp4.MiniMaxM3Nvfp4MoE.process_weights_after_loading": load_minimax_nvfp4,
    "sglang.srt.layers.quantization.mxfp4.Mxfp4MoEMethod.process_weights_after_loading": load_mxfp4,
}
"""Functions of SGLang and their wrappers, which take the original function and then its arguments."""
