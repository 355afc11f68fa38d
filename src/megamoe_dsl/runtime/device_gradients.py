"""Stages of the backward pass of `moe` by this project's kernels, on Hopper: launches on torch's current stream, none of which the host
waits for."""

from __future__ import annotations

from functools import lru_cache

import torch

from ..activation import SILU
from ..artifact.store import ArtifactStore
from ..blocks.gemm.problem import DOT_COLUMNS, GATE_FIRST, I32, I64
from ..json_file import cache_folder
from ..kernels.expert_layer import ExpertLayer
from ..kernels.expert_routing.config import MOST_SORTERS, TokensConfig
from ..kernels.expert_routing.family import RouteKernel, SumKernel
from ..kernels.expert_routing.problem import RoutingProblem, SumProblem
from ..quant import no_scales
from ..reference.router import RouterMetadata
from .cuda_kernel import LAUNCHES, CudaKernel, bind_context, fill
from .device_gemm import device_gemm, gpu_target
from .gather_tensors import GatherTensors, GradientTensors
from .gemm_tensors import OUTPUT_DTYPES, GemmTensors
from .tile_counters import tile_counters
from .varlen_k_tensors import VarlenKTensors

RECIPE = "bf16xbf16"
OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}


def route(topk_idx: torch.Tensor, experts: int, hidden: int) -> RouterMetadata:
    """Rows of experts; `sources` has a number for every slot, of which those behind the last expert's rows are nothing."""
    bind_context()
    tokens, topk = topk_idx.shape
    made = {name: topk_idx.new_empty(shape, dtype=torch.int32) for name, shape in _routed(tokens, topk, experts).items()}
    kernel = _route_kernel(RoutingProblem(hidden, experts, topk, RECIPE), topk_idx.device, I32 if topk_idx.dtype == torch.int32 else I64)
    addresses = {name: tensor.data_ptr() for name, tensor in made.items()}
    with LAUNCHES:
        counter = tile_counters(topk_idx.device).address()
        _launch(
            kernel, {**addresses, "x": 0, "x_q": 0, "x_sf": 0, "topk_idx": topk_idx.data_ptr(), "counter": counter, "num_tokens": tokens}
        )
    return RouterMetadata(made["ends"].diff(prepend=made["ends"].new_zeros(1)), made["ends"], made["sources"], made["positions"])


def _routed(tokens: int, topk: int, experts: int) -> dict[str, tuple[int, ...]]:
    return {"ends": (experts,), "sources": (tokens * topk,), "positions": (tokens, topk), "table": (MOST_SORTERS, experts)}


def row_gradients(
    dy: torch.Tensor,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    preactivations: torch.Tensor,
    routing: RouterMetadata,
    gate_up: str,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dH, w A and dw (reference/expert_gradients.py)."""
    experts, hidden, own = w2.shape
    rows = len(preactivations)
    masked, places = routing.positions.flatten() < 0, routing.positions.flatten().long()
    of_rows = topk_weights.new_empty(rows + 1).scatter_(0, places.masked_fill(masked, rows), topk_weights.flatten())[:rows]
    dh, weighted = torch.empty_like(preactivations), preactivations.new_empty(rows, own)
    dots = topk_weights.new_empty(-(-own // DOT_COLUMNS), rows)
    problem = _layer(hidden, own, experts, gate_up, activation).backward().rows
    gradient = GradientTensors(preactivations, of_rows, weighted, dots)
    tensors = GatherTensors(dy, no_scales(dy), w2, no_scales(w2.mT), routing.ends, dh, routing.sources, gradient=gradient)
    kernel = device_gemm(problem, dy.device).checked(tensors)
    assert kernel is not None
    kernel(tensors)
    dw = dots.sum(dim=0)[places.clamp_(min=0)].masked_fill_(masked, 0.0)
    return dh, weighted, dw.view(topk_weights.shape)


def token_gradients(rows: torch.Tensor, routing: RouterMetadata, w1: torch.Tensor) -> torch.Tensor:
    """dX, bfloat16 [tokens, H], of rows dH."""
    experts, k, hidden = w1.shape
    problem = _layer(hidden, k // 2, experts).backward().tokens
    products = rows.new_empty(len(rows), hidden)
    tensors = GemmTensors(rows, no_scales(rows), w1, no_scales(w1.mT), products, routing.ends)
    kernel = device_gemm(problem, rows.device).checked(tensors)
    assert kernel is not None
    kernel(tensors)
    tokens, topk = routing.positions.shape
    dx, ones = rows.new_empty(tokens, hidden), torch.ones(tokens, topk, dtype=torch.float32, device=rows.device)
    given = {"rows": products, "positions": routing.positions, "weights": ones, "y": dx}
    with LAUNCHES:
        _launch(
            _sum_kernel(SumProblem(hidden, topk), rows.device),
            {**{name: tensor.data_ptr() for name, tensor in given.items()}, "num_tokens": tokens},
        )
    return dx


def weight_gradients(rows: torch.Tensor, tokens: torch.Tensor, routing: RouterMetadata, total: torch.Tensor, tokens_first: bool) -> None:
    """The sum of rows^T tokens over the rows of each expert, with `tokens_first` its transpose, into bfloat16 [E, M, N], or added to
    float32."""
    experts, n, k = total.shape
    output = OUTPUTS[total.dtype]
    backward = _layer(n, k, experts).backward(output).w2 if tokens_first else _layer(k, n // 2, experts).backward(output).w1
    tensors = VarlenKTensors(tokens, rows, routing.ends, routing.sources, total)
    kernel = device_gemm(backward, total.device).checked(tensors)
    assert kernel is not None
    kernel(tensors)


def _layer(hidden: int, intermediate: int, experts: int, gate_up: str = GATE_FIRST, activation: str = SILU) -> ExpertLayer:
    """The layer of such tensors, whose top-k does not matter here."""
    return ExpertLayer(hidden, intermediate, experts, 1, gate_up, activation, RECIPE)


def _launch(kernel: CudaKernel, arguments: dict[str, int]) -> None:
    fill(kernel, arguments)
    kernel.launch()


@lru_cache
def _route_kernel(problem: RoutingProblem, device: torch.device, indices: str) -> CudaKernel:
    return _loaded(RouteKernel().choose(problem, gpu_target(device), 1, indices=indices))


@lru_cache
def _sum_kernel(problem: SumProblem, device: torch.device) -> CudaKernel:
    return _loaded(SumKernel().choose(problem, gpu_target(device), 1))


def _loaded(config: TokensConfig) -> CudaKernel:
    return CudaKernel(ArtifactStore(cache_folder()).get(config))
