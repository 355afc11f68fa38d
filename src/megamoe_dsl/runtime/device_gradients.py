"""Stages of the backward pass of `moe` by this project's kernels, on Hopper: launches on torch's current stream, none of which the host
waits for.  Tensors are those of a forward pass that has been checked, and what stages before have made; dy and totals are new.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from ..activation import SILU
from ..artifact.store import ArtifactStore
from ..blocks.gemm.problem import DOT_COLUMNS, GATE_FIRST, I32, I64, GemmProblem
from ..json_file import cache_folder
from ..kernels.expert_layer import BackwardProblems, ExpertLayer
from ..kernels.expert_routing.config import MOST_SORTERS
from ..kernels.expert_routing.problem import RoutingProblem, SumProblem, TokensProblem
from ..kernels.registry import choose
from ..quant import no_scales
from .buffers import check_aligned
from .cuda_kernel import LAUNCHES, CudaKernel, bind_context, fill
from .device_gemm import device_gemm, gpu_target
from .gather_tensors import GatherTensors, GradientTensors
from .gemm_scales import TMA_ALIGNMENT
from .gemm_tensors import OUTPUT_DTYPES, GemmTensors, LaunchTensors
from .tile_counters import tile_counters
from .varlen_k_tensors import VarlenKTensors

RECIPE = "bf16xbf16"
OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}


def route(topk_idx: torch.Tensor, experts: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where rows of experts end, the token of each row, and the row of each slot, as `RouterMetadata` has them; rows behind the last
    expert's are nothing."""
    bind_context()
    tokens, topk = topk_idx.shape
    shapes = {"ends": (experts,), "sources": (tokens * topk,), "positions": (tokens, topk), "table": (MOST_SORTERS, experts)}
    made = {name: topk_idx.new_empty(shape, dtype=torch.int32) for name, shape in shapes.items()}
    problem, indices = RoutingProblem(hidden, experts, topk, RECIPE), I32 if topk_idx.dtype == torch.int32 else I64
    kernel = loaded_kernel(problem, topk_idx.device, indices=indices)
    counter = tile_counters(topk_idx.device).address()
    launch_kernel(kernel, {**made, "topk_idx": topk_idx}, {"x": 0, "x_q": 0, "x_sf": 0, "counter": counter, "num_tokens": tokens})
    return made["ends"], made["sources"], made["positions"]


def preactivations(x: torch.Tensor, w1: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
    """Gate and up, bfloat16 [tokens * topk, 2I]."""
    experts, n, hidden = w1.shape
    found = x.new_empty(len(sources), n)
    run_gemm(_problems(hidden, n // 2, experts).gate_up, GatherTensors(x, no_scales(x), w1, no_scales(w1), ends, found, sources))
    return found


def row_gradients(
    dy: torch.Tensor,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    stored: torch.Tensor,
    ends: torch.Tensor,
    sources: torch.Tensor,
    positions: torch.Tensor,
    gate_up: str,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dH, w A and dw (reference/expert_gradients.py)."""
    check_aligned("dy", dy, TMA_ALIGNMENT)
    (experts, hidden, own), rows, places = w2.shape, len(stored), positions.flatten().long()
    # A masked slot's row is -1: one more than there are.
    of_rows, dw = topk_weights.new_empty(rows + 1), topk_weights.new_zeros(rows + 1)
    of_rows[places] = topk_weights.flatten()
    dh, weighted = torch.empty_like(stored), stored.new_empty(rows, own)
    dots = topk_weights.new_empty(-(-own // DOT_COLUMNS), rows)
    gradient = GradientTensors(stored, of_rows[:rows], weighted, dots)
    tensors = GatherTensors(dy, no_scales(dy), w2, no_scales(w2.mT), ends, dh, sources, gradient=gradient)
    run_gemm(_problems(hidden, own, experts, gate_up, activation).rows, tensors)
    torch.sum(dots, dim=0, out=dw[:rows])
    return dh, weighted, dw[places].view(topk_weights.shape)


def token_gradients(rows: torch.Tensor, w1: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """dX, bfloat16 [tokens, H], of rows dH."""
    experts, k, hidden = w1.shape
    products = rows.new_empty(len(rows), hidden)
    run_gemm(_problems(hidden, k // 2, experts).tokens, GemmTensors(rows, no_scales(rows), w1, no_scales(w1.mT), products, ends))
    return sum_rows(products, positions, torch.ones_like(positions, dtype=torch.float32))


def sum_rows(rows: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each token's rows in the order of its slots, bfloat16 [tokens, H]."""
    (tokens, topk), hidden = positions.shape, rows.shape[1]
    found = rows.new_empty(tokens, hidden)
    given = {"rows": rows, "positions": positions, "weights": weights, "y": found}
    launch_kernel(loaded_kernel(SumProblem(hidden, topk), rows.device), given, {"num_tokens": tokens})
    return found


def weight_gradients(
    total: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor, tokens_first: bool
) -> None:
    """The sum of rows^T tokens over the rows of each expert, with `tokens_first` its transpose, into bfloat16 [E, M, N], or added to
    float32."""
    check_aligned("main_grads", total, TMA_ALIGNMENT)
    experts, n, k = total.shape
    output = OUTPUTS[total.dtype]
    problem = _problems(n, k, experts, output=output).w2 if tokens_first else _problems(k, n // 2, experts, output=output).w1
    run_gemm(problem, VarlenKTensors(tokens, rows, ends, sources, total))


@lru_cache
def _problems(
    hidden: int, intermediate: int, experts: int, gate_up: str = GATE_FIRST, activation: str = SILU, output: str = OUTPUTS[torch.bfloat16]
) -> BackwardProblems:
    """Of a layer, whose top-k does not matter here."""
    return ExpertLayer(hidden, intermediate, experts, 1, gate_up, activation, RECIPE).backward(output)


def run_gemm(problem: GemmProblem, tensors: LaunchTensors) -> None:
    device_gemm(problem, tensors.d.device).kernel(tensors.rows)(tensors)


def launch_kernel(kernel: CudaKernel, tensors: dict[str, torch.Tensor], numbers: dict[str, int]) -> None:
    """On torch's current stream; `numbers` are the other arguments by name."""
    with LAUNCHES:
        fill(kernel, {**numbers, **{name: tensor.data_ptr() for name, tensor in tensors.items()}})
        kernel.launch()


@lru_cache
def loaded_kernel(problem: TokensProblem, device: torch.device, **options: str) -> CudaKernel:
    """The kernel of a problem, compiled or from the cache."""
    config = choose(problem, gpu_target(device), 1, **options)
    return CudaKernel(ArtifactStore(cache_folder()).get(config))
