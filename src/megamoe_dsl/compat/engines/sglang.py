"""SGLang: `--moe-a2a-backend megamoe` on this project's kernels.

Set `MEGAMOE_SGLANG=1`: the package is a plugin of SGLang (entry point `sglang.srt.plugins`), whose processes then call `register`.

SGLang's `run_mega_routed_experts` (srt/layers/moe/mega_moe.py) and `run_sm90_mega_routed` (mega_moe_sm90.py) look DeepGEMM's functions up
when they call them; `install` puts this project's in their place.  On SM90 SGLang reorders weights by hand, in
`build_sm90_mega_moe_experts_weights`: that function is replaced.  On SM100 it makes the bytes that this project's kernel takes.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from ...runtime.rank_kernel import WATCHDOG_NS
from ..deep_gemm import transform_weights_for_mega_moe_sm90
from .fused_calls import Swap, fused_calls

VARIABLE = "MEGAMOE_SGLANG"
DEEP_GEMM, DP_ATTENTION, WEIGHTS_SM90 = "deep_gemm", "sglang.srt.layers.dp_attention", "sglang.srt.layers.moe.mega_moe_sm90"


def register() -> None:
    """What SGLang calls in each of its processes: `install`, if `MEGAMOE_SGLANG` asks for it."""
    if os.environ.get(VARIABLE) == "1":
        install()


def install(*, keep_plain_weights: bool = True, watchdog_ns: int = WATCHDOG_NS) -> Swap:
    """Replaces DeepGEMM's fused-MoE functions and SGLang's SM90 weights hook in this process; `undo()` of the result puts them back.

    keep_plain_weights   experts keep their own weights beside those in kernel order, twice the memory, for batches beyond the buffer's
                         capacity, which SGLang gives to its other kernels; without them such batches must not come
    watchdog_ns          how long a launch may wait for another rank before it is trapped

    Raises `ProblemError` for a bad limit, and ModuleNotFoundError without SGLang or DeepGEMM, which its other layers need.
    """
    swap = Swap()
    module = importlib.import_module(DEEP_GEMM)
    for name, function in fused_calls(num_tokens_bound, watchdog_ns).items():
        swap.put(module, name, function)

    def build(experts: Any) -> None:
        build_sm90_weights(experts, keep_plain_weights=keep_plain_weights)

    swap.put(importlib.import_module(WEIGHTS_SM90), "build_sm90_mega_moe_experts_weights", build)
    return swap


def build_sm90_weights(experts: Any, *, keep_plain_weights: bool = True) -> None:
    """Weights in kernel order, as `mega_l1_weights` and `mega_l2_weights` of an SGLang layer.

    experts   has w13_weight e4m3 [E, 2I, H], rows [gate | up], w2_weight [E, H, I] and their `_scale_inv`, float32 per 128 x 128

    A second call, after a reload, copies over the first one's tensors: captured graphs go on with the new weights.
    """
    plain = [getattr(experts, name) for name in ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")]
    fc1, fc1_sf, fc2, fc2_sf = (one.data for one in plain)
    l1, l2 = transform_weights_for_mega_moe_sm90((fc1, fc1_sf.clone()), (fc2, fc2_sf.clone()))
    if getattr(experts, "_mega_moe_weights_built", False):
        for old, new in zip((*experts.mega_l1_weights, *experts.mega_l2_weights), (*l1, *l2), strict=True):
            old.copy_(new)
    else:
        # What has one order only was passed through, and the layer's own weights may be loaded anew.
        experts.mega_l1_weights, experts.mega_l2_weights = l1, (l2[0].clone() if l2[0].data_ptr() == fc2.data_ptr() else l2[0], l2[1])
    if not keep_plain_weights:
        for one in (experts.w13_weight, experts.w2_weight):
            one.data = one.data.new_empty(0)
    experts._mega_moe_sm90_fp8_weights = experts._mega_moe_weights_built = True


def num_tokens_bound(rows: int) -> int:
    """The most tokens that a data-parallel rank has in this step, as SGLang knows them; this rank's, where it knows none."""
    module: ModuleType = importlib.import_module(DP_ATTENTION)
    return max([rows, *(module.get_dp_global_num_tokens() or [])])
