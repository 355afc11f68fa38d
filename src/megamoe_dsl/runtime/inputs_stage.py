"""Copies tokens and routing of a call into the symmetric buffer: one launch, or none if they are views of it."""

from __future__ import annotations

import torch

from ..artifact.store import ArtifactStore
from ..kernels.moe.family import PreDispatchKernel
from ..problem import ProblemError
from ..quant import quantize, quantize_nvfp4
from ..recipe import ExpertFactors
from ..shared_experts import SharedExperts
from ..target import Target
from .buffers import Inputs, RankBuffers, check_aligned, check_layout
from .cuda_kernel import CudaKernel

TOKEN_ALIGNMENT, SCALE_ALIGNMENT = 16, 4
"""Bytes, of x and of x_sf."""
INT64 = torch.int64


class InputsStage:
    """The pre-dispatch kernels of a layer; `bf16` adds the one that quantizes BF16 tokens.  `rank` has the shared experts, `memory` the
    symmetric buffer.  Raises `ArtifactError` for a missing kernel."""

    def __init__(self, shared: SharedExperts, rank: int, target: Target, store: ArtifactStore, memory: RankBuffers, bf16: bool) -> None:
        self.problem, self._device = shared.routed, memory.device
        self._places = tuple(memory.view(name).data_ptr() for name in ("x", "x_sf", "topk_idx", "topk_weights"))

        def kernel(quantized: bool) -> CudaKernel:
            fields = {"quantized": quantized, "shared": shared.count, "pool_rows": memory.config.pool_rows}
            made = CudaKernel(store.get(PreDispatchKernel().choose(shared.whole, target, 0, **fields)))
            made.arguments.values.sym = memory.sym.data_ptr()
            if self.problem.formats.activations.factor and not quantized:
                made.arguments.values.factors = memory.address("factors")
            if shared.count:
                made.arguments.values.first_shared = shared.first_of(rank)
            return made

        self._copy, self._quantize = kernel(True), kernel(False) if bf16 else None

    def check(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Raises `ProblemError` for a dtype, shape, stride, device or address; reads no tensor."""
        if x_sf is None and self._quantize is None:
            raise ProblemError("x_sf", None, "given: the layer was made with bf16_inputs=False")
        check_layout(self.problem, "", x, x_sf, topk_idx, topk_weights, self._device)
        if x_sf is not None:
            check_aligned("x", x, TOKEN_ALIGNMENT)
            check_aligned("x_sf", x_sf, SCALE_ALIGNMENT)

    def __call__(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Launches on torch's current stream.  Checks only addresses."""
        if not (tokens := x.shape[0]):
            return
        if topk_idx.dtype is not INT64:
            topk_idx = topk_idx.long()  # the allocator reuses its memory in stream order, after the kernel
        at, scales, idx, weights = x.data_ptr(), 0, topk_idx.data_ptr(), topk_weights.data_ptr()
        if x_sf is None:
            kernel = self._quantize
            assert kernel is not None
            values = kernel.arguments.values
        else:
            scales = x_sf.data_ptr()
            if at == self._places[0] and (at, scales, idx, weights) == self._places:
                return
            kernel = self._copy
            values = kernel.arguments.values
            values.x_sf = scales
        if at % TOKEN_ALIGNMENT or scales % SCALE_ALIGNMENT:
            self.check(x, x_sf, topk_idx, topk_weights)
        values.x, values.topk_idx, values.topk_weights, values.num_tokens = at, idx, weights, tokens
        kernel.launch()


class ReferenceInputs:
    """As `InputsStage`, for a layer on the CPU."""

    def __init__(self, shared: SharedExperts, memory: RankBuffers) -> None:
        self.problem, self._memory = shared.routed, memory
        if shared.count:
            raise ProblemError("shared_experts", shared.count, "0 on the CPU")

    def check(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        check_layout(self.problem, "", x, x_sf, topk_idx, topk_weights, self._memory.device)

    def __call__(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Stores the inputs, BF16 tokens quantized."""
        if x_sf is None:
            factors, form = self._memory.weights.factors, self.problem.formats.activations
            x, x_sf = quantize(x.float(), form) if factors is None else quantize_nvfp4(x.float(), ExpertFactors(*factors[0]).x)
        self._memory.store(Inputs(x, x_sf, topk_idx, topk_weights))
