"""sonic-moe's layer in BF16, from a folder with its sources, those of the quack that it asks for, and CuTe DSL 4.2.1: nothing is installed.

Its kernels of both linears and of the sum, and its order of rows by torch. Experts are given; how many rows each has is counted by torch
in the place of a CUDA extension that it compiles with nvcc when first called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines.site import import_from
from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers.other_way import OtherWay
from moe_layers.quack_gemms import interleaved


@dataclass(frozen=True)
class SonicLayer:
    """A call by sonic-moe as it infers, gate and up not stored.

    layer, kernels  its modules `functional` and `functional.forward`
    w1, w2          bfloat16 [2 intermediate, hidden, num_experts], rows of gate and up in turn, and [hidden, intermediate, num_experts],
                    the experts' matrices one after another in memory
    topk_idx        int32
    """

    call: ExpertCall
    layer: Any
    kernels: Any
    w1: torch.Tensor
    w2: torch.Tensor
    topk_idx: torch.Tensor

    def __call__(self) -> torch.Tensor:
        """y."""
        call, experts, topk = self.call, self.call.layer.num_experts, self.call.layer.topk
        x, rows, intermediate = call.x, call.rows, call.layer.intermediate
        stream = torch.cuda.current_stream().cuda_stream
        chosen = self.topk_idx.flatten().long()
        counts = torch.zeros(experts, dtype=torch.int32, device=x.device).scatter_add_(
            0, chosen, torch.ones_like(chosen, dtype=torch.int32)
        )
        metadata = self.layer.TC_topk_router_metadata(self.topk_idx, counts.cumsum(0).int(), topk)
        starts, gathered, _, scattered, of_token = metadata
        z, h = (torch.empty(rows, width, dtype=x.dtype, device=x.device) for width in (2 * intermediate, intermediate))
        common = {"expert_frequency_offset": starts, "expert_schedule_order": None, "x_gather_idx": gathered, "stream_id": stream}
        activation = {"activation_type": "swiglu", "is_glu_activation": True, "is_inference_mode_enabled": True}
        self.kernels._up_projection_forward(x=x, w1=self.w1, z=z, y1=h, b1=None, **common, **activation)
        each, y = torch.empty(rows, x.shape[1], dtype=x.dtype, device=x.device), torch.empty_like(x)
        self.kernels._down_projection_forward(w2=self.w2, y1=h, y2=each, b2=None, **common)
        sums = {"s_reverse_scatter_idx": scattered, "num_activated_expert_per_token_offset": of_token, "varlen_K_max": topk}
        self.kernels._router_forward(y2=each, o=y, topk_scores=call.topk_weights.flatten(), **sums, H=x.shape[1], is_varlen_K=False)
        return y


def sonic_layer(call: ExpertCall, site: Path) -> SonicLayer:
    """Of a call.  Raises `ImportError` where the folder lacks something."""
    folders = (site, site / "nvidia_cutlass_dsl" / "python_packages")
    layer, kernels = (import_from(name, *folders) for name in ("sonicmoe.functional", "sonicmoe.functional.forward"))
    w1, w2 = interleaved(call.operands.w1).permute(1, 2, 0), call.operands.w2.permute(1, 2, 0)
    return SonicLayer(call, layer, kernels, w1, w2, call.topk_idx.int())


def sonic_ways(call: ExpertCall, site: Path) -> dict[str, OtherWay]:
    """The layer."""
    return {"sonic-moe": OtherWay(partial(sonic_layer, call, site), whole=True)}
