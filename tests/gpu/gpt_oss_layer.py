"""gpt-oss-120b on one Hopper GPU: its experts, activation and biases, MXFP4 weights, channels filled up to what a kernel takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Check, expected_results, sample_rows
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import layer_kernels
from megamoe_dsl.target import Target

GPU = "cuda"
BOUNDS = (8, 64)
MOST, SAMPLED = 512, 8  # tokens
PROBLEM = PRESETS["gpt-oss-120b"].problem(MOST, num_ranks=1, recipe="fp8xmxfp4", activation="swigluoai", biases=True)


def configs(target: Target) -> set[Any]:
    """Everything that is run."""
    return set(layer_kernels(PROBLEM, target, list(BOUNDS)))


@dataclass(frozen=True)
class GptOssLayer:
    """The layer with random weights, and the same in checkpoint order."""

    moe: MegaMoE
    weights: Any

    @classmethod
    def of(cls, kernels: Path) -> GptOssLayer:
        """With kernels of this folder."""
        weights = random_weights(PROBLEM, 0, 1, GPU)
        return cls(MegaMoE(PROBLEM, weights, store=ArtifactStore(kernels), bounds=BOUNDS, bf16_inputs=False), weights)

    def check(self, tokens: int) -> Check:
        """A call on so many tokens; those that are sampled against the reference."""
        given = random_inputs(PROBLEM, 0, tokens, tokens, GPU)
        y = self.moe(given.x, given.topk_idx, given.topk_weights, x_sf=given.x_sf, num_tokens_bound=tokens)
        rows = sample_rows(tokens, SAMPLED).to(GPU)
        sampled = [tensor.view(torch.uint8)[rows].view(tensor.dtype) if tensor is given.x else tensor[rows] for tensor in given]
        return Check.of(y[rows], *expected_results(PROBLEM, [sampled], [self.weights]))


def target_of(sms: int, gpu: str) -> Target:
    """A Hopper GPU."""
    return Target(SM90, sms, gpu)
