"""Layers of SGLang's experts: what they compute, with SGLang's settings, on SGLang's own parameters."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from ...activation import ACTIVATIONS
from ...problem import Problem, ProblemError
from ...runtime import layer as layers
from ...runtime.layer import MegaMoE
from .adopted_weights import Parameters, adopt
from .shared_parts import combine_element, new_layer, recipe_of

VARIABLE = "MEGAMOE_SGLANG"
ACTIVATION_NAMES = {"swiglu": "silu", "swigluoai": "swigluoai", "situ": "situ"}
"""SGLang's names of activations, and this project's."""


class RunnerConfig(Protocol):
    """What is read of `sglang.srt.layers.moe.moe_runner.base.MoeRunnerConfig`."""

    activation: str
    is_gated: bool
    gemm1_alpha: float | None
    gemm1_beta: float | None
    gemm1_clamp_limit: float | None
    swiglu_limit: float | None
    gate_up_interleaved: bool
    apply_router_weight_on_input: bool


class Experts(Protocol):
    """What is read of `sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE`, and written to it."""

    num_experts: int
    top_k: int
    with_bias: bool
    moe_ep_size: int
    moe_tp_size: int
    moe_runner_config: RunnerConfig
    should_fuse_routed_scaling_factor_in_topk: bool
    _mega_moe_w4a4: bool
    _mega_moe_weights_built: bool


class Settings(Protocol):
    """What is read of `sglang.srt.arg_groups.fields.device.Device`."""

    watchdog_timeout: float


class Environment(Protocol):
    """What is read of `sglang.srt.environ.Envs`."""

    SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK: Any
    SGLANG_OPT_DEEPGEMM_MEGA_MOE_RESERVED_SMS: Any


class MiniMaxLayer(Protocol):
    """What is read of `sglang.srt.models.minimax_m3.MiniMaxM3MoE`: an attribute of its experts."""

    _minimax_activation: str


LAYERS: WeakKeyDictionary[Any, MegaMoE] = WeakKeyDictionary()
"""Experts that run here.  Not their attributes: a module's attributes are its submodules."""


def build(experts: Any, names: dict[str, str]) -> None:
    """Makes the layer of some experts, or loads it anew, and moves their parameters to its memory.  Raises `ProblemError` for a format, a
    shape, an activation or a parallelism that no kernel here has."""
    parameters = {field: getattr(experts, name) for field, name in names.items()}
    if experts not in LAYERS:
        LAYERS[experts] = layer_of(problem_of(experts, parameters), parameters["fc1"].device)
    adopt(LAYERS[experts], parameters)
    experts._mega_moe_weights_built = True


def problem_of(experts: Experts, parameters: Parameters) -> Problem:
    """What the experts compute.  Raises `ProblemError`."""
    config, arch = experts.moe_runner_config, layers.device_arch(parameters["fc1"].device)
    for name, value, allowed in (
        ("moe_tp_size", experts.moe_tp_size, 1),
        ("with_bias", experts.with_bias, False),
        ("is_gated", config.is_gated, True),
        ("apply_router_weight_on_input", config.apply_router_weight_on_input, False),
    ):
        if value != allowed:
            raise ProblemError(name, value, f"{allowed} with {VARIABLE}=1")
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


def activation_of(experts: Any) -> str:
    """SGLang's name of the experts' activation.  Raises `ProblemError` for one that no kernel here has."""
    config: RunnerConfig = experts.moe_runner_config
    if config.activation not in ("silu", "situ"):
        raise ProblemError("activation", config.activation, "silu or situ")
    name: str = getattr(experts, "_minimax_activation", "swiglu" if config.gemm1_alpha is None else "swigluoai")
    name = "situ" if config.activation == "situ" else name
    if name not in ACTIVATION_NAMES:
        raise ProblemError("activation", name, ", ".join(ACTIVATION_NAMES))
    ours = ACTIVATIONS[ACTIVATION_NAMES[name]]
    if name == "swigluoai" and config.gate_up_interleaved:
        raise ProblemError("gate_up_interleaved", True, "False: rows of w13 are gate, then up")
    found, known = {
        "swiglu": ((), ()),
        "swigluoai": ((config.gemm1_alpha, config.gemm1_beta), (ours.slope, ours.up_offset)),
        "situ": ((config.gemm1_alpha, config.gemm1_clamp_limit), (ours.gate_limit, ours.up_limit)),
    }[name]
    if found != known:
        raise ProblemError(f"constants of {name}", found, str(known))
    return name


def layer_of(problem: Problem, device: torch.device) -> MegaMoE:
    """A new layer with SGLang's settings."""
    from sglang.srt.runtime_context import get_parallel, get_server_args

    field = environment().SGLANG_OPT_DEEPGEMM_MEGA_MOE_RESERVED_SMS
    # The default is that of a kernel for SM100; SGLang has SM90's run on all SMs.
    reserved = max(0, field.get()) if layers.device_arch(device).has_tensor_memory or field.is_set() else 0
    group = get_parallel().moe_ep_group.device_group if problem.num_ranks > 1 else None
    settings: Settings = get_server_args()
    return new_layer(problem, device, group, reserved, settings.watchdog_timeout)


def environment() -> Environment:
    """SGLang's environment variables; a `get` of one reads it."""
    from sglang.srt.environ import envs

    found: Environment = envs
    return found


def num_tokens_bound(rows: int) -> int:
    """The most tokens that a data-parallel rank has in this step, as SGLang knows them; this rank's, where it knows none."""
    from sglang.srt.layers.dp_attention import get_dp_global_num_tokens

    return max([1, rows, *(get_dp_global_num_tokens() or [])])
