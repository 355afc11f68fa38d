"""The fused calls: y from the inputs in a symmetric buffer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ...arch import Arch
from ...problem import Problem, ProblemError, integer_between
from ...quant import WEIGHT_NAMES, TransformedWeights, new_weights
from ...runtime.buffers import check_device, check_output, check_tensor
from .buffer import SymmBuffer, check_swiglu
from .scale_layout import scale_words

Weights = tuple[torch.Tensor, torch.Tensor]
_GIVEN_AS = dict(zip(WEIGHT_NAMES, ("l1_weights[0]", "l1_weights[1]", "l2_weights[0]", "l2_weights[1]"), strict=True))


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
    l1_weights, l2_weights   what `transform_weights_for_mega_moe_sm90` returns
    cumulative_local_expert_recv_stats   int32 [experts of this rank], to which the tokens received are added
    num_tokens_bound  at least the tokens of every rank: chooses the kernel; None is the buffer's capacity

    Raises `ProblemError` before anything is launched.
    """
    _check_recipe(recipe, (128, 128, 128))
    check_swiglu(activation)
    _run(y, l1_weights, l2_weights, sym_buffer, cumulative_local_expert_recv_stats, activation_clamp, fast_math, num_tokens_bound)


def fp8_fp4_mega_moe(
    y: torch.Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: torch.Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 32),
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
    num_tokens_bound: int | None = None,
    shared_l1_weights: Weights | None = None,
    shared_l2_weights: Weights | None = None,
) -> None:
    """FP8 x FP4 on SM100; weights as `transform_weights_for_mega_moe` returns them, the rest as `fp8_mega_moe`."""
    _check_recipe(recipe, (1, 1, 32))
    check_swiglu(activation)
    if shared_l1_weights is not None or shared_l2_weights is not None:
        raise ProblemError("shared_l1_weights", "given", "None: shared experts are not fused")
    _run(y, l1_weights, l2_weights, sym_buffer, cumulative_local_expert_recv_stats, activation_clamp, fast_math, num_tokens_bound)


def _run(
    y: torch.Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    buffer: SymmBuffer,
    stats: torch.Tensor | None,
    activation_clamp: float | None,
    fast_math: bool,
    num_tokens_bound: int | None,
) -> None:
    problem = buffer.problem
    rows = problem.check_num_tokens(y.shape[0], "y.shape[0]")
    check_output("y", y, (rows, problem.hidden))
    device = buffer.symmetric.sym.device
    check_device("y", y, device)
    if stats is not None:
        check_tensor("cumulative_local_expert_recv_stats", stats, torch.int32, (problem.experts_per_rank,))
        check_device("cumulative_local_expert_recv_stats", stats, device)
    most = problem.max_tokens_per_rank
    bound = most if num_tokens_bound is None else max(1, _check_bound(num_tokens_bound, rows, most))
    weights = _in_kernel_order(problem, buffer.target.arch, l1_weights, l2_weights)
    buffer.kernel(weights, stats, activation_clamp, fast_math, bound)(y)


def _check_bound(bound: int, rows: int, most: int) -> int:
    return integer_between("num_tokens_bound", bound, rows, most, f"between y.shape[0] = {rows} and the buffer's capacity {most}")


def _check_recipe(recipe: Any, allowed: tuple[int, int, int]) -> None:
    if tuple(recipe) != allowed:
        raise ProblemError("recipe", recipe, str(allowed))


@lru_cache
def _expected(problem: Problem, arch: Arch) -> TransformedWeights:
    return new_weights(problem, arch, "meta")


def _in_kernel_order(problem: Problem, arch: Arch, l1: Weights, l2: Weights) -> TransformedWeights:
    """The same memory, as `TransformedWeights` has it.  Raises `ProblemError` for what no transform returns."""
    if arch.has_tensor_memory:
        l1, l2 = ((codes.view(torch.uint8), scale_words(scales)) for codes, scales in (l1, l2))
    found = TransformedWeights(*l1, *l2)
    for name in WEIGHT_NAMES:
        tensor, want = getattr(found, name), getattr(_expected(problem, arch), name)
        if tensor.dtype != want.dtype or tensor.shape != want.shape or not tensor.is_contiguous():
            how = "transform_weights_for_mega_moe" + ("" if arch.has_tensor_memory else "_sm90")
            shape = f"{want.dtype} {tuple(want.shape)}, contiguous, as {how} returns it"
            raise ProblemError(_GIVEN_AS[name], f"{tensor.dtype} {tuple(tensor.shape)}", shape)
    return found
