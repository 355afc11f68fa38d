"""The fused calls: y from the inputs in a symmetric buffer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import torch

from ...arch import Arch
from ...problem import Problem, ProblemError, integer_between
from ...quant import TransformedWeights, new_weights, weight_names
from ...runtime.buffers import check_aligned, check_device, check_output, check_tensor
from ...runtime.gemm_scales import TMA_ALIGNMENT
from .buffer import SymmBuffer
from .names import MmaType, refuse
from .weights import Weights, scale_words

_PLACES = {"fc1": "l1_weights[0]", "fc1_sf": "l1_weights[1]", "fc1_bias": "l1_weights[2]"}
_GIVEN_AS = _PLACES | {name.replace("fc1", "fc2"): place.replace("l1", "l2") for name, place in _PLACES.items()}
_NO_NVFP4 = "no NVFP4 in the drop-in, MegaMoE has it"
_NVFP4_ONLY = f"None: {_NO_NVFP4}"
_SHARED = "shared experts are the last of a rank's routed ones"


def fp8_mega_moe(
    y: torch.Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (128, 128, 128),
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
    num_tokens_bound: int | None = None,
) -> None:
    """FP8 x FP8 on SM90, on torch's current stream.

    y                 bf16 [num_tokens, hidden]: its rows say how many tokens of the buffer count
    l1_weights, l2_weights   what `transform_weights_for_mega_moe_sm90` returns, with biases where it was given biases
    cumulative_local_expert_recv_stats   int32 [experts of this rank], to which the tokens received are added
    activation        swiglu, swigluoai or situ
    activation_clamp  None or infinity for none, also with swigluoai
    num_tokens_bound  at least the tokens of every rank: chooses the kernel; None is the buffer's capacity

    Raises `ProblemError` before anything is launched.
    """
    _check_call("fp8_mega_moe", sym_buffer.mma, recipe)
    layer = sym_buffer.layer(activation, activation_clamp, fast_math, len(l1_weights) > 2)
    _run(y, l1_weights, l2_weights, sym_buffer, cumulative_local_expert_recv_stats, layer, num_tokens_bound)


def fp8_fp4_mega_moe(
    y: torch.Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    sym_buffer: SymmBuffer,
    shared_l1_weights: Weights | None = None,
    shared_l2_weights: Weights | None = None,
    cumulative_local_expert_recv_stats: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 32),
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
    use_x_scales: bool = False,
    l1_alphas: torch.Tensor | None = None,
    l2_alphas: torch.Tensor | None = None,
    l2_act_scales: torch.Tensor | None = None,
    weight_layout: str = "megamoe",
    global_num_tokens: int | None = None,
    post_expert_norm: bool = False,
    post_expert_norm_weight: torch.Tensor | None = None,
    post_expert_norm_eps: float = 1e-6,
    post_expert_norm_weight_first: bool = False,
    *,
    num_tokens_bound: int | None = None,
) -> None:
    """4-bit formats, and MXFP8 on SM100; on SM90 MXFP4 weights.  Other arguments as of `fp8_mega_moe`.

    l1_weights, l2_weights   what the architecture's transform of weights returns
    global_num_tokens  tokens of all ranks, which choose the kernel without `num_tokens_bound`

    Shared experts, factors of NVFP4, TRT-LLM's order of weights and a norm after each expert are refused.  Raises `ProblemError` before
    anything is launched.
    """
    refuse("shared_l1_weights", shared_l1_weights, f"None: {_SHARED}")
    refuse("shared_l2_weights", shared_l2_weights, f"None: {_SHARED}")
    refuse("use_x_scales", use_x_scales, f"False: {_NO_NVFP4}")
    for name, factors in (("l1_alphas", l1_alphas), ("l2_alphas", l2_alphas), ("l2_act_scales", l2_act_scales)):
        refuse(name, factors, _NVFP4_ONLY)
    if weight_layout != "megamoe":
        raise ProblemError("weight_layout", weight_layout, "'megamoe'")
    norm = "no kernel here has a norm after each expert"
    refuse("post_expert_norm", post_expert_norm, f"False: {norm}")
    refuse("post_expert_norm_weight", post_expert_norm_weight, f"None: {norm}")
    _check_call("fp8_fp4_mega_moe", sym_buffer.mma, recipe)
    layer = sym_buffer.layer(activation, activation_clamp, fast_math, len(l1_weights) > 2)
    _run(y, l1_weights, l2_weights, sym_buffer, cumulative_local_expert_recv_stats, layer, num_tokens_bound, global_num_tokens)


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function of DeepGEMM that this project lacks; calls raise `ProblemError`."""

    def call(*_: Any, **__: Any) -> NoReturn:
        raise ProblemError("function", name, instead)

    return call


_OWN_BF16 = "MegaMoE with recipe bf16xbf16, EpMoE, or moe on one GPU"
bf16_mega_moe = _refused("bf16_mega_moe", f"megamoe_dsl.{_OWN_BF16}: no function here has BF16 weights")
nvfp4_mega_moe = _refused("nvfp4_mega_moe", f"MegaMoE: {_NO_NVFP4}")
transform_scales_for_mega_moe = _refused("transform_scales_for_mega_moe", f"transform_weights_for_mega_moe: {_NO_NVFP4}")
get_block_m_for_mega_moe = _refused("get_block_m_for_mega_moe", f"none, as no caller lays scales out by it: {_SHARED}")


def _run(
    y: torch.Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    buffer: SymmBuffer,
    stats: torch.Tensor | None,
    problem: Problem,
    *tokens: int | None,
) -> None:
    bound = _bound(problem, y, *tokens)
    buffer.check_current()
    device = buffer.symmetric.sym.device
    check_output("y", y, (y.shape[0], problem.hidden), device)
    if stats is not None:
        check_tensor("cumulative_local_expert_recv_stats", stats, torch.int32, (problem.experts_per_rank,), device)
    weights = _in_kernel_order(problem, buffer.target.arch, l1_weights, l2_weights)
    for name in weight_names(problem):
        place, tensor = _GIVEN_AS[name], getattr(weights, name)
        check_device(place, tensor, device)
        if not name.endswith("bias") and tensor.dtype != torch.float32:
            check_aligned(place, tensor, TMA_ALIGNMENT)
    buffer.kernel(weights, stats, problem, bound)(y)


def _bound(problem: Problem, y: torch.Tensor, bound: int | None, of_all_ranks: int | None = None) -> int:
    """Tokens of a rank for which a kernel is chosen, at least 1.  Raises `ProblemError`."""
    rows, most = problem.check_num_tokens(y.shape[0], "y.shape[0]"), problem.max_tokens_per_rank
    if bound is not None:
        allowed = f"between y.shape[0] = {rows} and the buffer's capacity {most}"
        return max(1, integer_between("num_tokens_bound", bound, rows, most, allowed))
    if of_all_ranks is None:
        return most
    capacity = problem.num_ranks * most
    tokens = integer_between("global_num_tokens", of_all_ranks, 0, capacity, f"between 0 and the capacity of all ranks, {capacity}")
    return max(1, -(-tokens // problem.num_ranks))


def _check_call(name: str, mma: MmaType, recipe: Any) -> None:
    """Raises `ProblemError` for a buffer that another function runs, and for scales other than the buffer's."""
    if name != mma.call:
        raise ProblemError("sym_buffer", f"one of {mma.recipe}", f"one that {name} runs; this is for {mma.call}")
    if tuple(recipe) != mma.numbers:
        raise ProblemError("recipe", recipe, str(mma.numbers))


_expected = lru_cache(new_weights)


def _in_kernel_order(problem: Problem, arch: Arch, l1: Weights, l2: Weights) -> TransformedWeights:
    """Views of the weights as `TransformedWeights`.  Raises `ProblemError` unless a transform returned them."""
    how = "transform_weights_for_mega_moe" + ("" if arch.has_tensor_memory else "_sm90")
    if len(l1) != len(l2) or len(l1) not in (2, 3):
        raise ProblemError("l2_weights", f"{len(l2)} tensors beside {len(l1)} of l1_weights", f"what {how} returns")
    if arch.has_tensor_memory:
        l1, l2 = ((codes, scale_words(scales), *bias) for codes, scales, *bias in (l1, l2))
    (fc1, fc1_sf, *biases1), (fc2, fc2_sf, *biases2) = l1, l2
    found = TransformedWeights(fc1, fc1_sf, fc2, fc2_sf, *biases1, *biases2)
    for name in weight_names(problem):
        tensor, want = getattr(found, name), getattr(_expected(problem, arch, "meta"), name)
        if tensor.dtype != want.dtype or tensor.shape != want.shape or not tensor.is_contiguous():
            shape = f"{want.dtype} {tuple(want.shape)}, contiguous, as {how} returns it"
            raise ProblemError(_GIVEN_AS[name], f"{tensor.dtype} {tuple(tensor.shape)}", shape)
    return found
