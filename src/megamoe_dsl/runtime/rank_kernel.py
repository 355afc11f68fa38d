"""A compiled kernel bound to the buffers of one rank; everything that launches need is made in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..artifact.artifact import Artifact
from ..hardware.tensor_map import TensorMap
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.unfused.config import LayerConfig
from ..problem import ProblemError
from ..quant import ExpertWeights, TransformedWeights
from ..reference import LayerInputs, mega_moe_stages
from .buffers import RankBuffers
from .cuda_kernel import CudaKernel, encode_tensor_map
from .symmetric_memory import SymmetricBuffer
from .watchdog import check_watchdog_ns

WATCHDOG_NS = 60 * 10**9
GivenWeights = ExpertWeights | TransformedWeights | RankBuffers
"""A rank's weights in checkpoint or kernel order, or buffers of another kernel, whose weights and statistics are shared."""


class RankKernel:
    """Launches on torch's current stream, without synchronization or allocation; may be captured into a CUDA graph.

    artifact     the compiled kernel, or those of all stages in launch order
    symmetric    the group's buffer; kernels on one buffer run one after another
    watchdog_ns  how long a launch may wait for another rank; more than the time between the ranks' first launches

    Raises `ProblemError` when watchdog_ns is not a positive number of 63 bits, or when other kernels on the buffer have another grid.
    """

    def __init__(
        self, artifact: Artifact | Sequence[Artifact], symmetric: SymmetricBuffer, weights: GivenWeights, watchdog_ns: int = WATCHDOG_NS
    ) -> None:
        self.symmetric, watchdog_ns = symmetric, check_watchdog_ns(watchdog_ns)
        self.stages: list[RankBuffers] = []
        self.kernels: list[CudaKernel] = []
        self._nowhere = torch.empty(16, dtype=torch.uint8, device=symmetric.sym.device)
        for one in artifact if isinstance(artifact, Sequence) else [artifact]:
            config = one.config
            if config.pool_rows != symmetric.pool_rows:
                raise ProblemError("pool_rows", config.pool_rows, f"{symmetric.pool_rows}, as of the symmetric buffer")
            with symmetric.binding(config.num_sms):
                weights = buffers_of(config, symmetric, weights, encode_tensor_map)
                kernel = CudaKernel(one)
            # Tensor maps are encoded here: the first launch may be inside a graph capture.
            kernel.arguments.fill(weights.arguments(symmetric.peers.data_ptr(), 0, 0, symmetric.rank, watchdog_ns))
            self.stages.append(weights)
            self.kernels.append(kernel)
        self.buffers, self.config = self.stages[0], self.stages[0].config

    def __call__(self, y: torch.Tensor) -> None:
        """Computes y, bf16 [num_tokens, hidden], from the inputs in the symmetric buffer, without checks."""
        tokens = y.shape[0]
        place = (y if tokens else self._nowhere).data_ptr()
        for kernel in self.kernels:
            values = kernel.arguments.values
            values.y, values.num_tokens = place, tokens
            kernel.launch()

    def synchronize(self) -> None:
        self.symmetric.synchronize(self.buffers)


class ReferenceKernel:
    """As `RankKernel`, for one rank on CPU tensors: the slow reference, with the sums of Hopper's tensor core, for SM100 exact ones."""

    def __init__(self, config: MegaMoeConfig, symmetric: SymmetricBuffer, weights: GivenWeights) -> None:
        self.config, self.symmetric, self.buffers = config, symmetric, buffers_of(config, symmetric, weights, TensorMap.encode)

    def __call__(self, y: torch.Tensor) -> None:
        problem, tokens = self.config.problem, len(y)
        x, x_sf, idx, weights = (self.buffers.view(name)[:tokens] for name in ("x", "x_sf", "topk_idx", "topk_weights"))
        scales = x_sf[:, : problem.formats.activations.scales_of(problem.hidden)]
        named = idx.where((idx >= 0) & (idx < problem.num_experts), -1)
        x, scales, named, weights = (one.contiguous() for one in (x, scales, named, weights))
        inputs = LayerInputs(problem, [x], [scales], [named], [weights], [self.buffers.checkpoint_weights()])
        y.copy_(mega_moe_stages(inputs, torch.float64 if problem.formats.scales_in_mma else "hopper").y[0])
        self.buffers.stats += torch.bincount(named[named >= 0], minlength=problem.num_experts).int()


def buffers_of(config: LayerConfig, symmetric: SymmetricBuffer, weights: GivenWeights, encode: Callable[[TensorMap], bytes]) -> RankBuffers:
    """A rank's buffers for a kernel, from weights or from other buffers."""
    if isinstance(weights, RankBuffers):
        return weights.rebound(config, symmetric.sym, symmetric.watchdog)
    return RankBuffers(config, weights, symmetric.sym, symmetric.watchdog, encode)
