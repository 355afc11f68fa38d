"""SGLang's Triton MoE kernels on a layer's tensors, from an unpacked wheel of theirs (0.5.23): nothing of theirs is installed.

Two of its files are imported as they are: the grouped GEMM with activation and sum, and quantisation.  What these import of the rest of
SGLang is answered here: an NVIDIA Hopper GPU, no variable of the environment set.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...kernels.gemm.problem import SCALE_BLOCK
from ...layouts.expert_rows import BlockedRows
from ...runtime.expert_call import ExpertCall

PACKAGE = "sglang"
MOE, QUANTISATION = "sglang.kernels.ops.moe.fused_moe_triton_kernels", "sglang.kernels.ops.quantization.fp8_kernel"
ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("is_cuda", "is_sm90_supported", "is_arch_support_pdl"), lambda *_: True),
    **dict.fromkeys(("is_hip", "is_cpu", "is_musa", "is_xpu", "cpu_has_amx_support", "is_batch_invariant_mode_enabled"), lambda *_: False),
    "get_moe_padding_size": lambda *_: 0,
}
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


class Answers(ModuleType):
    """A module of SGLang that is not theirs: `ANSWERS`, and for all other names something that says no when asked for a value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its modules are asked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ANSWERS.get(name, Unset())


class Unset:
    """A variable of the environment that is not set, or a function that nobody calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unset()

    def get(self) -> bool:
        """Not set."""
        return False


class Finder:
    """Finds the two files in an unpacked wheel, and `Answers` for the rest of SGLang."""

    def __init__(self, site: Path) -> None:
        self.files = {name: site / f"{name.replace('.', '/')}.py" for name in (MOE, QUANTISATION)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As an import asks for it."""
        if name in self.files:
            return spec_from_file_location(name, self.files[name])
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == PACKAGE else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Of the rest."""
        return Answers(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def load(site: Path) -> tuple[Any, Any]:
    """Their modules of MoE and of quantisation.  Raises ImportError where the wheel lacks them, or Triton is missing."""
    if not any(isinstance(one, Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, Finder(site))  # type: ignore[arg-type]
    return importlib.import_module(MOE), importlib.import_module(QUANTISATION)


def sorted_blocks(call: ExpertCall, block_m: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots sorted by expert, each expert's in whole blocks, filled up with a slot past the last; each block's expert; how many rows."""
    slots, experts = call.rows, call.layer.num_experts
    counts = torch.bincount(call.topk_idx.flatten().cpu(), minlength=experts)
    rows = BlockedRows(tuple(counts.tolist()), block_m)
    place = torch.tensor([rows.row(expert, index) for expert, count in enumerate(counts.tolist()) for index in range(count)])
    ids = torch.full((rows.num_rows,), slots, dtype=torch.int32)
    ids[place] = call.topk_idx.flatten().cpu().argsort(stable=True).int()
    of_block = torch.arange(experts, dtype=torch.int32).repeat_interleave((counts + block_m - 1) // block_m)
    device = call.x.device
    return ids.to(device), of_block.to(device), torch.tensor([rows.num_rows], dtype=torch.int32, device=device)


def sglang_layer(call: ExpertCall, site: Path, config: Config) -> Callable[[], torch.Tensor]:
    """Tokens quantised, the first grouped GEMM, SiLU, its product quantised, the second, and the weighted rows of each token summed.

    Slots are sorted before, which is not part of what is timed."""
    moe, quantisation = load(site)
    import triton.language as tl

    layer, w, device = call.layer, call.weights, call.x.device
    ids, of_block, count = sorted_blocks(call, config["BLOCK_SIZE_M"])
    gate_up = torch.empty(call.rows, 2 * layer.intermediate, dtype=torch.bfloat16, device=device)
    product = torch.empty(call.rows, layer.intermediate, dtype=torch.bfloat16, device=device)
    rows = torch.empty(call.tokens, layer.topk, layer.hidden, dtype=torch.bfloat16, device=device)
    y = torch.empty_like(call.x)
    block = [SCALE_BLOCK, SCALE_BLOCK]

    def multiply(a: torch.Tensor, b: torch.Tensor, b_sf: torch.Tensor, c: torch.Tensor, weigh: bool, topk: int) -> None:
        a_q, a_sf = quantisation._per_token_group_quant_8bit_raw(a, SCALE_BLOCK)
        tables = (call.topk_weights, call.topk_idx, ids, of_block, count)
        kinds = (True, False, False, False, False)  # fp8_w8a8, the other three, per channel
        moe.invoke_fused_moe_kernel(a_q, b, None, c, a_sf, b_sf, None, *tables, weigh, topk, config, tl.bfloat16, *kinds, block)

    def run() -> torch.Tensor:
        multiply(call.x, w.w1, w.w1_sf, gate_up, False, layer.topk)
        moe.act_and_mul_triton(gate_up, product, config, activation="silu")
        multiply(product, w.w2, w.w2_sf, rows, True, 1)
        moe.moe_sum_reduce_triton(rows, y, 1.0)
        return y

    return run
