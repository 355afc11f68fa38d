"""DeepGEMM's contiguous GEMMs on a layer's tensors: Linear1 alone, with SGLang's activation after it, and the layer as SGLang runs it.

DeepGEMM and SGLang come from unpacked wheels, theirs and `sglang_site.py`'s; nothing is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines.site import import_from
from megamoe_dsl.blocks.gemm.problem import ROW_BLOCK, SCALE_BLOCK
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.runtime.gemm_scales import scales_by_column
from moe_layers import sglang_site
from moe_layers.other_way import Launch, OtherWay

PACKAGE = "deep_gemm"
PERMUTED = "permute, deep_gemm fc1"
Quantized = tuple[torch.Tensor, torch.Tensor]
"""E4M3 [rows, K] and its scales as DeepGEMM takes them, float32 [rows, K / 128] with rows next to one another."""
Activate = Callable[[torch.Tensor], Quantized]


def activate_by_triton(site: Path) -> Activate:
    """SGLang's two Triton kernels.  Raises `ImportError` where the wheel lacks them."""
    moe, quantization = (sglang_site.load(site, name) for name in (sglang_site.MOE, sglang_site.QUANTIZATION))

    def run(gate_up: torch.Tensor) -> Quantized:
        product = torch.empty(len(gate_up), gate_up.shape[1] // 2, dtype=gate_up.dtype, device=gate_up.device)
        moe.act_and_mul_triton(gate_up, product, {}, activation="silu")
        codes, scales = quantization._per_token_group_quant_8bit_raw(product, SCALE_BLOCK, column_major_scales=True, scale_tma_aligned=True)
        return codes, scales

    return run


def activate_at_once(site: Path) -> Activate:
    """SGLang's kernel that activates and quantizes, compiled when first called, and its Triton kernel for the layout of scales.

    Raises `ImportError` where the wheel lacks them."""
    fused, parallel = (sglang_site.load(site, name) for name in (sglang_site.ACTIVATION, sglang_site.EXPERT_PARALLEL))

    def run(gate_up: torch.Tensor) -> Quantized:
        rows, columns = len(gate_up), gate_up.shape[1] // 2
        codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=gate_up.device)
        scales = torch.empty(rows, columns // SCALE_BLOCK, device=gate_up.device)
        fused.silu_and_mul_contig_post_quant(gate_up, codes, scales, SCALE_BLOCK)
        return codes, parallel.tma_align_input_scale(scales)

    return run


SGLANG_ACTIVATIONS: dict[str, Callable[[Path], Activate]] = {"Triton": activate_by_triton, "fused": activate_at_once}
"""From gate and up in BF16 to the quantized product, by its wheel."""


def blocked_counts(call: ExpertCall) -> tuple[list[int], list[int]]:
    """Rows of each expert, and how many blocks of `ROW_BLOCK` they take."""
    counts = torch.bincount(call.topk_idx.flatten(), minlength=call.layer.num_experts).tolist()
    return counts, [-(-count // ROW_BLOCK) for count in counts]


@dataclass(frozen=True)
class DeepGemmFc1:
    """Linear1 by the contiguous GEMM, BF16 out, of tokens that are quantized already, as for ours.

    source    int64 [rows], the token of each row, known before anything is timed; 0 where padded
    experts   int32 [rows]
    a, a_sf   tokens copied to where the GEMM wants them, uint8 [rows, hidden] and its scales
    d         bfloat16 [rows, 2 intermediate]
    """

    call: ExpertCall
    library: Any
    source: torch.Tensor
    experts: torch.Tensor
    a: torch.Tensor
    a_sf: torch.Tensor
    d: torch.Tensor

    def permute(self) -> None:
        """Tokens and their scales, copied."""
        torch.index_select(self.call.x_q.view(torch.uint8), 0, self.source, out=self.a)
        self.a_sf.copy_(self.call.x_sf[self.source])

    def multiply(self) -> None:
        """The GEMM."""
        w = self.call.operands
        self.library.m_grouped_fp8_gemm_nt_contiguous((self.a.view(torch.float8_e4m3fn), self.a_sf), (w.w1, w.w1_sf), self.d, self.experts)

    def __call__(self) -> None:
        """Both."""
        self.permute()
        self.multiply()

    def activated(self, activate: Activate) -> Launch:
        """Both, and gate and up activated and quantized."""

        def run() -> None:
            self()
            activate(self.d)

        return run


def deep_gemm_fc1(call: ExpertCall, site: Path) -> DeepGemmFc1:
    """Of a call whose slots are sorted.  Raises `ImportError` where the wheel lacks something."""
    layer, device = call.layer, call.x.device
    counts, blocks = blocked_counts(call)
    rows = ROW_BLOCK * sum(blocks)
    source = torch.zeros(rows, dtype=torch.long)
    sources, place, first = call.sources.cpu().long(), 0, 0
    for count, taken in zip(counts, blocks, strict=True):
        source[place : place + count] = sources[first : first + count]
        place, first = place + taken * ROW_BLOCK, first + count
    experts = torch.repeat_interleave(torch.arange(layer.num_experts), torch.tensor(blocks) * ROW_BLOCK).int()
    a = torch.empty(rows, layer.hidden, dtype=torch.uint8, device=device)
    a_sf = scales_by_column(torch.ones(rows, layer.hidden // SCALE_BLOCK, device=device))
    d = torch.empty(rows, 2 * layer.intermediate, dtype=torch.bfloat16, device=device)
    return DeepGemmFc1(call, import_from(PACKAGE, site), source.to(device), experts.to(device), a, a_sf, d)


@dataclass(frozen=True)
class DeepGemmLayer:
    """A call as SGLang computes it with DeepGEMM's contiguous GEMMs, in the order of its `pre_permute_standard_to_deep_gemm`.

    library, kernels, padding, quantization   modules of DeepGEMM and SGLang
    topk_idx                                  int32, as SGLang's router leaves them
    rows                                      of all experts in whole blocks: known before, where SGLang takes the most there can be
    """

    call: ExpertCall
    library: Any
    kernels: Any
    padding: Any
    quantization: Any
    activate: Activate
    topk_idx: torch.Tensor
    rows: int

    def multiply(self, a: Quantized, b: torch.Tensor, b_sf: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """A linear of all experts, BF16."""
        d = torch.empty(self.rows, b.shape[1], dtype=torch.bfloat16, device=b.device)
        self.library.m_grouped_fp8_gemm_nt_contiguous(a, (b, b_sf), d, experts)
        return d

    def permuted(self) -> tuple[Quantized, torch.Tensor, torch.Tensor]:
        """Tokens quantized and copied to their experts' rows; the expert of each row, and the row of each slot."""
        x, experts = self.call.x, self.call.layer.num_experts
        counts, _ = self.kernels.fused_moe_dispatch_index(self.topk_idx, experts, 1)
        padded = self.padding.pad_expert_counts(counts, ROW_BLOCK, self.rows)
        codes, scales = self.quantization._per_token_group_quant_8bit_raw(x, SCALE_BLOCK)
        a = torch.empty(self.rows, x.shape[1], dtype=codes.dtype, device=x.device)
        a_sf = torch.zeros(self.rows, scales.shape[1], device=x.device)
        starts, of_row = (torch.empty(size, dtype=torch.int32, device=x.device) for size in (experts, self.rows))
        places = torch.empty_like(self.topk_idx)
        self.kernels.ep_scatter(codes, scales, self.topk_idx, padded, counts, starts, a, a_sf, of_row, places)
        return (a, self.kernels.tma_align_input_scale(a_sf)), of_row, places

    def __call__(self) -> torch.Tensor:
        """y."""
        call, w, y = self.call, self.call.operands, torch.empty_like(self.call.x)
        a, experts, places = self.permuted()
        gate_up = self.multiply(a, w.w1, w.w1_sf, experts)
        results = self.multiply(self.activate(gate_up), w.w2, w.w2_sf, experts)
        self.kernels.post_reorder_deepgemm(results, y, places, self.topk_idx, call.topk_weights, call.layer.topk, *y.shape, 1.0)
        return y


def deep_gemm_layer(call: ExpertCall, site: Path, sglang: Path, activate: Activate) -> DeepGemmLayer:
    """Of a call.  Raises `ImportError` where a wheel lacks something."""
    kernels, padding, quantization = (
        sglang_site.load(sglang, name) for name in (sglang_site.EXPERT_PARALLEL, sglang_site.COUNTS, sglang_site.QUANTIZATION)
    )
    rows = ROW_BLOCK * sum(blocked_counts(call)[1])
    return DeepGemmLayer(call, import_from(PACKAGE, site), kernels, padding, quantization, activate, call.topk_idx.int(), rows)


def deep_gemm_ways(call: ExpertCall, site: Path, sglang: Path | None) -> dict[str, OtherWay]:
    """Linear1 and its parts; with SGLang's wheel Linear1 with each activation after it, and the layer with each.  Raises `ImportError`."""
    fc1 = deep_gemm_fc1(call, site)
    ways = {name: OtherWay.of(part) for name, part in (("permute", fc1.permute), ("deep_gemm fc1", fc1.multiply), (PERMUTED, fc1))}
    if sglang is not None:
        for name, make in SGLANG_ACTIVATIONS.items():
            ways[f"{PERMUTED}, {name}"] = OtherWay(partial(_activated, fc1, make, sglang))
            ways[f"deep_gemm layer, {name}"] = OtherWay(partial(_layer, call, site, sglang, make), whole=True)
    return ways


def _activated(fc1: DeepGemmFc1, make: Callable[[Path], Activate], sglang: Path) -> Launch:
    return fc1.activated(make(sglang))


def _layer(call: ExpertCall, site: Path, sglang: Path, make: Callable[[Path], Activate]) -> Launch:
    return deep_gemm_layer(call, site, sglang, make(sglang))
