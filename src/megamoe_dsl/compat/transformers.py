"""Experts of Hugging Face transformers on this project's kernels.

    import megamoe_dsl.compat.transformers
    model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", device_map="cuda", experts_implementation="megamoe")

Importing this module registers "megamoe" for BF16 weights, E4M3 weights with a scale for every 128 x 128, and a rank's experts of either.
A layer that `moe` does not take runs as "grouped_mm", and a warning says once why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch.distributed import all_gather_into_tensor
from transformers.activations import ACT2FN
from transformers.integrations import moe as experts_module
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ..activation import ACTIVATIONS
from ..kernels.expert_layer import ExpertLayer
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights, no_scales
from ..reference import activate
from ..runtime.custom_op import check_no_gradient
from ..runtime.experts import moe
from ..runtime.moe_layer import MoE

try:
    from transformers.distributed import expert_parallel
except ImportError:  # 5.17 has none
    expert_parallel = None  # type: ignore[assignment]
__all__ = ["NAME", "experts_forward", "fp8_experts_forward", "layer_of", "prepare"]
NAME = "megamoe"
"""What `experts_implementation` is set to."""
FALLBACK = "grouped_mm"
SILU = type(ACT2FN["silu"])
SCALE_BLOCK = (128, 128)

BIAS_DTYPES = (torch.bfloat16, torch.float32)
"""Of biases, and of top-k weights that are not converted."""
Gate = tuple[str, float | None]
"""An activation (activation.py), and its clamp; None is the activation's own."""
REACH = 20
"""The largest magnitude that is tried: beyond clamps of models."""
KNOWN = "megamoe_activation"
"""Attribute of a layer of experts, once it is prepared: its activation and clamp, or None."""
LIMITS = ("limit", "swiglu_limit")
"""Attributes of layers that clamp gate and up."""
WEIGHTS = ("gate_up_proj", "down_proj")

Experts = Any
"""A module that `use_experts_implementation` decorates, or `FP8Experts`."""


def experts_forward(self: Experts, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """y of BF16 experts: hidden_states [T, H], top_k_index [T, k], top_k_weights [T, k] of any floating type; [T, H] in BF16."""
    prepare_first(self, hidden_states)
    if reason := bf16_refusal(self, hidden_states):
        return fall_back(ALL_EXPERTS_FUNCTIONS, self, reason, hidden_states, top_k_index, top_k_weights)
    w1, w2 = (one.transpose(1, 2) if self.is_transposed else one for one in (self.gate_up_proj, self.down_proj))
    biases = {"w1_bias": self.gate_up_proj_bias, "w2_bias": self.down_proj_bias} if self.has_bias else {}
    gate_up = "gate_first" if self.is_concatenated else "interleaved"
    return moe(hidden_states, w1, None, w2, None, top_k_index, as_taken(top_k_weights), gate_up=gate_up, **biases, **activation_of(self))


def fp8_experts_forward(self: Experts, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """y of experts with E4M3 weights; tokens are quantized to E4M3 per 128 channels."""
    prepare_first(self, hidden_states)
    if reason := fp8_refusal(self, hidden_states):
        return fall_back(ALL_FP8_EXPERTS_FUNCTIONS, self, reason, hidden_states, top_k_index, top_k_weights)
    weights = self.gate_up_proj, self.gate_up_proj_scale_inv, self.down_proj, self.down_proj_scale_inv
    return moe(hidden_states, *weights, top_k_index, as_taken(top_k_weights), **activation_of(self))


def layer_of(experts: Experts, topk: int, max_tokens: int, **others: Any) -> MoE:
    """A `MoE` with the weights and the activation of a layer of transformers; `others` as of `MoE.of`.

    Weights are used in place; interleaved and transposed ones are copied.  Raises `ProblemError` for an activation that no kernel has."""
    prepare_layer(experts)
    gate = gate_of(experts)
    if gate is None:
        raise ProblemError("experts._apply_gate", type(experts).__name__, "an activation of the table")
    w1, w2 = ((one.transpose(1, 2) if is_transposed(experts) else one).detach() for one in (experts.gate_up_proj, experts.down_proj))
    biases = [getattr(experts, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj")]
    if not getattr(experts, "is_concatenated", True):
        w1, biases[0] = (None if one is None else torch.cat([one[:, ::2], one[:, 1::2]], dim=1) for one in (w1, biases[0]))
    scales = [getattr(experts, f"{name}_scale_inv", None) for name in ("gate_up_proj", "down_proj")]
    w1_sf, w2_sf = (no_scales(one) if sf is None else sf.detach() for one, sf in zip((w1, w2), scales, strict=True))
    weights = ExpertWeights(w1, w1_sf, w2, w2_sf, *(None if one is None else one.detach() for one in biases))
    fields = {"activation": gate[0], "activation_clamp": gate[1]}
    return MoE.of(weights, topk, max_tokens, fields=fields, **others)


def as_taken(top_k_weights: torch.Tensor) -> torch.Tensor:
    """Top-k weights in a dtype that `moe` reads: FP32, unless they are BF16."""
    return top_k_weights if top_k_weights.dtype in BIAS_DTYPES else top_k_weights.float()


def prepare_first(experts: Experts, hidden_states: torch.Tensor) -> None:
    """`prepare_layer`, but not while a compiler traces, a CUDA graph is captured, or for the experts of one rank."""
    whole = not getattr(experts, "_is_expert_parallel", False)
    if whole and not torch.compiler.is_compiling() and not (hidden_states.is_cuda and torch.cuda.is_current_stream_capturing()):
        prepare_layer(experts)


def gate_of(experts: Experts) -> Gate | None:
    """The activation of a layer and its clamp; None where `moe` has no such activation, or the layer is not prepared."""
    if KNOWN in vars(experts):
        gate: Gate | None = getattr(experts, KNOWN)
        return gate
    own = type(experts)._apply_gate
    plain = all(getattr(experts, name, None) is None for name in ("swiglu_alpha", "limit", "gate_softcap"))
    silu = experts.has_gate and isinstance(experts.act_fn, (SILU, torch.nn.SiLU))
    return ("silu", None) if silu and plain and own in (experts_module._default_apply_gate, FP8Experts._apply_gate) else None


def activation_of(experts: Experts) -> dict[str, Any]:
    """The arguments of `moe` that say what a layer's gate computes."""
    name, clamp = gate_of(experts) or ("silu", None)
    return {"activation": name, "activation_clamp": clamp}


def bf16_refusal(experts: Experts, hidden_states: torch.Tensor) -> str:
    """Why `moe` does not take a layer with weights in BF16; empty where it does."""
    if getattr(experts, "has_post_expert_norm", False):
        return "a norm follows each expert"
    if experts.is_transposed and not lies_by_rows(experts):
        return "its transposed weights lie as they were loaded: call prepare(model) before it is compiled, captured or sharded"
    if experts.gate_up_proj.dtype != torch.bfloat16:
        return f"its weights are {experts.gate_up_proj.dtype}, not torch.bfloat16"
    odd = experts.has_bias or any(size % SCALE_BLOCK[0] for size in experts.down_proj.shape[1:])
    if odd and hidden_states.is_cuda and torch.cuda.get_device_capability(hidden_states.device)[0] != 9:
        return f"biases, and channels that are no multiple of {SCALE_BLOCK[0]}, need SM90"
    return bias_refusal(experts, hidden_states) or common_refusal(experts, hidden_states, "bf16xbf16")


def bias_refusal(experts: Experts, hidden_states: torch.Tensor) -> str:
    """Why `moe` does not take a layer's biases; empty where it does, or there are none."""
    if not experts.has_bias:
        return ""
    biases = experts.gate_up_proj_bias, experts.down_proj_bias
    if len({one.dtype for one in biases}) > 1 or biases[0].dtype not in BIAS_DTYPES:
        return f"its biases are {biases[0].dtype} and {biases[1].dtype}"
    return "gradients are asked for, and biases have none" if asked_for_gradients(experts, hidden_states, *biases) else ""


def asked_for_gradients(experts: Experts, *others: torch.Tensor) -> bool:
    """Whether autograd follows these tensors, or a layer's weights."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in (experts.gate_up_proj, experts.down_proj, *others))


def fp8_refusal(experts: Experts, hidden_states: torch.Tensor) -> str:
    """Why `moe` does not take a layer with E4M3 weights; empty where it does."""
    if experts.gate_up_proj.dtype != torch.float8_e4m3fn or experts.gate_up_proj_scale_inv.dtype != torch.float32:
        return f"its weights are {experts.gate_up_proj.dtype} with scales of {experts.gate_up_proj_scale_inv.dtype}"
    if experts.block_size is None or tuple(experts.block_size) != SCALE_BLOCK or experts.activation_scheme != "dynamic":
        return f"its scales are of {experts.block_size}, {experts.activation_scheme}"
    if asked_for_gradients(experts, hidden_states):
        return "gradients are asked for; use torch.no_grad() or model.requires_grad_(False)"
    return common_refusal(experts, hidden_states, "fp8xfp8")


def common_refusal(experts: Experts, hidden_states: torch.Tensor, recipe: str) -> str:
    """Why weights in either format are refused: an activation, a dtype or a shape."""
    gate = gate_of(experts)
    if gate is None:
        return "its gate computes no activation that moe has"
    if gate != ("silu", None) and asked_for_gradients(experts, hidden_states):
        return "gradients are asked for, which its clamped activation has not"
    if hidden_states.dtype != torch.bfloat16:
        return f"hidden states are {hidden_states.dtype}, not torch.bfloat16"
    down = experts.down_proj.transpose(1, 2) if is_transposed(experts) else experts.down_proj
    return shape_refusal(down.shape[1], down.shape[2], down.shape[0], recipe)


@torch.compiler.assume_constant_result
def shape_refusal(*shape: Any) -> str:
    """What `ExpertLayer` says against a shape and a recipe; a compiler takes the answer as a constant."""
    return known_refusal(*shape)


@lru_cache
def known_refusal(hidden: int, intermediate: int, num_experts: int, recipe: str) -> str:
    """What `shape_refusal` says, found once for each shape."""
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


def prepare(model: torch.nn.Module) -> int:
    """Prepares every layer of experts of a model, and returns how many there are.  A layer prepares itself at its first call.  Prepare a
    model before it is compiled or captured in a CUDA graph where weights are transposed (gpt-oss), or the gate is not silu(gate) * up."""
    layers = [one for one in model.modules() if hasattr(one, "_apply_gate") and hasattr(one, "has_gate")]
    for one in layers:
        prepare_layer(one)
    return len(layers)


def prepare_layer(experts: Experts) -> None:
    """Recognizes the gate, and lays transposed weights out by rows."""
    if KNOWN not in vars(experts):
        setattr(experts, KNOWN, recognized(experts) if experts.has_gate else None)
    if is_transposed(experts) and not lies_by_rows(experts):
        for name in WEIGHTS:
            lay_out(getattr(experts, name))


def is_transposed(experts: Experts) -> bool:
    """Whether a weight is [experts, channels in, channels out]."""
    return bool(getattr(experts, "is_transposed", False))


def lies_by_rows(experts: Experts) -> bool:
    """Whether transposed weights have been laid out."""
    return all(getattr(experts, name).transpose(1, 2).is_contiguous() for name in WEIGHTS)


@torch.inference_mode(False)
@torch.no_grad()
def lay_out(weight: torch.Tensor) -> None:
    """Moves a weight [experts, K, rows] in memory, so that K of a row lies together; shape and values stay, and so do all who use them."""
    weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)


def recognized(experts: Experts) -> Gate | None:
    """The activation that a layer's `_apply_gate` computes, and its clamp; None where `moe` has no such activation."""
    limits = {value for name in LIMITS if (value := getattr(experts, name, None)) is not None}
    return recognized_activation(experts._apply_gate, not getattr(experts, "is_concatenated", True), limits)


@torch.no_grad()
def recognized_activation(function: Callable[[torch.Tensor], torch.Tensor], interleaved: bool, limits: Iterable[float]) -> Gate | None:
    """The activation that `function` computes of float32 [1, 2 n] on the CPU, and its clamp, which is among `limits`.  Columns are gate,
    then up, or alternate where `interleaved`.  None where the function computes no activation of the table."""
    numbers = torch.arange(-2 * REACH, 2 * REACH + 1, dtype=torch.float32, device="cpu") / 2
    gate, up = (one.flatten() for one in torch.meshgrid(numbers, numbers, indexing="ij"))
    halves = torch.cat([gate, up])[None]
    found = function(torch.stack([gate, up], dim=1).flatten()[None] if interleaved else halves)
    for name, activation in ACTIVATIONS.items():
        for clamp in (None, *(limits if activation.clampable else ())):
            formulas = Problem(256, 128, 1, 1, activation=name, activation_clamp=clamp, fast_math=False)
            expected = activate(formulas, halves, None)
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
                return name, clamp
    return None


class MoEOfRanks(expert_parallel.EPImplementation if expert_parallel else object):  # type: ignore[misc]
    """Experts of ranks that share a batch, as one `MoE` over their group: each rank takes an equal part of the tokens, which the layer
    sends where their experts are, and results are gathered.  Inference alone; the weights are those of the first call."""

    needs_shared_batch = True

    def __init__(self, experts: Experts, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.experts = experts
        self.layers: dict[tuple[int, int], MoE] = {}

    def __call__(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """y of all tokens of the batch.  Raises `ProblemError`, also for tensors that require grad."""
        weights = self.experts.gate_up_proj, self.experts.down_proj
        check_no_gradient(("hidden_states", "top_k_weights", "gate_up_proj", "down_proj"), (hidden_states, top_k_weights, *weights))
        ranks, rank, (tokens, topk) = self.ep_mesh.size(), self.ep_mesh.get_local_rank(), top_k_index.shape
        rows = max(1, -(-tokens // ranks))
        part = slice(rank * rows, (rank + 1) * rows)
        most = 1 << (rows - 1).bit_length()
        if (most, topk) not in self.layers:
            self.layers[most, topk] = layer_of(self.experts, topk, most, group=self.ep_mesh.get_group())
        y = hidden_states.new_zeros(rows, hidden_states.shape[1])
        found = self.layers[most, topk](hidden_states[part], top_k_index[part], top_k_weights[part].float())
        y[: len(found)] = found
        gathered = y.new_empty(rows * ranks, y.shape[1])
        all_gather_into_tensor(gathered, y, group=self.ep_mesh.get_group())
        return gathered[:tokens]


if expert_parallel:
    expert_parallel.EPImplementationInterface.register(NAME, MoEOfRanks)
ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, fp8_experts_forward)
