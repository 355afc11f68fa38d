"""The same layer, or its first linear, by other means on the same tensors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from ...kernels.gemm.problem import ROW_BLOCK
from ...runtime.expert_call import ExpertCall
from ...runtime.gemm_scales import scales_by_column

Launch = Callable[[], Any]


def torch_top_experts(logits: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of float32 logits."""
    chosen = logits.topk(topk, dim=1)
    return chosen.indices, chosen.values.softmax(dim=1)


def torch_layer(call: ExpertCall, w1: torch.Tensor, w2: torch.Tensor) -> Launch:
    """BF16 by torch alone: slots sorted, rows gathered, `_grouped_mm` twice, and each token's rows weighted and summed."""
    grouped: Any = torch._grouped_mm
    layer, x = call.layer, call.x
    first, second = w1.transpose(1, 2), w2.transpose(1, 2)

    def run() -> torch.Tensor:
        experts, order = call.topk_idx.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(layer.num_experts, device=x.device), right=True).int()
        gate, up = grouped(x[order // layer.topk], first, offs=ends).chunk(2, dim=1)
        rows = grouped(functional.silu(gate) * up, second, offs=ends)
        y = torch.empty_like(rows)
        y[order] = rows
        return (y.view(-1, layer.topk, layer.hidden) * call.topk_weights.unsqueeze(2)).sum(dim=1).to(x.dtype)

    return run


def deep_gemm_fc1(call: ExpertCall, site: Path) -> dict[str, Launch]:
    """Linear1 by DeepGEMM's contiguous GEMM, BF16 out: its rows copied to where it wants them, and the GEMM.

    Where the copy goes is worked out before it is timed."""
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    library: Any = importlib.import_module("deep_gemm")
    layer, device = call.layer, call.x.device
    ends = call.ends.tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    blocks = [-(-count // ROW_BLOCK) for count in counts]
    rows = ROW_BLOCK * sum(blocks)
    source = torch.zeros(rows, dtype=torch.long)
    sources, place, first = call.sources.cpu().long(), 0, 0
    for count, taken in zip(counts, blocks, strict=True):
        source[place : place + count] = sources[first : first + count]
        place, first = place + taken * ROW_BLOCK, first + count
    source = source.to(device)
    index = torch.repeat_interleave(torch.arange(layer.num_experts), torch.tensor(blocks) * ROW_BLOCK).int().to(device)
    a = torch.empty(rows, layer.hidden, dtype=torch.uint8, device=device)
    a_sf = scales_by_column(torch.ones(rows, layer.hidden // 128, device=device))
    d = torch.empty(rows, 2 * layer.intermediate, dtype=torch.bfloat16, device=device)
    operand = (a.view(torch.float8_e4m3fn), a_sf)

    def permute() -> None:
        torch.index_select(call.x_q.view(torch.uint8), 0, source, out=a)
        a_sf.copy_(call.x_sf[source])

    def multiply() -> None:
        library.m_grouped_fp8_gemm_nt_contiguous(operand, (call.weights.w1, call.weights.w1_sf), d, index)

    def both() -> None:
        permute()
        multiply()

    return {"permute": permute, "deep_gemm fc1": multiply, "permute, deep_gemm fc1": both}
