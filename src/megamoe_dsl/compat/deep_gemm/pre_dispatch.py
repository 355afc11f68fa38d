"""DeepGEMM's functions that quantize BF16 tokens into a symmetric buffer."""

from __future__ import annotations

import torch

from ...problem import ProblemError, integer_between
from ...recipe import RECIPES
from ...runtime.buffers import check_layout, check_tensor
from .buffer import buffer_of
from .names import mma_type_of, refuse


def mega_moe_pre_dispatch_sm90(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    buf_x: torch.Tensor,
    buf_x_sf: torch.Tensor,
    buf_topk_idx: torch.Tensor,
    buf_topk_weights: torch.Tensor,
    num_tokens: int,
    group_size: int = 128,
    routed_scaling_factor: float = 1.0,
) -> None:
    """Tokens for `fp8_mega_moe`, on torch's current stream.

    x             bf16 [num_tokens or more, hidden]
    topk_idx      int32 or int64 [num_tokens or more, topk]; topk_weights float32, multiplied with routed_scaling_factor
    buf_...       views of one buffer, from its first row on; rows of buf_topk_idx past num_tokens are masked

    Raises `ProblemError` before anything is launched.
    """
    weights = topk_weights if routed_scaling_factor == 1.0 else topk_weights * routed_scaling_factor
    buffers = (buf_x, buf_x_sf, buf_topk_idx, buf_topk_weights)
    mega_moe_pre_dispatch(x, topk_idx, weights, *buffers, num_tokens, group_size, buffer_of(buf_x).mma_type)


def mega_moe_pre_dispatch(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    buf_x: torch.Tensor,
    buf_x_sf: torch.Tensor,
    buf_topk_idx: torch.Tensor,
    buf_topk_weights: torch.Tensor,
    num_tokens: int,
    group_size: int = 32,
    mma_type: str = "fp8xfp4",
    buf_x_scales: torch.Tensor | None = None,
    expert_scales: torch.Tensor | None = None,
) -> None:
    """Tokens for `fp8_fp4_mega_moe`; arguments and errors as `mega_moe_pre_dispatch_sm90`.

    mma_type       must have the buffer's format of tokens
    expert_scales  float32 [experts of all ranks], with which the top-k weights of each expert are multiplied
    """
    buffer = buffer_of(buf_x)
    problem = buffer.problem
    refuse("buf_x_scales", buf_x_scales, "None: it belongs to NVFP4, which the drop-in has not")
    packed = problem.formats.packs_activations
    if RECIPES[mma_type_of(mma_type, buffer.target.arch).recipe].packs_activations != packed:
        raise ProblemError("mma_type", mma_type, f"{buffer.mma_type}, as the buffer's")
    if expert_scales is not None:
        check_tensor("expert_scales", expert_scales, torch.float32, (problem.num_experts,))
        chosen = expert_scales[topk_idx.clamp(min=0).long()]
        topk_weights = torch.where(topk_idx < 0, topk_weights, topk_weights * chosen)
    buffer.check_current()
    channels = problem.formats.activations.channels
    if group_size != channels:
        raise ProblemError("group_size", group_size, f"{channels}, as in the buffer's scales")
    for name, tensor in (("x_sf", buf_x_sf), ("topk_idx", buf_topk_idx), ("topk_weights", buf_topk_weights)):
        if tensor.data_ptr() != getattr(buffer, name).data_ptr():
            raise ProblemError(f"buf_{name}", f"a tensor at {tensor.data_ptr():#x}", f"the {name} of the buffer that buf_x is of")
    rows = len(buf_topk_idx)
    tokens = integer_between("num_tokens", num_tokens, 0, rows, f"between 0 and buf_topk_idx.shape[0] = {rows}")
    if tokens > len(x):
        raise ProblemError("num_tokens", tokens, f"at most x.shape[0] = {len(x)}")
    x, indices, weights = (tensor[:tokens] for tensor in (x, topk_idx, topk_weights))
    check_layout(problem, "", x, None, indices, weights, buffer.symmetric.sym.device)
    kept = indices.long()  # a copy of int32 lives until the kernel has it: memory is reused in the stream's order
    buf_topk_idx[tokens:], buf_topk_weights[tokens:] = -1, 0
    buffer.pre_dispatch()((buffer.symmetric.sym.data_ptr(), x.data_ptr(), kept.data_ptr(), weights.data_ptr(), tokens))
