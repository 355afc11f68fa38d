"""A few tokens of a `MegaMoE` all of whose experts are on its GPU, in E2M1: a launch without a buffer, the bits of the fused kernel."""

from __future__ import annotations

from typing import Self

import torch

from ..artifact.store import ArtifactStore
from ..kernels.decode.config import MOST_TOKENS, DecodeConfig
from ..kernels.decode.family import few_configs
from ..problem import Problem
from ..target import Target
from .buffers import RankBuffers
from .call_plan import Tensors
from .cuda_kernel import LAUNCHES, current_stream
from .expert_plan import DeviceDecode
from .gemm_scales import TMA_ALIGNMENT


class FewTokens:
    """Its kernels, with the weights and the statistics of a layer's `memory`."""

    def __init__(self, configs: tuple[DecodeConfig, ...], store: ArtifactStore, memory: RankBuffers) -> None:
        self.kernels = [DeviceDecode((config,), store, memory.device) for config in configs]
        self._index = memory.device.index
        self._places = {"w1": memory.address("fc1"), "w2": memory.address("fc2"), "w1_sf": 0, "w2_sf": 0, "stats": memory.stats.data_ptr()}
        self._prepared: dict[int, tuple[DeviceDecode, bytes]] = {}

    @classmethod
    def of(cls, problem: Problem, target: Target, store: ArtifactStore, memory: RankBuffers) -> Self | None:
        """None where the layer is not this kernel's."""
        configs = few_configs(problem, target)
        return cls(configs, store, memory) if configs else None

    def takes(self, tensors: Tensors, rows: int) -> bool:
        """Whether it computes a call with so many rows of y, as far as shapes and types say."""
        x, x_sf, topk_idx, _ = tensors
        return x_sf is None and 0 < len(x) == rows <= MOST_TOKENS and topk_idx.dtype == torch.int64

    def __call__(self, tensors: Tensors, y: torch.Tensor) -> bool:
        """Launches it; False where x does not lie as it must."""
        x, _, topk_idx, topk_weights = tensors
        tokens, place = len(x), x.data_ptr()
        if place % TMA_ALIGNMENT or y.data_ptr() % TMA_ALIGNMENT:
            return False
        stream, capturing = current_stream(self._index), torch.cuda.is_current_stream_capturing()
        with LAUNCHES:
            found = self._prepared.get(tokens)
            if found is None:
                kernel = next(one for one in self.kernels if tokens <= one.config.block_m)
                found = self._prepared[tokens] = kernel, kernel.prepare_places(self._places, tokens)
            kernel, prepared = found
            memory = kernel.counters.of(stream, capturing)
            kernel.launch(prepared, memory, place, topk_idx.data_ptr(), topk_weights.data_ptr(), y.data_ptr())
        return True
