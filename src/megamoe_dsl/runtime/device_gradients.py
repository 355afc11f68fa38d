"""Stages of the backward pass of `moe` as kernels on torch's current stream, without synchronization.  The forward pass has checked all
tensors but dy and totals.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..activation import SILU
from ..blocks.gemm.problem import DOT_COLUMNS, GATE_FIRST, I32, I64, PACKED, SCALE_BLOCK, SUMMED_RECIPES, GemmProblem
from ..kernels.expert_layer import BackwardProblems, ExpertLayer
from ..kernels.expert_routing.config import MOST_SORTERS
from ..kernels.expert_routing.problem import QuantizeProblem, QuantizeWeightsProblem, RoutingProblem, SumProblem
from ..quant import no_scales
from ..quant.weights import TORCH_DTYPES
from ..recipe import RECIPES
from .buffers import check_aligned
from .cuda_kernel import LAUNCHES, CudaKernel, bind_context, fill
from .device_gemm import gemm_kernel, loaded_kernel
from .gemm_scales import TMA_ALIGNMENT
from .gemm_tensors import OUTPUTS, GemmTensors
from .tile_counters import tile_counters

BF16, FP8, MXFP8 = SUMMED_RECIPES


def recipe_of(values: torch.Tensor, scales: torch.Tensor) -> str:
    """The recipe of an operand, by the dtypes of its values and scales."""
    return BF16 if values.dtype == torch.bfloat16 else FP8 if scales.dtype == torch.float32 else MXFP8


def route(
    x: torch.Tensor, topk_idx: torch.Tensor, experts: int, recipe: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`ends`, `sources` and `positions` of `RouterMetadata`, int32: where each expert's rows end, the token of each row, the row of each
    slot.  `sources` has an entry for every slot; those behind the last expert's rows are undefined.  Then x in E4M3 and its scales; with
    recipe bf16xbf16 both have no rows."""
    bind_context()
    check_aligned("dy", x, TMA_ALIGNMENT)
    tokens, topk = topk_idx.shape
    shapes = {"ends": (experts,), "sources": (tokens * topk,), "positions": (tokens, topk), "table": (MOST_SORTERS, experts)}
    made = {name: topk_idx.new_empty(shape, dtype=torch.int32) for name, shape in shapes.items()}
    codes, scales = new_quantized(x, recipe)
    indices = I32 if topk_idx.dtype == torch.int32 else I64
    problem = RoutingProblem, x.shape[1], experts, topk, recipe
    given = {**made, "topk_idx": topk_idx, "x": x, "x_q": codes, "x_sf": scales}
    counter = tile_counters(topk_idx.device).address()
    launch_kernel(loaded_kernel(topk_idx.device, *problem, indices=indices), given, {"counter": counter, "num_tokens": tokens})
    return made["ends"], made["sources"], made["positions"], codes, scales


def new_quantized(x: torch.Tensor, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialized E4M3 [tokens, H] and scales of each token; in BF16 without rows."""
    form, hidden = RECIPES[recipe].activations, x.shape[1]
    rows = len(x) if form.scale else 0
    scales = x.new_empty((rows, form.scales_of(hidden)), dtype=TORCH_DTYPES[form.scale])
    return x.new_empty((rows, hidden), dtype=torch.float8_e4m3fn), scales


def new_weights(w: torch.Tensor, transposed: bool, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialized E4M3 [E, N, K], or transposed [E, K, N], and a scale for 128 x 128, or `scale_words`."""
    experts, rows, columns = w.mT.shape if transposed else w.shape
    blocks = columns // SCALE_BLOCK
    shape, dtype = ((rows // SCALE_BLOCK, blocks), torch.float32) if recipe == FP8 else ((blocks, rows), torch.int32)
    return w.new_empty((experts, rows, columns), dtype=torch.float8_e4m3fn), w.new_empty((experts, *shape), dtype=dtype)


def quantize_weights(w: torch.Tensor, transposed: bool, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 and scales of bfloat16 [E, N, K], N and K multiples of 128: [E, N, K], or transposed [E, K, N]."""
    bind_context()
    check_aligned("w", w, TMA_ALIGNMENT)
    codes, scales = new_weights(w, transposed, recipe)
    experts, n, k = w.shape
    if recipe == FP8:
        kernel = loaded_kernel(w.device, QuantizeWeightsProblem, n, k, transposed)
        launch_kernel(kernel, {"w": w, "codes": codes, "scales": scales}, {"num_matrices": experts})
        return codes, scales
    kernel = loaded_kernel(w.device, QuantizeProblem, k, False, not transposed, recipe, n, transposed)
    made = {"codes_t": codes, "scales_t": scales} if transposed else {"codes": codes, "scales": scales}
    absent = dict.fromkeys(("sources", "codes", "scales", "codes_t", "scales_t"), 0)
    launch_kernel(kernel, {"x": w, **made}, {**absent, "num_rows": experts * n})
    return codes, scales


def preactivations(
    x: torch.Tensor, x_sf: torch.Tensor, w1: torch.Tensor, w1_sf: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor
) -> torch.Tensor:
    """Gate and up, bfloat16 [tokens * topk, 2I], as the forward pass stores them."""
    experts, n, hidden = w1.shape
    found = x.new_empty((len(sources), n), dtype=torch.bfloat16)
    run_gemm(_problems(hidden, n // 2, experts, recipe_of(x, x_sf)).gate_up, GemmTensors(x, x_sf, w1, w1_sf, found, ends, sources=sources))
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
    """dH, bfloat16 [tokens * topk, 2I], w A, bfloat16 [tokens * topk, I], and dw, float32 [tokens, topk] (reference/expert_gradients.py);
    w2 is transposed, [E, I, H]."""
    bind_context()
    check_aligned("dy", dy, TMA_ALIGNMENT)
    (experts, own, hidden), rows, places = w2.shape, len(stored), positions.flatten().long()
    # The last entry stands for row -1, of masked slots.
    of_rows, dw = topk_weights.new_empty(rows + 1), topk_weights.new_zeros(rows + 1)
    of_rows[places] = topk_weights.flatten()
    dh, weighted = torch.empty_like(stored), stored.new_empty(rows, own)
    dots = topk_weights.new_empty(-(-own // DOT_COLUMNS), rows)
    gradient: Any = {"gate_up": stored, "row_weights": of_rows[:rows], "weighted": weighted, "dots": dots}
    tensors = GemmTensors(dy, dy_sf, as_it_lies(w2), w2_sf, dh, ends, sources=sources, **gradient)
    run_gemm(_problems(hidden, own, experts, recipe_of(dy, dy_sf), gate_up, activation).rows, tensors)
    torch.sum(dots, dim=0, out=dw[:rows])
    return dh, weighted, dw[places].view(topk_weights.shape)


def as_it_lies(transposed: torch.Tensor) -> torch.Tensor:
    """A transposed weight as it lies in memory: in BF16 it is a view of the original."""
    return transposed if transposed.is_contiguous() else transposed.mT


def token_gradients(
    rows: torch.Tensor, rows_sf: torch.Tensor, w1: torch.Tensor, w1_sf: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """dX, bfloat16 [tokens, H], of rows dH; w1 is transposed, [E, H, 2I].  Rows in E4M3 are those of `padded_rows`."""
    experts, hidden, k = w1.shape
    products = rows.new_empty((len(rows), hidden), dtype=torch.bfloat16)
    tensors = GemmTensors(rows, rows_sf, as_it_lies(w1), w1_sf, products, ends)
    run_gemm(_problems(hidden, k // 2, experts, recipe_of(rows, rows_sf)).tokens, tensors)
    return sum_rows(products, positions, torch.ones_like(positions, dtype=torch.float32))


def sum_rows(rows: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each token's rows in the order of its slots, bfloat16 [tokens, H]."""
    (tokens, topk), hidden = positions.shape, rows.shape[1]
    found = rows.new_empty(tokens, hidden)
    given = {"rows": rows, "positions": positions, "weights": weights, "y": found}
    launch_kernel(loaded_kernel(rows.device, SumProblem, hidden, topk), given, {"num_tokens": tokens})
    return found


def weight_gradients(
    total: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    ends: torch.Tensor,
    sources: torch.Tensor,
    tokens_first: bool,
    kind: str = PACKED,
) -> None:
    """The sum of rows^T tokens over each expert's rows, or with `tokens_first` its transpose: written into bfloat16 [E, M, N], or added to
    float32 without rounding to BF16.  `kind` says how `ends` count rows: packed or aligned (blocks/gemm/problem.py)."""
    check_aligned("main_grads", total, TMA_ALIGNMENT)
    experts, n, k = total.shape
    hidden, own = (n, k) if tokens_first else (k, n // 2)
    problems = _problems(hidden, own, experts, BF16, output=OUTPUTS[total.dtype], kind=kind)
    none = no_scales(rows)
    run_gemm(problems.w2 if tokens_first else problems.w1, GemmTensors(tokens, none, rows, none, total, ends, sources=sources))


@lru_cache
def _problems(
    hidden: int,
    intermediate: int,
    experts: int,
    recipe: str,
    gate_up: str = GATE_FIRST,
    activation: str = SILU,
    output: str = OUTPUTS[torch.bfloat16],
    kind: str = PACKED,
) -> BackwardProblems:
    """Problems of the backward pass of a layer; its top-k does not matter."""
    return ExpertLayer(hidden, intermediate, experts, 1, gate_up, activation, recipe).backward(output, kind)


def run_gemm(problem: GemmProblem, tensors: GemmTensors) -> None:
    gemm_kernel(problem, tensors.d.device, tensors.rows)(tensors)


def launch_kernel(kernel: CudaKernel, tensors: dict[str, torch.Tensor], numbers: dict[str, int]) -> None:
    """Launches on torch's current stream; `numbers` are the arguments that are no tensors."""
    with LAUNCHES:
        fill(kernel, {**numbers, **{name: tensor.data_ptr() for name, tensor in tensors.items()}})
        kernel.launch()
