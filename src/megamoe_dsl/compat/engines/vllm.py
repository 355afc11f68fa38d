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

from ...problem import ProblemError
from ...runtime.rank_kernel import WATCHDOG_NS
from ...runtime.watchdog import check_watchdog_ns
from .fused_calls import Swap, fused_calls

VARIABLE, WATCHDOG_VARIABLE = "MEGAMOE_VLLM", "MEGAMOE_WATCHDOG_S"
DEEP_GEMM, CONTEXT = "vllm.utils.deep_gemm", "vllm.forward_context"
SM90_NAME = "fp8_mega_moe_sm90"
"""What vLLM's SM90 experts call `fp8_mega_moe`."""


def register() -> None:
    """What vLLM calls in each of its processes: `install`, if `MEGAMOE_VLLM` asks for it, with the limit of `MEGAMOE_WATCHDOG_S`."""
    if os.environ.get(VARIABLE) == "1":
        install(watchdog_ns=given_watchdog_ns())


def given_watchdog_ns() -> int:
    """How long a launch may wait: the seconds that `MEGAMOE_WATCHDOG_S` says, otherwise 60.  Raises `ProblemError`."""
    text = os.environ.get(WATCHDOG_VARIABLE)
    if text is None:
        return WATCHDOG_NS
    try:
        return check_watchdog_ns(round(float(text) * 1e9))
    except (ValueError, OverflowError):
        raise ProblemError(WATCHDOG_VARIABLE, text, "seconds, more than 0") from None


def install(*, watchdog_ns: int = WATCHDOG_NS) -> Swap:
    """Replaces DeepGEMM's fused-MoE functions in this process; `undo()` of the result puts them back.  A launch that waits longer than
    `watchdog_ns` for another rank is trapped.

    Raises `ProblemError` for a bad limit, and ModuleNotFoundError without vLLM, or without the DeepGEMM that its other layers need.
    """
    wrappers: Any = importlib.import_module(DEEP_GEMM)
    module = wrappers._import_deep_gemm()
    if module is None:
        raise ModuleNotFoundError("vLLM finds no deep_gemm, which its other layers need beside the fused MoE", name="deep_gemm")
    swap = Swap()
    calls = fused_calls(num_tokens_bound, watchdog_ns)
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
