"""vLLM: `moe_backend=deep_gemm_mega_moe` on this project's kernels.

Set `MEGAMOE_VLLM=1`: the package is a plugin of vLLM (entry point `vllm.general_plugins`), whose processes then call `register`.  Or call
`install()` in every process before a model is made.

vLLM's experts (vllm/models/deepseek_v4/nvidia/model.py: `DeepseekV4MegaMoEExperts`; for SM90 sm90_mega_moe.py) call DeepGEMM through
`vllm.utils.deep_gemm`, or look its functions up in the module that this one found; both get this project's.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from .fused_calls import Swap, fused_calls

VARIABLE = "MEGAMOE_VLLM"
DEEP_GEMM, CONTEXT = "vllm.utils.deep_gemm", "vllm.forward_context"
SM90_NAME = "fp8_mega_moe_sm90"
"""What vLLM's SM90 experts call `fp8_mega_moe`."""


def register() -> None:
    """What vLLM calls in each of its processes: `install`, if `MEGAMOE_VLLM` asks for it."""
    if os.environ.get(VARIABLE) == "1":
        install()


def install() -> Swap:
    """Replaces DeepGEMM's fused-MoE functions in this process; `undo()` of the result puts them back.

    Raises ModuleNotFoundError without vLLM, or without the DeepGEMM that its other layers need.
    """
    wrappers: Any = importlib.import_module(DEEP_GEMM)
    module = wrappers._import_deep_gemm()
    if module is None:
        raise ModuleNotFoundError("vLLM finds no deep_gemm, which its other layers need beside the fused MoE", name="deep_gemm")
    swap = Swap()
    calls = fused_calls(num_tokens_bound)
    for name, function in {**calls, SM90_NAME: calls["fp8_mega_moe"]}.items():
        swap.put(module, name, function)
        # What vLLM has looked up already; before that, it looks in the module.
        if getattr(wrappers, f"_{name}_impl", None) is not None:
            swap.put(wrappers, f"_{name}_impl", function)
    return swap


def num_tokens_bound(rows: int) -> int:
    """The most tokens that a data-parallel rank has in this step, as vLLM knows them; this rank's, where there is one such rank only."""
    context: Any = importlib.import_module(CONTEXT)
    if not context.is_forward_context_available():
        return rows
    metadata = context.get_forward_context().dp_metadata
    return rows if metadata is None else max(rows, int(metadata.num_tokens_across_dp_cpu.max()))
