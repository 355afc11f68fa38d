"""The parts of a `MegaMoE` of one rank on CPU tensors: in place of kernels, the reference, with the bits of Hopper's kernels, and slow."""

from __future__ import annotations

import torch

from ..kernels.moe.config import MegaMoeConfig
from ..problem import ProblemError
from ..quant import ExpertWeights, TransformedWeights
from ..quant.micro_scaling import quantize
from ..reference import LayerInputs, mega_moe_stages
from ..shared_experts import SharedExperts
from .buffers import Bf16Inputs, Inputs, RankBuffers
from .symmetric_memory import SymmetricBuffer


class ReferenceKernel:
    """As `RankKernel`: computes y from the inputs in the symmetric buffer.

    Sums are formed as Hopper's tensor core forms them, on SM100 exactly.
    """

    def __init__(
        self, config: MegaMoeConfig, symmetric: SymmetricBuffer, weights: ExpertWeights | TransformedWeights | RankBuffers
    ) -> None:
        self.config, sym, watchdog = config, symmetric.sym, symmetric.watchdog
        if isinstance(weights, RankBuffers):
            self.buffers = weights.rebound(config, sym, watchdog)
        else:
            self.buffers = RankBuffers(config, weights, sym, watchdog)

    def __call__(self, y: torch.Tensor) -> None:
        problem, tokens = self.config.problem, len(y)
        x, x_sf, idx, weights = (self.buffers.view(name)[:tokens] for name in ("x", "x_sf", "topk_idx", "topk_weights"))
        scales = x_sf[:, : problem.formats.activations.scales_of(problem.hidden)]
        named = idx.where((idx >= 0) & (idx < problem.num_experts), -1)
        x, scales, named, weights = (one.contiguous() for one in (x, scales, named, weights))
        inputs = LayerInputs(problem, [x], [scales], [named], [weights], [self.buffers.checkpoint_weights()])
        y.copy_(mega_moe_stages(inputs, torch.float64 if problem.formats.scales_in_mma else "hopper").y[0])
        self.buffers.stats += torch.bincount(named[named >= 0], minlength=problem.num_experts).int()

    def synchronize(self) -> None:
        """Nothing runs once a call has returned."""


class ReferenceInputs:
    """As `InputsStage`: BF16 tokens are quantized, and all inputs go into the symmetric buffer."""

    def __init__(self, shared: SharedExperts, memory: RankBuffers) -> None:
        self.problem, self._memory = shared.routed, memory
        if shared.count:
            raise ProblemError("shared_experts", shared.count, "0 on the CPU")

    def check(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Raises `ProblemError` for a dtype, shape, stride or address; reads no tensor."""
        if x_sf is None:
            Bf16Inputs(x, topk_idx, topk_weights).check_layout(self.problem)
        else:
            Inputs(x, x_sf, topk_idx, topk_weights).check_layout(self.problem)

    def __call__(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor, rows: int) -> None:
        """Stores the inputs; rows past the tokens are masked, up to `rows`."""
        if x_sf is None:
            x, x_sf = quantize(x.float(), self.problem.formats.activations)
        self._memory.view("topk_idx")[:rows] = -1
        self._memory.store(Inputs(x, x_sf, topk_idx, topk_weights))
