"""A few tokens of a `MegaMoE` all of whose experts are on its GPU, in E2M1: a launch without a buffer, the bits of the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from ..artifact.store import ArtifactStore
from ..kernels.decode.config import DecodeConfig
from ..kernels.decode.family import few_configs, most_tokens
from ..problem import Problem
from ..target import Target
from .buffers import RankBuffers
from .call_plan import Tensors
from .cuda_kernel import LAUNCHES, current_stream
from .expert_plan import DeviceDecode
from .gemm_scales import TMA_ALIGNMENT


class FewTokens:
    """Its kernels, that of fewer tokens first, with the weights and the statistics of a layer's `memory`."""

    def __init__(self, configs: Sequence[DecodeConfig], store: ArtifactStore, memory: RankBuffers) -> None:
        self.kernels = [DeviceDecode((config,), store, memory.device) for config in configs]
        self._index = memory.device.index
        self._places = {"w1": memory.address("fc1"), "w2": memory.address("fc2"), "w1_sf": 0, "w2_sf": 0, "stats": memory.stats.data_ptr()}
        self._prepared: dict[int, bytes] = {}

    @classmethod
    def of(cls, problem: Problem, target: Target, store: ArtifactStore, memory: RankBuffers, **options: Any) -> Self | None:
        """None where the layer is not this kernel's, on a CPU, and with `options` of `few_configs` that it does not take."""
        configs = few_configs(problem, target, **options) if memory.device.type == "cuda" else ()
        return cls(configs, store, memory) if configs else None

    def takes(self, tensors: Tensors, rows: int) -> bool:
        """Whether it computes a call with so many rows of y, as far as shapes and types say."""
        (x, x_sf, topk_idx, _), config = tensors, self.kernels[-1].config
        most = min(config.block_m, most_tokens(config.problem))
        return x_sf is None and 0 < len(x) == rows <= most and topk_idx.dtype == torch.int64

    def __call__(self, tensors: Tensors, y: torch.Tensor) -> bool:
        """Launches it; False where x or y does not lie as it must."""
        x, _, topk_idx, topk_weights = tensors
        tokens, place = len(x), x.data_ptr()
        if place % TMA_ALIGNMENT or y.data_ptr() % TMA_ALIGNMENT:
            return False
        kernel = next(one for one in self.kernels if tokens <= one.config.block_m)
        with LAUNCHES:
            if tokens not in self._prepared:
                self._prepared[tokens] = kernel.prepare_places(self._places, tokens)
            memory = kernel.stream_state.of(current_stream(self._index), torch.cuda.is_current_stream_capturing())
            kernel.launch(self._prepared[tokens], memory, place, topk_idx.data_ptr(), topk_weights.data_ptr(), y.data_ptr())
        return True
