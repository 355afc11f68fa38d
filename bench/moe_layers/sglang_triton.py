"""SGLang's Triton MoE kernels on a layer's tensors: the grouped GEMM, activation, quantization and sum (`sglang_site.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch

from megamoe_dsl.blocks.gemm.problem import SCALE_BLOCK
from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers import sglang_site
from moe_layers.other_way import Launch, OtherWay
from moe_layers.sglang_blocks import SlotBlocks, Sort, sglang_sort, sorted_blocks

SORTING = "sorting"
"""What sorts slots into blocks, and each layer that does; those without it get blocks worked out before."""
Config = dict[str, int]
CONFIGS: dict[str, tuple[Config, ...]] = {
    "deepseek-v3": tuple(
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16, "num_warps": warps, "num_stages": stages}
        for m, n, warps, stages in ((16, 64, 4, 4), (64, 64, 4, 3), (128, 128, 8, 4))
    ),
    "qwen3-next": tuple(
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": 3} for m in (16, 64)
    ),
}
"""The tiles of their tables for an H200, 256 experts (E=257,N=512, triton_3_5_1) and 512 (E=513,N=512, triton_3_6_0)."""


def sglang_layer(call: ExpertCall, site: Path, config: Config, sort: Sort) -> Launch:
    """Slots sorted, tokens quantized, the first grouped GEMM, SiLU, its product quantized, the second, and each token's rows summed.

    A `sort` that gives blocks worked out before leaves sorting out of what is timed."""
    moe, quantization = (sglang_site.load(site, name) for name in (sglang_site.MOE, sglang_site.QUANTIZATION))
    import triton.language as tl

    layer, w, device = call.layer, call.operands, call.x.device
    gate_up = torch.empty(call.rows, 2 * layer.intermediate, dtype=torch.bfloat16, device=device)
    product = torch.empty(call.rows, layer.intermediate, dtype=torch.bfloat16, device=device)
    rows = torch.empty(call.tokens, layer.topk, layer.hidden, dtype=torch.bfloat16, device=device)
    y = torch.empty_like(call.x)
    block = [SCALE_BLOCK, SCALE_BLOCK]

    def run() -> torch.Tensor:
        blocks = sort()

        def multiply(a: torch.Tensor, b: torch.Tensor, b_sf: torch.Tensor, c: torch.Tensor, weigh: bool, topk: int) -> None:
            a_q, a_sf = quantization._per_token_group_quant_8bit_raw(a, SCALE_BLOCK)
            tables = (call.topk_weights, call.topk_idx, *blocks)
            kinds = (True, False, False, False, False)  # fp8_w8a8, the other three, per channel
            moe.invoke_fused_moe_kernel(a_q, b, None, c, a_sf, b_sf, None, *tables, weigh, topk, config, tl.bfloat16, *kinds, block)

        multiply(call.x, w.w1, w.w1_sf, gate_up, False, layer.topk)
        moe.act_and_mul_triton(gate_up, product, config, activation="silu")
        multiply(product, w.w2, w.w2_sf, rows, True, 1)
        moe.moe_sum_reduce_triton(rows, y, 1.0)
        return y

    return run


def sglang_ways(model: str, call: ExpertCall, site: Path) -> dict[str, OtherWay]:
    """The layer of a model with each tile, its slots sorted before and each time, and sorting alone."""
    ways: dict[str, OtherWay] = {}
    for config in CONFIGS.get(model, ()):
        block_m, tile = config["BLOCK_SIZE_M"], f"{config['BLOCK_SIZE_M']} x {config['BLOCK_SIZE_N']}"
        sorts = cache(partial(sglang_sort, call, site, block_m))  # made once for both
        ways[f"{SORTING}, {block_m} rows"] = OtherWay(sorts)
        ways[f"{SORTING}, sglang {tile}"] = OtherWay(partial(_layer, call, site, config, sorts), whole=True)
        ways[f"sglang {tile}"] = OtherWay(partial(_layer, call, site, config, partial(_sorted_before, call, block_m)), whole=True)
    return ways


def sglang_layers(calls: Sequence[ExpertCall], site: Path) -> dict[str, list[Launch]]:
    """Calls of the same weights with few rows of an expert, whose slots are sorted before, by tile."""
    found = {}
    for config, *_ in CONFIGS.values():
        layers = [sglang_layer(call, site, config, _sorted_before(call, config["BLOCK_SIZE_M"])) for call in calls]
        found[f"sglang {config['BLOCK_SIZE_M']} x {config['BLOCK_SIZE_N']}"] = layers
    return found


def _layer(call: ExpertCall, site: Path, config: Config, sorts: Callable[[], Sort]) -> Launch:
    return sglang_layer(call, site, config, sorts())


def _sorted_before(call: ExpertCall, block_m: int) -> Sort:
    return partial(SlotBlocks, *sorted_blocks(call, block_m))
