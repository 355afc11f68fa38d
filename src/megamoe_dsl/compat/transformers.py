"""Experts of Hugging Face transformers on this project's kernels.

    import megamoe_dsl.compat.transformers
    model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", device_map="cuda", experts_implementation="megamoe")

Importing this module registers "megamoe" in `ExpertsInterface` (BF16 weights) and `FP8ExpertsInterface` (E4M3 weights with a scale for
every 128 x 128).  A layer that `moe` does not take runs as "grouped_mm", and a warning says once why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from transformers.activations import ACT2FN
from transformers.integrations import moe as experts_module
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ..kernels.expert_layer import ExpertLayer
from ..problem import ProblemError
from ..runtime.experts import moe

NAME = "megamoe"
"""What `experts_implementation` is set to."""
FALLBACK = "grouped_mm"
SILU = type(ACT2FN["silu"])
SCALE_BLOCK = (128, 128)

Experts = Any
"""A module that `use_experts_implementation` decorates, or `FP8Experts`."""


def experts_forward(self: Experts, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """y of BF16 experts: hidden_states [T, H], top_k_index [T, k], top_k_weights [T, k] of any floating type; [T, H] in BF16."""
    if reason := bf16_refusal(self, hidden_states):
        return fall_back(ALL_EXPERTS_FUNCTIONS, self, reason, hidden_states, top_k_index, top_k_weights)
    gate_up = "gate_first" if self.is_concatenated else "interleaved"
    weights = self.gate_up_proj, None, self.down_proj, None
    return moe(hidden_states, *weights, top_k_index, top_k_weights.float(), gate_up=gate_up)


def fp8_experts_forward(self: Experts, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """y of experts with E4M3 weights; tokens are quantized to E4M3 per 128 channels."""
    if reason := fp8_refusal(self, hidden_states):
        return fall_back(ALL_FP8_EXPERTS_FUNCTIONS, self, reason, hidden_states, top_k_index, top_k_weights)
    weights = self.gate_up_proj, self.gate_up_proj_scale_inv, self.down_proj, self.down_proj_scale_inv
    return moe(hidden_states, *weights, top_k_index, top_k_weights.float())


def bf16_refusal(experts: Experts, hidden_states: torch.Tensor) -> str:
    """Why `moe` does not take a layer with weights in BF16; empty where it does."""
    if experts.has_bias:
        return "its experts have biases"
    if experts.is_transposed:
        return "its weights are transposed"
    if getattr(experts, "has_post_expert_norm", False):
        return "a norm follows each expert"
    if not experts.has_gate or type(experts)._apply_gate is not experts_module._default_apply_gate:
        return "its activation is not silu(gate) * up"
    if experts.gate_up_proj.dtype != torch.bfloat16:
        return f"its weights are {experts.gate_up_proj.dtype}, not torch.bfloat16"
    return common_refusal(experts, hidden_states, "bf16xbf16")


def fp8_refusal(experts: Experts, hidden_states: torch.Tensor) -> str:
    """The same of a layer with weights in E4M3."""
    plain = all(getattr(experts, name, None) is None for name in ("swiglu_alpha", "limit", "gate_softcap"))
    if not experts.has_gate or not plain or type(experts)._apply_gate is not FP8Experts._apply_gate:
        return "its activation is not silu(gate) * up"
    if experts.gate_up_proj.dtype != torch.float8_e4m3fn or experts.gate_up_proj_scale_inv.dtype != torch.float32:
        return f"its weights are {experts.gate_up_proj.dtype} with scales of {experts.gate_up_proj_scale_inv.dtype}"
    if experts.block_size is None or tuple(experts.block_size) != SCALE_BLOCK or experts.activation_scheme != "dynamic":
        return f"its scales are of {experts.block_size}, {experts.activation_scheme}"
    if torch.is_grad_enabled() and (hidden_states.requires_grad or experts.gate_up_proj.requires_grad or experts.down_proj.requires_grad):
        return "gradients are asked for; use torch.no_grad() or model.requires_grad_(False)"
    return common_refusal(experts, hidden_states, "fp8xfp8")


def common_refusal(experts: Experts, hidden_states: torch.Tensor, recipe: str) -> str:
    """Why weights in either format are refused: an activation, a dtype or a shape."""
    if not isinstance(experts.act_fn, (SILU, torch.nn.SiLU)):
        return "its activation is not silu(gate) * up"
    if hidden_states.dtype != torch.bfloat16:
        return f"hidden states are {hidden_states.dtype}, not torch.bfloat16"
    return shape_refusal(experts.down_proj.shape[1], experts.down_proj.shape[2], experts.down_proj.shape[0], recipe)


@torch.compiler.assume_constant_result
def shape_refusal(hidden: int, intermediate: int, num_experts: int, recipe: str) -> str:
    """What `ExpertLayer` says against a shape; a compiler takes the answer as a constant."""
    try:
        ExpertLayer(hidden, intermediate, num_experts, 1, recipe=recipe)
    except ProblemError as error:
        return str(error)
    return ""


def fall_back(functions: Any, experts: Experts, reason: str, *given: torch.Tensor) -> torch.Tensor:
    """The layer as transformers computes it itself, with one warning for each kind of layer and reason."""
    if not torch.compiler.is_compiling():
        warn_once(type(experts).__name__, reason)
    forward: Callable[..., torch.Tensor] = functions[FALLBACK]
    return forward(experts, *given)


@lru_cache
def warn_once(layer: str, reason: str) -> None:
    """One line in the log for each pair of layer and reason."""
    logging.getLogger("megamoe_dsl").warning("%s runs as %r, not %r: %s", layer, FALLBACK, NAME, reason)


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, fp8_experts_forward)
