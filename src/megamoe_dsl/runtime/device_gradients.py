"""Stages of the backward pass of `moe` by this project's kernels, on Hopper: launches on torch's current stream, none of which the host
waits for.  Tensors are those of a forward pass that has been checked, and what stages before have made; dy and totals are new.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..activation import SILU
from ..artifact.store import ArtifactStore
from ..blocks.gemm.problem import DOT_COLUMNS, GATE_FIRST, I32, I64, SCALE_BLOCK, GemmProblem
from ..json_file import cache_folder
from ..kernels.expert_layer import BackwardProblems, ExpertLayer
from ..kernels.expert_routing.config import MOST_SORTERS
from ..kernels.expert_routing.problem import QuantizeWeightsProblem, RoutingProblem, SumProblem, TokensProblem
from ..kernels.registry import choose
from .buffers import check_aligned
from .cuda_kernel import LAUNCHES, CudaKernel, bind_context, fill
from .device_gemm import device_gemm, gpu_target
from .gather_tensors import GatherTensors, GradientTensors
from .gemm_scales import TMA_ALIGNMENT
from .gemm_tensors import OUTPUT_DTYPES, GemmTensors, LaunchTensors
from .tile_counters import tile_counters
from .varlen_k_tensors import VarlenKTensors

FP8 = "fp8xfp8"
OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}


def recipe_of(values: torch.Tensor) -> str:
    """By the type of operands."""
    return FP8 if values.dtype == torch.float8_e4m3fn else "bf16xbf16"


def route(x: torch.Tensor, topk_idx: torch.Tensor, experts: int, quantizes: bool) -> tuple[torch.Tensor, ...]:
    """Where rows of experts end, the token of each row, and the row of each slot, as `RouterMetadata` has them; rows behind the last
    expert's are nothing.  Then x in E4M3 and its scales, or no rows of them."""
    bind_context()
    check_aligned("dy", x, TMA_ALIGNMENT)
    tokens, topk = topk_idx.shape
    shapes = {"ends": (experts,), "sources": (tokens * topk,), "positions": (tokens, topk), "table": (MOST_SORTERS, experts)}
    made = {name: topk_idx.new_empty(shape, dtype=torch.int32) for name, shape in shapes.items()}
    codes, scales = new_quantized(x, tokens if quantizes else 0)
    indices = I32 if topk_idx.dtype == torch.int32 else I64
    problem = RoutingProblem, x.shape[1], experts, topk, FP8 if quantizes else "bf16xbf16"
    given = {**made, "topk_idx": topk_idx, "x": x, "x_q": codes, "x_sf": scales}
    counter = tile_counters(topk_idx.device).address()
    launch_kernel(loaded_kernel(topk_idx.device, *problem, indices=indices), given, {"counter": counter, "num_tokens": tokens})
    return made["ends"], made["sources"], made["positions"], codes, scales


def new_quantized(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 [rows, H] and float32 [rows, H / 128], not yet written."""
    hidden = x.shape[1]
    return x.new_empty((rows, hidden), dtype=torch.float8_e4m3fn), x.new_empty((rows, hidden // SCALE_BLOCK), dtype=torch.float32)


def new_weights(w: torch.Tensor, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 [E, N, K], or transposed [E, K, N], and a scale for 128 x 128, not yet written."""
    experts, rows, columns = w.mT.shape if transposed else w.shape
    return (
        w.new_empty((experts, rows, columns), dtype=torch.float8_e4m3fn),
        w.new_empty((experts, rows // SCALE_BLOCK, columns // SCALE_BLOCK), dtype=torch.float32),
    )


def quantize_weights(w: torch.Tensor, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 and scales of 128 x 128, of bfloat16 [E, N, K]."""
    bind_context()
    check_aligned("w", w, TMA_ALIGNMENT)
    codes, scales = new_weights(w, transposed)
    kernel = loaded_kernel(w.device, QuantizeWeightsProblem, w.shape[1], w.shape[2], transposed)
    launch_kernel(kernel, {"w": w, "codes": codes, "scales": scales}, {"num_matrices": len(w)})
    return codes, scales


def preactivations(
    x: torch.Tensor, x_sf: torch.Tensor, w1: torch.Tensor, w1_sf: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor
) -> torch.Tensor:
    """Gate and up, bfloat16 [tokens * topk, 2I]."""
    experts, n, hidden = w1.shape
    found = x.new_empty((len(sources), n), dtype=torch.bfloat16)
    run_gemm(_problems(hidden, n // 2, experts, recipe_of(x)).gate_up, GatherTensors(x, x_sf, w1, w1_sf, ends, found, sources))
    return found


def row_gradients(
    dy: torch.Tensor,
    dy_sf: torch.Tensor,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    w2_sf: torch.Tensor,
    stored: torch.Tensor,
    ends: torch.Tensor,
    sources: torch.Tensor,
    positions: torch.Tensor,
    gate_up: str,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dH, w A and dw (reference/expert_gradients.py); w2 is transposed."""
    bind_context()
    check_aligned("dy", dy, TMA_ALIGNMENT)
    (experts, own, hidden), rows, places = w2.shape, len(stored), positions.flatten().long()
    # A masked slot's row is -1: one more than there are.
    of_rows, dw = topk_weights.new_empty(rows + 1), topk_weights.new_zeros(rows + 1)
    of_rows[places] = topk_weights.flatten()
    dh, weighted = torch.empty_like(stored), stored.new_empty(rows, own)
    dots = topk_weights.new_empty(-(-own // DOT_COLUMNS), rows)
    gradient = GradientTensors(stored, of_rows[:rows], weighted, dots)
    tensors = GatherTensors(dy, dy_sf, as_it_lies(w2), w2_sf, ends, dh, sources, gradient=gradient)
    run_gemm(_problems(hidden, own, experts, recipe_of(dy), gate_up, activation).rows, tensors)
    torch.sum(dots, dim=0, out=dw[:rows])
    return dh, weighted, dw[places].view(topk_weights.shape)


def as_it_lies(transposed: torch.Tensor) -> torch.Tensor:
    """A transposed weight in memory: BF16 is a view."""
    return transposed if transposed.is_contiguous() else transposed.mT


def token_gradients(
    rows: torch.Tensor, rows_sf: torch.Tensor, w1: torch.Tensor, w1_sf: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """dX, bfloat16 [tokens, H], of rows dH; w1 is transposed."""
    experts, hidden, k = w1.shape
    products = rows.new_empty((len(rows), hidden), dtype=torch.bfloat16)
    tensors = GemmTensors(rows, rows_sf, as_it_lies(w1), w1_sf, products, ends)
    run_gemm(_problems(hidden, k // 2, experts, recipe_of(rows)).tokens, tensors)
    return sum_rows(products, positions, torch.ones_like(positions, dtype=torch.float32))


def sum_rows(rows: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each token's rows in the order of its slots, bfloat16 [tokens, H]."""
    (tokens, topk), hidden = positions.shape, rows.shape[1]
    found = rows.new_empty(tokens, hidden)
    given = {"rows": rows, "positions": positions, "weights": weights, "y": found}
    launch_kernel(loaded_kernel(rows.device, SumProblem, hidden, topk), given, {"num_tokens": tokens})
    return found


def weight_gradients(
    total: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor, tokens_first: bool
) -> None:
    """The sum of rows^T tokens over the rows of each expert, with `tokens_first` its transpose, into bfloat16 [E, M, N], or added to
    float32."""
    check_aligned("main_grads", total, TMA_ALIGNMENT)
    experts, n, k = total.shape
    output = OUTPUTS[total.dtype]
    recipe = recipe_of(rows)
    problem = (
        _problems(n, k, experts, recipe, output=output).w2 if tokens_first else _problems(k, n // 2, experts, recipe, output=output).w1
    )
    run_gemm(problem, VarlenKTensors(tokens, rows, ends, sources, total))


@lru_cache
def _problems(
    hidden: int,
    intermediate: int,
    experts: int,
    recipe: str,
    gate_up: str = GATE_FIRST,
    activation: str = SILU,
    output: str = OUTPUTS[torch.bfloat16],
) -> BackwardProblems:
    """Of a layer, whose top-k does not matter here."""
    return ExpertLayer(hidden, intermediate, experts, 1, gate_up, activation, recipe).backward(output)


def run_gemm(problem: GemmProblem, tensors: LaunchTensors) -> None:
    device_gemm(problem, tensors.d.device).kernel(tensors.rows)(tensors)


def launch_kernel(kernel: CudaKernel, tensors: dict[str, torch.Tensor], numbers: dict[str, int]) -> None:
    """On torch's current stream; `numbers` are the other arguments by name."""
    with LAUNCHES:
        fill(kernel, {**numbers, **{name: tensor.data_ptr() for name, tensor in tensors.items()}})
        kernel.launch()


@lru_cache
def loaded_kernel(device: torch.device, kind: type[TokensProblem], *fields: Any, **options: str) -> CudaKernel:
    """The kernel of a problem with these fields, compiled or from the cache."""
    config = choose(kind(*fields), gpu_target(device), 1, **options)
    return CudaKernel(ArtifactStore(cache_folder()).get(config))
